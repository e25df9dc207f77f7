"""Comparing expressions with math-verify; imported by worker processes only (0.9 s of imports, and it may hang)."""

from __future__ import annotations

import random
import re
from functools import lru_cache
from typing import Any

import sympy
from math_verify import LatexExtractionConfig, parse, verify

from server.rewards.extract import normalise
from server.rewards.rules import without_assignment

# The box alone: with the other patterns an unreadable box would be searched for any number in it. The plain-expression
# pattern is left out too, it is the one that reaches sympy's eval.
_CONFIG = [LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0)]
# At the default 15 digits 1/2^99 equals 1/2^98: the difference is below what is chopped to zero.
NUMERIC_PRECISION = 50
# Two exact constants that differ by more than this share of the larger one are different.
RELATIVE_GAP = 1e-9

_PLAIN_FUNCTION = re.compile(
    r"\\text\{[^{}]*\}|(?<![\\A-Za-z])(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|infty)"
    r"(?![A-Za-z])"
)
_PLAIN_SQRT = re.compile(r"(?<![\\A-Za-z])sqrt(?:\(([^()]*)\)|(?=\{))")
_MIXED = re.compile(r"(?<![\d.}\w^_])(\d+) (\d+) ?/ ?(\d+)(?![\d.])")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?: \d{3})+(?![\d.])")
# math-verify sees an imaginary unit only where it stands alone: 14-1i is read as the variable i.
_GLUED_UNIT = re.compile(r"(?<=\d)i(?![A-Za-z])")


class UnreadableGold(ValueError):
    """The reference answer is not an expression the parser understands."""


def readable(text: str) -> str:
    """A normalised answer as LaTeX that math-verify reads the way it was meant."""
    text = _PLAIN_FUNCTION.sub(lambda m: rf"\{m[1]} " if m[1] else m[0], text)
    text = _PLAIN_SQRT.sub(lambda m: rf"\sqrt{{{m[1]}}}" if m[1] is not None else r"\sqrt", text)
    text = _MIXED.sub(r"(\1+\\frac{\2}{\3})", text)
    text = _SPACED_THOUSANDS.sub(lambda m: m[0].replace(" ", ""), text)
    return _GLUED_UNIT.sub(" i", text)


def parse_answer(text: str) -> list[Any]:
    """math-verify's reading of a normalised answer: [expression, string], [string] or [] where it cannot."""
    return parse(
        rf"\boxed{{{readable(text)}}}", extraction_config=_CONFIG, extraction_mode="first_match", parsing_timeout=None
    )


@lru_cache(maxsize=4096)
def parse_gold(text: str) -> tuple[Any, ...]:
    """As `parse_answer`, remembered; UnreadableGold where no expression comes out."""
    parsed = tuple(parse_answer(text))
    if not any(not isinstance(item, str) for item in parsed):
        raise UnreadableGold(f"the reference answer {text!r} cannot be read as mathematics")
    return parsed


def gold_is_readable(gold: str) -> bool:
    """Whether `gold`, as written, can be graded against."""
    try:
        parse_gold(normalise(gold))
    except UnreadableGold:
        return False
    return True


def equivalent(gold: str, answer: str) -> bool:
    """Whether two answers as written mean the same, gold first (the comparison is not symmetric).

    Raises UnreadableGold. May take for ever and any amount of memory: the caller bounds both.
    """
    left, right = without_assignment(normalise(gold), normalise(answer))
    parsed_gold, parsed = list(parse_gold(left)), parse_answer(right)
    if not parsed:
        return False
    expression, candidate = parsed_gold[0], parsed[0]
    if isinstance(candidate, str):
        return _verify(parsed_gold, parsed, False)
    if _differ_clearly(expression, candidate):
        return False
    if _verify(parsed_gold, parsed, True):
        return True
    if isinstance(expression, sympy.Set) and _verify(parsed_gold, parsed, False):
        return True
    return _same_region(expression, candidate) or _agree_where_real(expression, candidate)


def _same_region(gold: Any, answer: Any) -> bool:
    """Whether a set and inequalities joined by "or" (read as a set of relations) are the same part of the real line."""
    regions = [_region(side) for side in (gold, answer)]
    return None not in regions and regions[0] == regions[1]


def _region(side: Any) -> Any | None:
    relations = side.args if isinstance(side, sympy.FiniteSet) else ()
    if relations and all(isinstance(item, sympy.core.relational.Relational) for item in relations):
        if any(isinstance(item, sympy.Eq) for item in relations):
            return None
        try:
            return sympy.Union(*(item.as_set() for item in relations))
        except (NotImplementedError, ValueError, TypeError, AttributeError):
            return None
    return side if isinstance(side, sympy.Set) else None


def _verify(gold: list[Any], answer: list[Any], allow_set_relation_comp: bool) -> bool:
    return verify(
        gold,
        answer,
        numeric_precision=NUMERIC_PRECISION,
        allow_set_relation_comp=allow_set_relation_comp,
        timeout_seconds=None,
    )


def _value(expression: Any) -> Any | None:
    """A closed-form constant as a number with 20 sure digits; None for anything else, zero included."""
    if not isinstance(expression, sympy.Expr) or expression.free_symbols or expression.has(sympy.Float):
        return None
    # 10 % is 10 * UnevaluatedExpr(1/100) and counts as 10 too, so its value settles nothing.
    if expression.has(sympy.UnevaluatedExpr):
        return None
    value = sympy.N(expression, 20)
    parts = value.as_real_imag()
    if not all(part.is_Float or part.is_zero for part in parts) or not any(_sure(part) for part in parts):
        return None
    return value if all(_sure(part) or part.is_zero for part in parts) else None


def _sure(part: Any) -> bool:
    # A sum that cancels to nothing comes back with a precision of 1 bit.
    return bool(part.is_Float and part != 0 and part._prec > 30)


def _differ_clearly(gold: Any, answer: Any) -> bool:
    """True for two constants a billionth or more apart, measured against the larger, so that small values count too."""
    try:
        left, right = _value(gold), _value(answer)
        if left is None or right is None:
            return False
        return bool(abs(left - right) > RELATIVE_GAP * max(abs(left), abs(right)))
    except (ArithmeticError, TypeError, ValueError, AttributeError, NotImplementedError):
        return False  # not a pair of numbers after all: left to math-verify


def _agree_where_real(gold: Any, answer: Any) -> bool:
    """Whether two formulas in the same symbols take the same values wherever both are real: sqrt(1/n) and 1/sqrt(n).

    The symbol i is the imaginary unit here, so that constants such as e^{i pi} are compared as well.
    """
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)):
        return False
    try:
        left, right = _with_imaginary_unit(gold), _with_imaginary_unit(answer)
        names = sorted(left.free_symbols, key=str)
        if left.free_symbols != right.free_symbols or left.has(sympy.Float) or right.has(sympy.Float):
            return False
        if not names:
            return _same_number(left, right)
        return _agree_at_points(left, right, names)
    except (ArithmeticError, TypeError, ValueError, AttributeError, NotImplementedError):
        return False


def _with_imaginary_unit(expression: Any) -> Any:
    units = {symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"}
    return expression.subs(units) if units else expression


def _same_number(left: Any, right: Any) -> bool:
    if left.is_rational and right.is_rational:
        return bool(left == right)
    left, right = sympy.N(left, 40), sympy.N(right, 40)
    # 12:00 and 1:00 are both a division by zero, which is no number.
    if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
        return False
    return bool(abs(left - right) <= 1e-30 * max(abs(left), abs(right)))


def _agree_at_points(left: Any, right: Any, names: list[Any], *, wanted: int = 4, tries: int = 12) -> bool:
    """Agreement to 30 digits at `wanted` seeded rational points where both sides are real; the first gap ends it."""
    source, met = random.Random(0), 0
    for attempt in range(tries):
        sign = 1 if attempt % 2 == 0 else -1
        point = {name: sign * sympy.Rational(source.randint(10, 400), 97) for name in names}
        a, b = sympy.N(left.subs(point), 40), sympy.N(right.subs(point), 40)
        if not (a.is_real and b.is_real and a.is_finite and b.is_finite):
            continue
        if not abs(a - b) <= 1e-30 * max(abs(a), abs(b)):
            return False
        met += 1
        if met == wanted:
            return True
    return False
