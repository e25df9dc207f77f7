"""What must hold for any number and any text."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from server.rewards.extract import canonical, find_answer, normalise
from server.rewards.rules import decide, parse_number
from server.rewards.symbolic import readable

fractions = st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**4)
# Pieces that our patterns look for, in any order and number.
PIECES = [
    *("\\boxed", "\\fbox{", "\\frac", "\\text{", "\\circ", "\\left(", "\\{", "\\", "{", "}", "$", "**", "(", "]", "["),
    *("answer is ", "answer:", "sqrt(", "pi", "x", "=", "_8", "^", "(A)", " ", "\n"),
    *("1", "2/3", ",", ".", "0", "%", "√", "²", "½", "−"),
]
texts = st.one_of(st.text(max_size=300), st.lists(st.sampled_from(PIECES), max_size=80).map("".join))


def spellings(value: Fraction) -> list[str]:
    whole, rest = divmod(abs(value), 1)
    sign = "-" if value < 0 else ""
    return [
        f"{value.numerator}/{value.denominator}",
        rf"\frac{{{value.numerator}}}{{{value.denominator}}}",
        rf"{sign}\dfrac{{{3 * abs(value.numerator)}}}{{{3 * value.denominator}}}",
        f"{sign}{whole} {rest.numerator}/{rest.denominator}",
        rf"x = {sign}{whole:,}\frac{{{rest.numerator}}}{{{rest.denominator}}}",
    ]


@given(fractions)
def test_every_spelling_of_a_number_is_that_number(value: Fraction) -> None:
    for gold in spellings(value)[:3]:
        for answer in spellings(value):
            assert decide(gold, rf"{answer}") in ((True, "number"), (True, "exact"))


@given(fractions, fractions)
def test_different_numbers_are_different(left: Fraction, right: Fraction) -> None:
    if left != right:
        assert all(decide(a, b) == (False, "number") for a, b in zip(spellings(left), spellings(right), strict=True))


@given(st.integers(-(10**30), 10**30))
def test_thousands_separators_change_nothing(number: int) -> None:
    parsed = parse_number(normalise(f"{number:,}"))
    assert parsed is not None
    assert parsed.value == number


@settings(max_examples=300)
@given(texts, texts)
def test_no_text_breaks_the_reading(gold: str, response: str) -> None:
    answer = find_answer(response)
    assert answer is None or (answer and answer in response)
    canonical(normalise(response))
    readable(normalise(response))
    verdict = decide(gold, answer or response)
    assert verdict is None or verdict[0] in (True, False)


@given(texts)
def test_an_answer_is_right_against_itself(answer: str) -> None:
    assert decide(answer, answer) == (True, "exact")
