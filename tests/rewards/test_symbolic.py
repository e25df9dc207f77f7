"""Expressions: math-verify with our reading before it and our checks around it. None of these hangs."""

from __future__ import annotations

import pytest

from server.rewards.symbolic import UnreadableGold, equivalent, gold_is_readable

SAME = [
    ("[0,1]", r"0 \le x \le 1"),
    (r"0 \le x \le 1", "[0,1]"),
    (r"(-\infty,1)\cup(2,\infty)", r"x<1 \text{ or } x>2"),
    (r"\sqrt{\frac{1}{n}}", r"\frac{1}{\sqrt{n}}"),
    ("14-i", "14 - 1.0i"),
    ("-1", r"e^{i\pi}"),
    (r"1+\sqrt{2}", r"\sqrt{3+2\sqrt{2}}"),
    (r"\sin x", "sin(x)"),
    (r"\frac{\pi}{2}", "pi/2"),
    (r"2\sqrt{3}", "2*sqrt(3)"),
    (r"\sqrt{2}", "1.414214"),
    ("x+1", "f(x) = 1 + x"),
    (r"|x|", r"\sqrt{x^2}"),
    ("0.001", "1e-3"),
    ("1500", "1.5e3"),
    ("2e-1", "-1+2e"),
]
DIFFERENT = [
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    ("10^{50}", "10^{50}+1"),
    ("x", r"\sqrt{x^2}"),
    (r"\pi", "3.14"),
    ("3x-y+13=0", "3x+4y+14=0"),
    ("12:00", "1:00"),
    ("5", "no such 5 ; answer"),
    ("5", "5, 6"),
    ("x+1", "x+2"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_expressions_that_mean_the_same(gold: str, answer: str) -> None:
    assert equivalent(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_expressions_that_differ(gold: str, answer: str) -> None:
    assert not equivalent(gold, answer)


def test_the_gold_stands_first() -> None:
    assert equivalent("9", "2x+3=9")
    assert not equivalent("2x+3=9", "9")


def test_a_gold_that_is_no_mathematics_is_named() -> None:
    assert not gold_is_readable(r"\foo{3} ;; #")
    with pytest.raises(UnreadableGold, match="foo"):
        equivalent(r"\foo{3} ;; #", "x")
