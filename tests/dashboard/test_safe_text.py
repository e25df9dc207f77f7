"""Hostile text as Markdown: what is left is text. (That a browser agrees is tested in tests/browser.)"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import safe_text

ACTIVE = re.compile(r"(?<!\\)[<>\[\]!*_`~#|$&]|(?<!\\):")


def shown(markdown: str) -> str:
    """What the Markdown made by `plain` renders as."""
    text = markdown.replace("  \n", "\n").replace("\u2060", "").replace("\u00a0", " ")
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf"], exclude_characters="\u00a0\u2060"), max_size=80))
def test_plain_text_shows_exactly_itself_and_nothing_in_it_acts(text: str) -> None:
    markdown = safe_text.plain(text)
    assert shown(markdown) == text
    assert not ACTIVE.search(markdown)
    assert not re.search(r"(?i)https?\\:\\/|www\\\.|\w\\@\w", markdown)


@pytest.mark.parametrize(
    "text",
    [
        "http://a.b",
        "HTTPS://a.b",
        "www.a.b",
        "WWW.a.b",
        "x@a.b",
        "mailto:x@a.b",
        ":material/home:",
        ":smile:",
        "a -> b",
    ],
)
def test_what_is_recognised_after_unescaping_is_broken_up(text: str) -> None:
    assert "\u2060" in safe_text.plain(text)


def test_line_breaks_stay_and_indentation_makes_no_code_block() -> None:
    assert safe_text.plain("a\r\n    b") == "a  \n\u00a0\u00a0\u00a0\u00a0b"
    assert "\n" not in safe_text.inline("a\n\nb")


def test_control_and_reordering_characters_are_replaced() -> None:
    assert safe_text.plain("a\u202eb\x00") == "a�b�"


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("$x^2$", "$x^2$"),
        (r"\(a+b\)", "$a+b$"),
        (r"\[c\]", "\n\n$$\nc\n$$\n\n"),
        ("$$d$$", "\n\n$$\nd\n$$\n\n"),
        (r"so \boxed{\frac{1}{2}}", r"so $\boxed{\frac{1}{2}}$"),
        (r"$\$5$", r"$\text{\textdollar}5$"),
    ],
)
def test_every_way_to_write_a_formula_is_typeset(text: str, markdown: str) -> None:
    assert safe_text.math(text) == markdown


@pytest.mark.parametrize(
    "text", ["It costs $5 or $10 in all.", "$ a$", "$a $", "$", "$$", r"\boxed{open", r"\( a", "$x\n\ny$"]
)
def test_dollars_that_are_money_or_never_close_stay_text(text: str) -> None:
    assert "$" not in re.sub(r"\\\$", "", safe_text.math(text))


@pytest.mark.parametrize(
    "command",
    [
        r"\href{http://e.invalid}{x}", r"\url{http://e.invalid}", r"\includegraphics{http://e.invalid/x.png}",
        r"\htmlStyle{position:fixed}{x}", r"\class{a}{x}", r"\rule{900em}{900em}", r"\def\a{\a\a}\a", r"\gdef\a{b}",
        r"\newcommand{\a}{b}", r"\let\a\b", r"\hspace{900em}", r"\kern900em", r"\raisebox{900em}{x}", r"x\\[900em]y",
        r"\tag{1}", r"\verb|x|", r"\llap{✓ reward 1}", r"\mathrlap{x}", r"\smash{x}",
    ],
)  # fmt: skip
def test_formulas_that_load_link_define_or_move_are_shown_as_source(command: str) -> None:
    markdown = safe_text.math(f"${command}$")
    assert shown(markdown) == f"${command}$" or not re.search(r"(?<!\\)\$", markdown)


def test_money_does_not_swallow_a_later_formula() -> None:
    text = "It costs $5 per trial and $10 in total. Hence $x^2$."
    assert safe_text.math(text) == safe_text.plain(text[:46]) + "$x^2$" + safe_text.plain(text[51:])


def test_indentation_behind_a_formula_on_its_own_lines_makes_no_code_block() -> None:
    assert safe_text.math("$$x$$    so") == "\n\n$$\nx\n$$\n\n\u00a0\u00a0\u00a0\u00a0so"


def test_unbalanced_formulas_are_shown_as_source() -> None:
    assert safe_text.math("$}$") == r"\$\}\$"
    assert safe_text.math(r"$\frac{1$") == safe_text.plain(r"$\frac{1$")


def test_long_text_is_cut_between_formulas_and_says_by_how_much() -> None:
    text = "ab $x+y$ cd"
    assert safe_text.math(text, 5) == "ab " + " … *(8 more characters)*"
    assert safe_text.math(text, 9) == "ab $x+y$ " + " … *(2 more characters)*"
    assert safe_text.math(text, 11) == safe_text.math(text)


def test_table_cells_keep_display_formulas_on_the_line() -> None:
    assert safe_text.math_line("a\n$$b$$ c \\[d\\]") == "a $b$ c $d$"


def test_adversarial_text_takes_linear_time() -> None:
    for text in ("$" * 20_000, "\\boxed{" * 5_000, "\\(" * 10_000, "$a " * 10_000, "{" * 20_000, "\\[" * 10_000):
        safe_text.math(text)
