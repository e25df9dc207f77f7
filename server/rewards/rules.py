r"""What can be decided about (gold, answer) by reading alone: words, letters, numbers, bases. Never floats.

Every rule is either sure or silent; what no rule is sure of goes to math-verify (symbolic.py) in a worker process.
The rules also stand before math-verify where it errs: it reads 2 2/3 as 2, drops base suffixes and lowercases symbols.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from server.rewards.extract import canonical, normalise

VERIFIER_VERSION = "2/math-verify-0.9.0"


@lru_cache(maxsize=65536)
def decide(gold: str, answer: str) -> tuple[bool, str] | None:
    """(right, which rule) where reading suffices, None where an expression must be understood.

    Both are answers as written (no box). An empty gold is the caller's to refuse.
    """
    if gold == answer:
        return True, "exact"
    if gold.isdigit() and answer.isdigit() and gold.isascii() and answer.isascii():
        return gold.lstrip("0") == answer.lstrip("0"), "integer"
    left, right = normalise(gold), normalise(answer)
    if canonical(left) == canonical(right):
        return True, "exact"
    if "__" in right:
        return False, "no mathematics holds a double underscore"
    left, right = without_assignment(left, right)
    for name, rule in _RULES:
        verdict = rule(left, right)
        if verdict is not None:
            return verdict, name
    return None


def needs_no_parser(gold: str) -> bool:
    """Whether `gold` is a number, a word or a letter, which every answer can be held against without a parser."""
    text = normalise(gold)
    return parse_number(text) is not None or _WORDS.fullmatch(text) is not None or _base_numeral(text) is not None


_ASSIGNMENT = re.compile(r"([A-Za-z](?:_\{?\w+\}?)?(?:\([A-Za-z]\))?) ?= ?(?!.*=)(.+)", re.DOTALL)


def without_assignment(gold: str, answer: str) -> tuple[str, str]:
    """`x = 5` held against `5` or against `x = 5` is `5`; two different names are left as they are."""
    left, right = _ASSIGNMENT.fullmatch(gold), _ASSIGNMENT.fullmatch(answer)
    if left and right and left[1] != right[1]:
        return gold, answer
    if left and (right or "=" not in answer):
        gold = left[2]
    if right and (left or "=" not in gold):
        answer = right[2]
    return gold, answer


# --- words and letters -----------------------------------------------------------------------------------------------

_WORDS = re.compile(r"[A-Za-z](?:[A-Za-z '\-]*[A-Za-z])?")
_CHOICE = re.compile(r"\(([A-Z])\)(?:[ .:].*)?|([A-Z])[.):]?(?: .*)?", re.DOTALL)
# A second letter right behind the first: (A) or (B), A B; but not the text of a choice: C. I and II, A) A ring.
_HEDGE = re.compile(
    r"\(?[A-Z][.):]? ?(?:(?:,|/|&|\\(?:cup|lor|land)\b|or\b|and\b) ?\(?[A-Z](?![A-Za-z])|\([A-Z]\)|[A-Z]$)"
)
_CHOICE_GOLD = re.compile(r"\(([A-Z])\)|([A-Z])")


def _choice(gold: str, answer: str) -> bool | None:
    letter = _CHOICE_GOLD.fullmatch(gold)
    written = " ".join(re.sub(r"\\text\{([^{}]*)\}", r"\1", answer).split())
    found = _CHOICE.fullmatch(written)
    if letter is None or found is None:
        return None
    return _HEDGE.match(written) is None and (letter[1] or letter[2]) == (found[1] or found[2])


def _words(gold: str, answer: str) -> bool | None:
    if not (_WORDS.fullmatch(gold) and _WORDS.fullmatch(answer)):
        return None
    if gold == answer:
        return True
    if len(gold) == 1 or len(answer) == 1:
        return False
    if gold[0].lower() + gold[1:] == answer[0].lower() + answer[1:] or (
        len(gold) > 3 and gold.casefold() == answer.casefold()
    ):
        return True
    # xy and yx are one product; letters that differ are neither one word nor one product.
    return None if sorted(gold.replace(" ", "")) == sorted(answer.replace(" ", "")) else False


_NOT_SYMBOLS = re.compile(r"\\text\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z]{4,}|sin|cos|tan|log|ln|exp")


def _symbol_case(gold: str, answer: str) -> bool | None:
    """False where a symbol stands in the other case only: X + 1 is not x + 1. (i and e are left to the parser.)"""
    left = set(re.findall(r"[A-Za-z]", _NOT_SYMBOLS.sub(" ", gold))) - set("iIeE")
    right = set(re.findall(r"[A-Za-z]", _NOT_SYMBOLS.sub(" ", answer))) - set("iIeE")
    conflict = any(c not in left and c.swapcase() in left and c.swapcase() not in right for c in right)
    return False if conflict else None


_LISTED = re.compile(r"(\(|\[|\\\{)([^()\[\]{}]*(?:\\frac ?\{[^{}]*\} ?\{[^{}]*\}[^()\[\]{}]*)*)(\)|\]|\\\})")
_MAYBE_THOUSANDS = re.compile(r"\d,\d{3}(?!\d)")


def _number_lists(gold: str, answer: str) -> bool | None:
    """Tuples, intervals and sets of plain numbers in the same brackets: in order, or in any order for sets."""
    left, right = _LISTED.fullmatch(gold), _LISTED.fullmatch(answer)
    if left is None or right is None or (left[1], left[3]) != (right[1], right[3]):
        return None
    if _MAYBE_THOUSANDS.search(left[2]) or _MAYBE_THOUSANDS.search(right[2]):
        return None
    golds = [parse_number(item.strip()) for item in left[2].split(",")]
    answers = [parse_number(item.strip()) for item in right[2].split(",")]
    plain = [number for number in golds + answers if number is not None and not (number.percent or number.unit)]
    if len(plain) < len(golds) + len(answers):
        return None
    given, found = plain[: len(golds)], plain[len(golds) :]
    if left[1] == r"\{":
        # A rounded member may still match, which the parser sees to.
        rounded = any(number.places is not None and number.places >= ROUNDED_PLACES for number in plain)
        return None if rounded else {n.value for n in given} == {n.value for n in found}
    return len(given) == len(found) and all(map(_same_value, given, found))


_TUPLE = re.compile(r"[(\[][^()\[\]{}]*,[^()\[\]{}]*[)\]]")
_SET = re.compile(r"\\\{[^()\[\]{}]*,[^()\[\]{}]*\\\}")


def _brackets(gold: str, answer: str) -> bool | None:
    """False for a pair or an interval against a set in braces, which math-verify takes for the same."""
    mixed = (_TUPLE.fullmatch(gold) and _SET.fullmatch(answer)) or (_SET.fullmatch(gold) and _TUPLE.fullmatch(answer))
    return False if mixed else None


# --- numerals in a base ----------------------------------------------------------------------------------------------

_BASE = re.compile(r"([0-9A-Z ]+?) ?_ ?(?:\{ ?(?:\\text\{)?(\d{1,2})\}? ?\}|(\d{1,2}))")


def _base_numeral(text: str) -> tuple[str, int] | None:
    """(digits, base) of 1011_2, BEEF_{16}; None where it is none (also x_2, which is a subscript)."""
    match = _BASE.fullmatch(text)
    if match is None:
        return None
    digits, base = match[1].replace(" ", ""), int(match[2] or match[3])
    if not 2 <= base <= 36 or not any(c.isdigit() for c in digits) or any(int(c, 36) >= base for c in digits):
        return None
    return digits.lstrip("0") or "0", base


def _bases(gold: str, answer: str) -> bool | None:
    """A base that is written must be the gold's; where one side leaves it out, the digits decide."""
    left, right = _base_numeral(gold), _base_numeral(answer)
    if left and right:
        return left == right
    if left and "_" in answer:
        return False
    if left:
        return (answer.replace(" ", "").lstrip("0") or "0") == left[0] if answer.replace(" ", "").isalnum() else None
    if right:
        number = parse_number(gold)
        if number is None:
            return None
        return (gold.lstrip("0") or "0") == right[0] or number.value == int(right[0], right[1])
    return None


# --- numbers ---------------------------------------------------------------------------------------------------------

# A decimal with at least so many places that show so many digits may be a rounding of the exact value.
ROUNDED_PLACES = 6
ROUNDED_DIGITS = 4
_NOT_UNITS = ("base", "percent", "sqrt", "or", "and")
_SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# The spellings of one unit a row: 5 cm is not 5 m, 60 degrees are not 60 radians.
_SPELLINGS_OF_UNITS = (
    "mm millimeter millimeters", "cm centimeter centimeters", "m meter meters", "km kilometer kilometers",
    "in inch inches", "ft foot feet", "yd yard yards", "mi mile miles", "mg milligram milligrams", "g gram grams",
    "kg kilogram kilograms", "ml milliliter milliliters", "liter liters", "sec second seconds",
    "min minute minutes", "hr hrs hour hours", "day days", "week weeks", "month months", "year years",
    "circ degree degrees", "rad radian radians", "cent cents", "dollar dollars",
)  # fmt: skip
_UNITS = {word: row.split()[0] for row in _SPELLINGS_OF_UNITS for word in row.split()}
_SHORT_UNIT = r"(?:[mck]?m|m?g|kg|m[lL]|in|ft|yd|mi|sec|min|hrs?|rad)(?:\^(?:[23]|\{[23]\}))?(?![A-Za-z^])"

_INT = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?) ?(?:"
    rf"(?P<decimal>{_INT}\.\d+)"
    r"|(?P<fixed>\d*\.\d*) ?\\(?:overline|bar) ?\{ ?(?P<period>\d+) ?\}"
    rf"|(?:(?P<whole>{_INT}) ?)?\\frac ?\{{ ?(?P<top>-?{_INT}) ?\}} ?\{{ ?(?P<bottom>-?{_INT}) ?\}}"
    rf"|(?:(?P<whole2>\d+) )?(?P<top2>{_INT}) ?/ ?(?P<bottom2>{_INT})"
    rf"|\(?(?P<sign3>-?)(?P<top3>{_INT})\)?/\(?(?P<bottom3>{_INT})\)?"
    rf"|(?P<integer>{_INT})"
    rf")(?P<percent> ?\\%| percent)?"
    r"(?P<unit> ?\^\\circ(?: ?(?:[CF]|\\text\{ ?[CF]\}))?| ?\\text\{[^{}]*\}(?:\^\{?\d\}?)?"
    rf"| {_SHORT_UNIT}"
    r"| (?=[A-Za-z]{4})[A-Za-z]*[aeiou][A-Za-z]*(?: [A-Za-z]{2,})*)?"
)


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number written out: its exact value, the places after its point (None: no point), and what follows it.

    `scale` is that of a word such as million, already in the value.
    """

    value: Fraction
    places: int | None
    percent: bool
    unit: str
    scale: int = 1


@lru_cache(maxsize=65536)
def parse_number(text: str) -> PlainNumber | None:
    """A normalised text as a number: integers (1,000,000), decimals, fractions, mixed (2 2/3), percent, with a unit."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    unit = (match["unit"] or "").strip()
    words = re.findall("[a-z]+", unit.lower().removeprefix(r"\text").replace("illions", "illion"))
    if any(word in _NOT_UNITS for word in words):
        return None
    value, places = _value(match)
    if value is None:
        return None
    scale = _SCALES.get(words[0], 1) if words else 1
    if scale > 1:
        unit, places = " ".join(words[1:]), None
    value *= -scale if match["sign"] == "-" else scale
    return PlainNumber(value, places, match["percent"] is not None, unit, scale)


def _value(match: re.Match[str]) -> tuple[Fraction | None, int | None]:
    """The unsigned value and its places; (None, None) for a zero denominator and for an ambiguous mixed number."""
    if match["integer"]:
        return Fraction(_integer(match["integer"])), None
    if match["decimal"]:
        text = match["decimal"].replace(",", "").replace(" ", "")
        return Fraction(text), len(text.partition(".")[2])
    if match["period"]:
        fixed, period = match["fixed"] + "0", match["period"]
        places = len(fixed.partition(".")[2]) - 1
        return Fraction(fixed) + Fraction(int(period), (10 ** len(period) - 1) * 10**places), None
    for suffix in ("", "2", "3"):
        if match[f"top{suffix}"] is None:
            continue
        top, bottom = _integer(match[f"top{suffix}"]), _integer(match[f"bottom{suffix}"])
        whole = match[f"whole{suffix}"] if suffix != "3" else None
        if bottom == 0 or (whole is not None and (top < 0 or bottom < 0)):
            return None, None
        sign = -1 if suffix == "3" and match["sign3"] else 1
        return sign * (Fraction(top, bottom) + (_integer(whole) if whole else 0)), None
    return None, None


def _integer(text: str) -> int:
    return int(text.replace(",", "").replace(" ", ""))


def _numbers(gold: str, answer: str) -> bool | None:
    left, right = parse_number(gold), parse_number(answer)
    if left is None or right is None:
        return None
    if left.unit and right.unit and left.unit != right.unit:
        units = _known_unit(left.unit), _known_unit(right.unit)
        if None in units:
            return None
        if units[0] != units[1]:
            # Equal digits in another unit are wrong; whether 5 cm is 50 mm is not ours to say.
            return False if left.value == right.value else None
    if left.scale != right.scale:
        if left.value == right.value:
            return True
        # The question may ask for millions: whether 12 million is 12 is not ours to say.
        return None if left.value / left.scale == right.value / right.scale else False
    if left.percent == right.percent:
        return _same_value(left, right)
    # 10 % is accepted for a gold of 10 and for a gold of 0.1, and both are accepted for a gold of 10 %.
    percent, plain = (left, right) if left.percent else (right, left)
    return plain.value in (percent.value, percent.value / 100)


def _known_unit(unit: str) -> str | None:
    """The unit's first spelling with its power; None for one that the table lacks or that is composed."""
    words = re.findall("[a-z]+", unit.lower().replace(r"\text", ""))
    if len(words) != 1 or words[0] not in _UNITS:
        return None
    return _UNITS[words[0]] + "".join(re.findall(r"\d", unit))


_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?: ?(?:\\text\{ ?)?([AaPp])\.? ?[Mm]\.?\}?)?")


def _clock(gold: str, answer: str) -> bool | None:
    """Times of day, at least one with a.m. or p.m.: the same hour, minute and, where both say it, half of the day."""
    left, right = _CLOCK.fullmatch(gold), _CLOCK.fullmatch(answer)
    if left is None or right is None or not (left[3] or right[3]):
        return None
    halves = {half.lower() for half in (left[3], right[3]) if half}
    return int(left[1]) == int(right[1]) and left[2] == right[2] and len(halves) == 1


def _same_value(left: PlainNumber, right: PlainNumber) -> bool:
    if left.value == right.value:
        return True
    return _is_rounding(left, right.value) or _is_rounding(right, left.value)


def _is_rounding(number: PlainNumber, exact: Fraction) -> bool:
    """Whether `number` is a long decimal, and `exact` rounds to it: 0.333333 and 1/3, but not 33.3 and 100/3."""
    if number.places is None or number.places < ROUNDED_PLACES:
        return False
    scaled = abs(number.value) * 10**number.places
    return scaled >= 10 ** (ROUNDED_DIGITS - 1) and abs(number.value - exact) * 10**number.places <= Fraction(1, 2)


_RULES: tuple[tuple[str, Callable[[str, str], bool | None]], ...] = (
    ("number", _numbers),
    ("clock", _clock),
    ("base", _bases),
    ("choice", _choice),
    ("words", _words),
    ("number list", _number_lists),
    ("brackets", _brackets),
    ("symbol case", _symbol_case),
)
