"""CHAMP (Mao et al. 2024): competition problems with answers, as the package ``champ-dataset`` ships them.

The package holds 270 problems. Read are those whose answer is one number, one formula, yes or no; answers in words or
in several parts cannot be verified by comparison and are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources

from population.data.records import Row
from population.errors import DataError

PREFIX = "champ:"
ALL = "all"
CATEGORIES = ("Combinatorics", "Inequality", "Number-Theory", "Polynomial", "Sequence")
PACKAGE = "champ_dataset"
# The package's own loader also parses 70 MB of annotated model answers that are in the same file.
FILE = "dataset_files/v0.json"
# What the package puts before and after every formula.
MARK = "@@"

_NUMBER = re.compile(r"(-?\d+)(?: \w+)?(?: \([^@]*\))?")
_EQUALLY_A_NUMBER = re.compile(r".*, or equivalently (?:@@)?(-?\d+)(?:@@)?")
_ONE_FORMULA = re.compile(r"@@([^@]+)@@(?:, or (?:equivalently|approximately|an equivalent form such as) .*)?")
_SENTENCES = re.compile(
    r"(?P<value>\S+) is the only possible value"
    r"|(?:The limit exists and is equal to|The only possible value for the limit is) (?P<limit>.+)"
)
# Names of one letter, sqrt and binomials: no sums, no floors, no two values, no conditions.
_PLAIN_FORMULA = re.compile(r"(?:sqrt|C(?=\()|[a-zA-Z](?![a-zA-Z])|[0-9+\-*/^()! ]|, (?=[0-9a-z]+\)))+")
_LONG_EXPONENT = re.compile(r"\^(\d{2,})")
_CALLS = {"^": "^{%s}", "sqrt": r"\sqrt{%s}", "C": r"\binom{%s}{%s}"}


def champ_rows(source: str) -> Iterator[Row]:
    """Records with prompt, answer (LaTeX) and subject (the category), of all categories or the one that is named.

    Raises DataError for another name or where the package is missing.
    """
    wanted = source.removeprefix(PREFIX) or ALL
    if wanted not in (ALL, *CATEGORIES):
        raise DataError(
            f"{source}: there is no such part of CHAMP; write {', '.join((ALL, *CATEGORIES))} after {PREFIX}"
        )
    try:
        text = (resources.files(PACKAGE) / FILE).read_text(encoding="utf-8")
    except ModuleNotFoundError:
        raise DataError(f"{source}: needs the package champ-dataset; pip install champ-dataset") from None
    for name, problem in json.loads(text)["problems"].items():
        answer = checkable_answer(problem["_raw_answer"])
        if answer is not None and wanted in (ALL, problem["category"]):
            prompt = problem["_raw_text"].replace(MARK, "")
            yield {"prompt": prompt, "answer": answer, "subject": problem["category"]}, f"{source} {name}"


def checkable_answer(raw: str) -> str | None:
    """An answer of the package as one number, formula (LaTeX) or word; None where it is none of these."""
    if sentence := _SENTENCES.fullmatch(raw):
        raw = sentence["value"] or sentence["limit"]
    if raw in ("Yes", "No"):
        return raw
    for pattern in (_NUMBER, _EQUALLY_A_NUMBER):
        if number := pattern.fullmatch(raw):
            return number.group(1)
    formula = _ONE_FORMULA.fullmatch(raw)
    if formula is None or not _PLAIN_FORMULA.fullmatch(formula.group(1)):
        return None
    return _latex(_LONG_EXPONENT.sub(r"^(\1)", formula.group(1)))


def _latex(formula: str) -> str:
    """2^(n-1), sqrt(3)/2, C(n, 4) and 2*n as LaTeX."""
    text, position = "", 0
    while position < len(formula):
        name = next((name for name in _CALLS if formula.startswith(name + "(", position)), None)
        if name is None:
            text += r"\cdot " if formula[position] == "*" else formula[position]
            position += 1
            continue
        start = position + len(name) + 1
        end = _closing(formula, start)
        arguments = formula[start:end].split(", ") if name == "C" else [formula[start:end]]
        text += _CALLS[name] % tuple(_latex(argument) for argument in arguments)
        position = end + 1
    return text


def _closing(text: str, start: int) -> int:
    """The position of the bracket that closes the one before ``start``."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    raise DataError(f"{PREFIX} the formula {text!r} has an open bracket; install another release of champ-dataset")
