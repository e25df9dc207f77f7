"""Finding the final answer in a response."""

from __future__ import annotations

import pytest

from server.rewards import VerdictCode, grade
from server.rewards.extract import MAX_ANSWER_CHARACTERS, canonical, find_answer, normalise


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"so \boxed{12}, no: \boxed{840}.", "840"),
        (r"\fbox{7}", "7"),
        (r"\boxed 5 is it", "5"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{x = \boxed{5}} done", r"x = \boxed{5}"),
        ("The answer is 3.5 dollars. I am sure", "3.5 dollars"),
        ("Final Answer: **73**", "73"),
        ("**Answer:** 42", "42"),
        ("The final answer is $\\frac{1}{2}$, as shown", r"\frac{1}{2}"),
        ("The answer is 4. No, the answer is 5.", "5"),
        ("The answer is $5$ or $6$.", "$5$ or $6$"),
        ("The answer is $5$, not $6$.", "5"),
        ("we get **12**.", "12"),
    ],
)
def test_the_last_answer_is_found(response: str, answer: str) -> None:
    assert find_answer(response) == answer


@pytest.mark.parametrize(
    "response",
    [
        "",
        "no number here",
        "it must be 5",
        r"\boxed{7} wait, \boxed{8",
        r"\boxed{}",
        "the answer is ",
    ],
)
def test_no_answer_is_invented(response: str) -> None:
    assert find_answer(response) is None


def test_a_box_beats_what_follows_it() -> None:
    assert find_answer(r"\boxed{x}. The answer is 42") == "x"


def test_the_fallback_reads_only_the_end_of_the_response() -> None:
    assert find_answer("The answer is 5." + " word" * 200) is None


def test_a_long_response_is_graded_by_its_last_box() -> None:
    response = "so we get $x$ and $y=3$ then " * 3500 + r"\boxed{5}"
    assert [v.code for v in grade([("5", response)])] == [VerdictCode.RIGHT]


def test_an_answer_over_the_cap_is_too_long_and_shown_cut() -> None:
    (verdict,) = grade([("5", r"\boxed{" + "7" * 1000 + "}")])
    assert verdict.code is VerdictCode.TOO_LONG
    assert verdict.extracted == "7" * MAX_ANSWER_CHARACTERS
    assert verdict.graded
    assert verdict.reward == 0.0


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("√2", r"\sqrt{2}"),
        ("x²", "x^{2}"),
        ("3 × 4", r"3 \times 4"),
        ("−5", "-5"),
        ("２", "2"),  # noqa: RUF001
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\left( 1, 2 \right)", "( 1, 2 )"),
        (r"\text{13}", "13"),
        (r"10\,000", "10000"),
        (r"\$18.50", "18.5"),
        (r"90^{\circ}", r"90^\circ"),
        ("{14}", "14"),
        ("1.0", "1"),
        ("10.50", "10.5"),
        ("100", "100"),
        ("2 2/3", "2 2/3"),
    ],
)
def test_one_spelling(written: str, normal: str) -> None:
    assert normalise(written) == normal


def test_canonical_keeps_the_space_of_a_mixed_number() -> None:
    assert canonical("2 2/3") == "2 2/3"
    assert canonical("( 1, x^{2} )") == "(1,x^2)"
