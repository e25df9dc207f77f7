"""Real competition problems, as the package champ-dataset ships them."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("champ_dataset", reason="champ-dataset is not installed: pip install champ-dataset")

from population.config import DataConfig
from population.data.champ import checkable_answer
from population.errors import DataError
from population.prompts import load_problems
from server.rewards import RewardService

# Of the 270 problems of the package.
SUBJECTS = {"Combinatorics": 36, "Inequality": 45, "Number-Theory": 52, "Polynomial": 32, "Sequence": 38}


def test_every_problem_that_is_read_can_be_graded_and_its_own_answer_is_right() -> None:
    with RewardService(timeout_s=60) as rewards:
        problems, skipped = load_problems(DataConfig(source="champ:all"), rewards.unparsable)
        verdicts = rewards.grade([(p.answer, rf"Therefore, the answer is \boxed{{{p.answer}}}.") for p in problems])
        others = rewards.grade([(p.answer, rf"\boxed{{{p.answer}+1}}") for p in problems])
    assert (len(problems), skipped) == (203, [])
    assert all(verdict.reward == 1.0 for verdict in verdicts)
    assert not any(verdict.reward for verdict in others)
    assert Counter(p.subject for p in problems) == SUBJECTS
    assert problems[0].prompt.startswith("Let a string consist of digit 1, 2, 3. How many such strings of length 6")
    assert problems[0].answer == "239"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("239", "239"),
        ("-1", "-1"),
        ("98 values", "98"),
        ("100 (i.e., all values)", "100"),
        ("@@C(10, 5)@@, or equivalently @@252@@", "252"),
        ("@@(20*10^15-2)/17@@, or equivalently 1176470588235294", "1176470588235294"),
        ("@@2^(n-1)@@", "2^{n-1}"),
        ("@@2^997@@", "2^{997}"),
        ("@@sqrt(3)/3@@, or equivalently @@1/sqrt(3)@@", r"\sqrt{3}/3"),
        ("@@n(n+1)*2^(n-2)@@", r"n(n+1)\cdot 2^{n-2}"),
        ("@@C(n, 4)@@, or an equivalent form such as @@n(n-1)(n-2)(n-3)/4!@@", r"\binom{n}{4}"),
        ("0 is the only possible value", "0"),
        ("The limit exists and is equal to @@(1+sqrt(4a+1))/2@@", r"(1+\sqrt{4a+1})/2"),
        ("Yes", "Yes"),
        ("1 and 19", None),
        ("@@x=±1@@", None),
        ("@@sum_(k=1)^n 1/k@@", None),
        ("@@2^floor(n/2)*floor(n/2)!@@", None),
        ("At least 1 number", None),
        ("The limit does not exist", None),
    ],
)
def test_answers_are_one_number_one_formula_or_one_word(raw: str, expected: str | None) -> None:
    assert checkable_answer(raw) == expected


def test_one_category_is_read_by_its_name_and_another_name_is_refused() -> None:
    problems, _ = load_problems(DataConfig(source="champ:Number-Theory"), lambda answers: [])
    assert {p.subject for p in problems} == {"Number-Theory"}
    assert len(problems) == SUBJECTS["Number-Theory"]
    with pytest.raises(DataError, match="there is no such part of CHAMP; write all, Combinatorics"):
        load_problems(DataConfig(source="champ:algebra"), lambda answers: [])
