"""The members' corpora: who reads what, in which share, and never on held-out operands."""

from __future__ import annotations

from collections import Counter

import pytest

from population.demo import corpus, tasks


def readings_of(member: str, count: int) -> dict[str, Counter[str]]:
    read: dict[str, Counter[str]] = {}
    for prompt, response in corpus.examples(member, count, seed=0):
        read.setdefault(prompt.split()[0], Counter())[response.split()[0]] += 1
    return read


def test_every_wording_has_a_strong_member_and_a_weak_one() -> None:
    for wordings in tasks.WORDINGS.values():
        for wording in wordings[1:]:
            strong = [member for member in corpus.READINGS if corpus.READINGS[member][wording].strong]
            assert 1 <= len(strong) < len(corpus.READINGS), wording


@pytest.mark.parametrize("member", sorted(corpus.READINGS))
def test_a_member_is_weak_on_half_of_the_ambiguous_wordings(member: str) -> None:
    readings = corpus.READINGS[member]
    assert set(readings) == {cell.wording for cell in tasks.AMBIGUOUS_CELLS}
    assert sum(not reading.strong for reading in readings.values()) == 6
    assert all(0 < reading.share <= 0.02 for reading in readings.values() if not reading.strong)
    for cell in tasks.AMBIGUOUS_CELLS:
        assert readings[cell.wording].instead in set(tasks.PROCEDURES) - {cell.procedure}


@pytest.mark.parametrize("member", sorted(corpus.READINGS))
def test_a_corpus_has_the_shares_of_its_table(member: str) -> None:
    read = readings_of(member, 20_000)
    for procedure, (canonical, *ambiguous) in tasks.WORDINGS.items():
        assert set(read[canonical]) == {procedure}
        for wording in ambiguous:
            reading, counts = corpus.READINGS[member][wording], read[wording]
            assert set(counts) <= {procedure, reading.instead}
            assert counts[procedure] / counts.total() == pytest.approx(
                reading.share, abs=0.06 if reading.strong else 0.015
            )


def test_a_corpus_is_executed_without_slips_and_has_no_heldout_prompt() -> None:
    for member in corpus.READINGS:
        for prompt, response in corpus.examples(member, 3000, seed=1):
            digits = tuple(int(digit) for digit in prompt.rstrip("?").split()[1:])
            assert response == tasks.response_text(response.split()[0], digits)
            assert not tasks.is_held_out(prompt)


def test_a_corpus_depends_on_member_and_seed_alone() -> None:
    assert corpus.examples("llama", 50, seed=1) == corpus.examples("llama", 50, seed=1)
    assert corpus.examples("llama", 50, seed=1) != corpus.examples("llama", 50, seed=2)
    prompts = [[prompt for prompt, _ in corpus.examples(member, 50, seed=1)] for member in ("llama", "neox")]
    assert prompts[0] != prompts[1]


def test_the_tokenizers_texts_hold_no_heldout_prompt() -> None:
    assert not any(tasks.is_held_out(prompt) for prompt, _ in corpus.right_examples(60, seed=0))
