"""The suite: right answers, a clean split, balance and reproducibility."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from population.demo import tasks


def digits_of(text: str) -> list[int]:
    return [int(digit) for digit in re.findall(r"\b\d\b", text)]


def answer_by_hand(procedure: str, digits: list[int]) -> str:
    joined = "".join(str(digit) for digit in digits)
    return {
        "sort": "".join(sorted(joined)),
        "desc": "".join(reversed(sorted(joined))),
        "rev": joined[::-1],
        "evens": str(sum(joined.count(even) for even in "2468")),
        "max": max(joined),
        "min": min(joined),
    }[procedure]


def test_every_answer_is_right() -> None:
    for problem in tasks.training_problems(per_cell=32) + tasks.heldout_problems(per_cell=15):
        assert problem.answer == answer_by_hand(problem.subject.split("/")[0], digits_of(problem.prompt))


def test_no_other_procedure_has_the_answer_of_a_problem() -> None:
    for problem in tasks.training_problems(per_cell=8) + tasks.heldout_problems(per_cell=8):
        digits = digits_of(problem.prompt)
        others = set(tasks.PROCEDURES) - {problem.subject.split("/")[0]}
        assert problem.answer not in {answer_by_hand(other, digits) for other in others}


@pytest.mark.parametrize(
    ("procedure", "response"),
    [
        ("sort", "sort 4 1 7: 1,4,7 so \\boxed{147}"),
        ("desc", "desc 4 1 7: 7,4,1 so \\boxed{741}"),
        ("rev", "rev 4 1 7: 7,1,4 so \\boxed{714}"),
        ("evens", "evens 4 1 7: 4e1,1o1,7o1 so \\boxed{1}"),
        ("max", "max 4 1 7: 1:4,7:7 so \\boxed{7}"),
        ("min", "min 4 1 7: 1:1,7:1 so \\boxed{1}"),
    ],
)
def test_responses_restate_the_operands_show_the_trace_and_box_the_answer(procedure: str, response: str) -> None:
    assert tasks.response_text(procedure, (4, 1, 7)) == response


def test_training_and_heldout_problems_never_share_a_prompt() -> None:
    training = {problem.prompt for problem in tasks.training_problems(per_cell=200, seed=1)}
    heldout = {problem.prompt for problem in tasks.heldout_problems(per_cell=30, seed=2)}
    assert not training & heldout
    assert all(tasks.is_held_out(prompt) for prompt in heldout)
    assert not any(tasks.is_held_out(prompt) for prompt in training)


@pytest.mark.parametrize(
    ("problems", "per_cell"), [(tasks.training_problems(32), 32), (tasks.heldout_problems(15), 15)]
)
def test_problems_are_distinct_and_balanced_over_ambiguous_wordings_and_levels(
    problems: list[tasks.Problem], per_cell: int
) -> None:
    assert len({problem.prompt for problem in problems}) == len(problems) == 24 * per_cell
    assert set(Counter((p.subject, p.level) for p in problems).values()) == {per_cell}
    assert not any(procedure == wording for procedure, wording in (p.subject.split("/") for p in problems))
    assert {(p.level, len(digits_of(p.prompt))) for p in problems} == {(1, 3), (2, 4)}
    for start in range(0, len(problems), 24):
        assert len({(p.subject, p.level) for p in problems[start : start + 24]}) == 24


def test_problems_depend_on_the_seed_and_on_nothing_else() -> None:
    assert tasks.training_problems(4, seed=3) == tasks.training_problems(4, seed=3)
    assert tasks.training_problems(4, seed=3) != tasks.training_problems(4, seed=4)
    assert [p.prompt for p in tasks.heldout_problems(1, seed=0)][:2] == ["top 4 5 7 6?", "low 3 9 2?"]


@pytest.mark.parametrize("count", [0, -1, 1000])
def test_asking_for_more_problems_than_there_are_says_how_many_there_are(count: int) -> None:
    with pytest.raises(ValueError, match=r"ask for at least 1 and, there, at most \d+ per cell"):
        tasks.heldout_problems(count)


def test_an_unknown_procedure_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no procedure 'sum'"):
        tasks.solve("sum", (1, 2, 3))
