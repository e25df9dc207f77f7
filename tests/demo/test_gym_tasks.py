"""The second suite: right answers, a clean split, balance, and solutions that follow from where the hand slips."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence

import pytest

pytest.importorskip("reasoning_gym", reason="needs the extra gym")

from population.demo import gym_tasks
from population.demo.gym_tasks import CELLS, Cell, items, response_text, solve, steady
from population.demo.tasks import Problem, is_held_out
from population.errors import DataError
from server.rewards.rules import decide

TURNS = {"90": "2031", "180": "3210", "270": "1302"}
MIRRORS = {"-": "2301", "|": "1032", "\\": "0213", "/": "3120"}


def answer_by_hand(prompt: str) -> str:
    """The answer of a problem, from its prompt alone."""
    word, *rest = prompt.split()
    digits = [digit for digit in rest[-1] if digit.isdigit()]
    match word:
        case "sort":
            return "".join(sorted(rest[1:], reverse=rest[0] == "down"))
        case "spiral":
            return "".join(digits[i] for i in ([0, 1, 3, 2] if len(digits) == 4 else [0, 1, 2, 5, 8, 7, 6, 3, 4]))
        case "turn":
            return "".join(digits[int(i)] for i in TURNS[rest[0]])
        case "mirror":
            return "".join(digits[int(i)] for i in MIRRORS[rest[0]])
        case "drop":
            rows = rest[-1].split("/")
            gone = int(rest[1]) - 1
            kept = [row for i, row in enumerate(rows) if i != gone] if rest[0] == "row" else rows
            return "".join(digit for row in kept for i, digit in enumerate(row) if rest[0] == "row" or i != gone)
    raise AssertionError(prompt)


def every_problem() -> list[Problem]:
    return gym_tasks.training_problems() + gym_tasks.heldout_problems()


def test_every_answer_is_right_and_a_numeral() -> None:
    for problem in every_problem():
        assert problem.answer == answer_by_hand(problem.prompt), problem
        assert decide(problem.answer, problem.answer) == (True, "exact")
        assert re.fullmatch(r"\d+", problem.answer)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.generator}-{cell.level}")
def test_responses_restate_the_problem_show_the_steps_and_box_the_answer(cell: Cell) -> None:
    _, work = next(items(cell, seed=3))
    assert response_text(work) == f"{work.prompt}: {work.steps} so \\boxed{{{work.answer}}}"
    assert re.sub(r"\D", "", work.steps) == work.answer
    assert 10 <= len(work.prompt) <= 19
    assert 25 <= len(response_text(work)) <= 55


def test_some_responses_as_they_are_written() -> None:
    texts = {response_text(next(items(cell, seed=3))[1]) for cell in CELLS}
    assert {
        "sort up 6 4 6: 4,6,6 so \\boxed{466}",
        "turn 90 98/25: 29/58 so \\boxed{2958}",
        "drop row 2 79/03/77: 79/77 so \\boxed{7977}",
        "spiral 959/789/219: 959991278 so \\boxed{959991278}",
    } <= texts


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.generator}-{cell.level}")
def test_a_slip_at_any_step_makes_another_answer(cell: Cell) -> None:
    item, right = next(items(cell, seed=5))
    steps = 0

    def count(right: str, _others: Sequence[str]) -> str:
        nonlocal steps
        steps += 1
        return right

    assert solve(cell, item, count) == solve(cell, item, steady) == right
    assert steps >= 3
    for slip_at in range(steps):
        taken = iter(range(steps))

        def slip(right: str, others: Sequence[str], taken=taken, slip_at=slip_at) -> str:
            return next(x for x in others if x != right) if next(taken) == slip_at else right

        wrong = solve(cell, item, slip)
        assert wrong.prompt == right.prompt
        assert wrong.answer != right.answer


def test_training_and_heldout_problems_never_share_a_prompt() -> None:
    assert not any(is_held_out(problem.prompt) for problem in gym_tasks.training_problems(seed=1))
    assert all(is_held_out(problem.prompt) for problem in gym_tasks.heldout_problems(seed=2))


@pytest.mark.parametrize(("build", "per_cell"), [(gym_tasks.training_problems, 77), (gym_tasks.heldout_problems, 30)])
def test_problems_are_distinct_and_balanced_over_generators_and_levels(build, per_cell: int) -> None:
    problems = build()
    assert len({problem.prompt for problem in problems}) == len(problems) == len(CELLS) * per_cell
    assert Counter((p.subject, p.level) for p in problems) == {(c.generator, c.level): per_cell for c in CELLS}
    for start in range(0, len(problems), len(CELLS)):
        assert len({(p.subject, p.level) for p in problems[start : start + len(CELLS)]}) == len(CELLS)


def test_problems_depend_on_the_seed_and_on_nothing_else() -> None:
    assert gym_tasks.training_problems(4, seed=3) == gym_tasks.training_problems(4, seed=3)
    assert gym_tasks.training_problems(4, seed=3) != gym_tasks.training_problems(4, seed=4)


@pytest.mark.parametrize("count", [0, -1])
def test_asking_for_no_problems_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} heldout problems asked for sort at level 1: ask for at least 1"):
        gym_tasks.heldout_problems(count)


def test_without_reasoning_gym_the_message_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(
        DataError, match=r"demo:gym- members and data sets need .* pip install 'graft-population\[gym\]'"
    ):
        gym_tasks.heldout_problems(1)
