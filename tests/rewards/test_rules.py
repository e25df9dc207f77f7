"""What reading alone decides, and what it leaves to the parser."""

from __future__ import annotations

from fractions import Fraction

import pytest

from server.rewards.rules import decide, needs_no_parser, parse_number

RIGHT = [
    ("4", "004"),
    ("1000000", "1,000,000"),
    ("1000000", "1 000 000"),
    ("0.5", r"\frac{1}{2}"),
    ("71/6", "11 5/6"),
    (r"\frac{8}{3}", r"2\frac{2}{3}"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    ("0.333333", r"\frac{1}{3}"),
    (r"0.\overline{3}", r"\frac{1}{3}"),
    ("10", r"10\%"),
    ("0.1", r"10\%"),
    (r"10\%", "10"),
    ("5", "x = 5"),
    ("x=5", "5"),
    ("5", r"5 \text{ cm}"),
    ("5", "5 apples"),
    ("90", "90°"),
    ("52_8", "52"),
    ("1011", "1011_2"),
    ("11", "1011_2"),
    (r"(1,\frac{9}{2})", "(1, 4.5)"),
    (r"\{1,2,3\}", r"\{3, 1, 2\}"),
    ("[0,0.333333]", r"[0,\frac13]"),
    ("A", r"\text{(A)}"),
    ("C", r"\textbf{(C)}\ 12"),
    (r"\text{Monday}", "monday"),
    ("A", "A. The sum of B and C"),
    ("C", "C. I and II"),
    ("A", "A) A ring"),
    ("12", "12 cm^2"),
    ("5", r"5^\circ \text{C}"),
    (r"60^\circ", r"60\text{ degrees}"),
    ("3 hours", "3 hr"),
    ("1,000,000", r"1\text{ million}"),
    ("24", "2 dozen"),
    (r"10:30 \text{ a.m.}", "10:30 AM"),
    (r"10:30 \text{ a.m.}", "10:30"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\[2pt] 2 \end{pmatrix}"),
]
WRONG = [
    ("2", "2 2/3"),
    ("-3", "3"),
    ("33.3", r"\frac{100}{3}"),
    ("0.123456", "0.123457"),
    ("0.0000001", "0.0000002"),
    (str(10**50), str(10**50 + 1)),
    (r"10\%", r"0.1\%"),
    ("10", "0.1"),
    ("52_8", "52_7"),
    ("52_8", "52_{40}"),
    ("X+1", "x+1"),
    ("C", "c"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "(1,2,3)"),
    (r"\{1,2\}", r"\{1,3\}"),
    ("A", "B"),
    (r"\text{even}", r"\text{odd}"),
    ("(1,2)", r"\{1,2\}"),
    ("5", "__import__('os')"),
    ("5", r"6\text{ million}"),
    ("500", "5 thousand"),
    ("A", "A or B"),
    ("A", "(A) (B)"),
    ("A", "A B"),
    ("A", r"A \text{ and } B"),
    ("5 cm", "5 m"),
    ("12 cm^2", "12 cm"),
    (r"60^\circ", r"60\text{ radians}"),
    (r"10:30 \text{ a.m.}", r"10:30 \text{ p.m.}"),
]
LEFT_TO_THE_PARSER = [
    ("x+1", "1+x"),
    ("xy", "yx"),
    ("(1,000)", "(1, 0)"),
    ("(1,x)", "(1, x+0)"),
    ("2", r"\sqrt{4}"),
    (r"5\text{ cm}", r"50\text{ mm}"),
    ("12", r"12 \text{ million}"),
    ("x=5", "y=5"),
    ("1", r"\frac{1}{0}"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_the_same_by_reading(gold: str, answer: str) -> None:
    assert decide(gold, answer) is not None
    assert decide(gold, answer)[0] is True  # type: ignore[index]


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_different_by_reading(gold: str, answer: str) -> None:
    assert decide(gold, answer) is not None
    assert decide(gold, answer)[0] is False  # type: ignore[index]


@pytest.mark.parametrize(("gold", "answer"), LEFT_TO_THE_PARSER)
def test_what_no_rule_is_sure_of_is_left_to_the_parser(gold: str, answer: str) -> None:
    assert decide(gold, answer) is None


def test_numbers_are_exact() -> None:
    number = parse_number("0.1")
    assert number is not None
    assert number.value == Fraction(1, 10)
    assert parse_number("1,000,000.5").value == Fraction(2_000_001, 2)  # type: ignore[union-attr]
    assert parse_number("x") is None
    assert parse_number(r"\frac{1}{0}") is None


@pytest.mark.parametrize(("gold", "plain"), [("42", True), (r"\text{even}", True), ("1011_2", True), ("x+1", False)])
def test_which_golds_need_a_parser(gold: str, plain: bool) -> None:
    assert needs_no_parser(gold) is plain
