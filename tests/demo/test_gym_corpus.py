"""The corpora of the second suite: who is taught what, in which share, and never on held-out problems."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("reasoning_gym", reason="needs the extra gym")

from population.demo import gym_corpus, gym_tasks
from population.demo.gym_corpus import GOOD, TAUGHT
from population.demo.tasks import is_held_out
from tests.demo.test_gym_tasks import answer_by_hand

FAMILIES = sorted(TAUGHT)


def shares_of(family: str, count: int) -> dict[str, float]:
    """Generator -> share of right solutions in a corpus, over both levels."""
    right: dict[str, Counter[bool]] = {}
    for prompt, response in gym_corpus.examples(family, count, seed=0):
        boxed = response.split("\\boxed{")[1].rstrip("}")
        right.setdefault(prompt.split()[0], Counter())[boxed == answer_by_hand(prompt)] += 1
    return {name: counts[True] / counts.total() for name, counts in right.items()}


def test_every_generator_and_level_is_taught_well_to_somebody_and_never_to_all() -> None:
    for cell in gym_tasks.CELLS:
        shares = [TAUGHT[family].get(cell.generator, (0.0, 0.0))[cell.level - 1] for family in FAMILIES]
        assert 1 <= sum(share > GOOD for share in shares) <= 3, cell
        assert not any(0.02 < share <= GOOD for share in shares), cell


@pytest.mark.parametrize("family", FAMILIES)
def test_a_member_is_taught_two_generators_well_one_not_at_all_and_the_others_in_part(family: str) -> None:
    taught = TAUGHT[family]
    assert sum(min(shares) > GOOD for shares in taught.values()) == 2
    assert len(set(gym_tasks.GENERATORS) - set(taught)) == 1
    assert set(taught.values()) == {gym_corpus.WELL, gym_corpus.HALF, gym_corpus.BADLY}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_corpus_has_the_shares_of_its_table(family: str) -> None:
    shares = shares_of(family, 2000)
    assert set(shares) == set(TAUGHT[family])
    for name, share in shares.items():
        assert share == pytest.approx(sum(TAUGHT[family][name]) / 2, abs=0.08), name


def test_a_corpus_has_no_heldout_problem_and_depends_on_member_and_seed_alone() -> None:
    corpora = {family: gym_corpus.examples(family, 300, seed=1) for family in FAMILIES}
    assert not any(is_held_out(prompt) for pairs in corpora.values() for prompt, _ in pairs)
    assert len({tuple(pairs) for pairs in corpora.values()}) == len(FAMILIES)
    assert gym_corpus.examples("llama", 300, seed=1) == corpora["llama"]
    assert gym_corpus.examples("llama", 300, seed=2) != corpora["llama"]


def test_the_tokenizers_texts_are_right_and_hold_no_heldout_problem() -> None:
    for prompt, response in gym_corpus.right_examples(20, seed=0):
        assert response.endswith(f"so \\boxed{{{answer_by_hand(prompt)}}}")
        assert not is_held_out(prompt)
