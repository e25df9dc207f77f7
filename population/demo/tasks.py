"""The task suite of the embedded demo: what to do with a list of three or four distinct digits.

A prompt names a procedure with one word and lists the digits (`mirror 4 1 7?`). There are six procedures with three
wordings each. The canonical wording is the procedure's own name; it is used by the warm start alone. The two
ambiguous wordings are what the population trains and is evaluated on: to read one is to choose a procedure, and that
choice, not carrying it out, is what the members fail at. A response restates the operands, shows its trace and boxes
the answer (`rev 4 1 7: 7,1,4 so \\boxed{714}`). It is long on purpose: of some 25 tokens only the first one decides,
so that a peer's right response stays likely enough to pass the compatibility floor.

Problems list only digits on which no other procedure has the same answer: a misread wording is never rewarded by luck.

Every function is pure: the same arguments give the same problems on every machine.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Split = Literal["training", "heldout"]

DIGITS = range(1, 10)
LEVELS = (1, 2)
HELD_OUT_ONE_IN = 8

WORDINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sort": ("sort", "order", "rank"),
        "desc": ("desc", "fall", "drop"),
        "rev": ("rev", "flip", "mirror"),
        "evens": ("evens", "paired", "twos"),
        "max": ("max", "top", "peak"),
        "min": ("min", "low", "least"),
    }
)
"""Procedure -> its wordings, the canonical one (the procedure's own name) first."""

PROCEDURES = tuple(WORDINGS)


@dataclass(frozen=True, slots=True)
class Problem:
    """One verifiable problem: `answer` is the integer that a right response boxes, `subject` is `procedure/wording`."""

    prompt: str
    answer: str
    subject: str
    level: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One wording at one level: the unit that the suite is balanced over. Level 1 lists three digits, level 2 four."""

    procedure: str
    wording: str
    level: int

    @property
    def canonical(self) -> bool:
        return self.wording == self.procedure

    @property
    def subject(self) -> str:
        return f"{self.procedure}/{self.wording}"


CELLS = tuple(Cell(p, wording, level) for p, wordings in WORDINGS.items() for wording in wordings for level in LEVELS)
AMBIGUOUS_CELLS = tuple(cell for cell in CELLS if not cell.canonical)


def solve(procedure: str, digits: tuple[int, ...]) -> tuple[str, str]:
    """The trace and the answer of a procedure on a list of digits; ValueError for an unknown procedure."""
    match procedure:
        case "sort" | "desc" | "rev":
            result = digits[::-1] if procedure == "rev" else tuple(sorted(digits, reverse=procedure == "desc"))
            return ",".join(map(str, result)), "".join(map(str, result))
        case "evens":
            counts = itertools.accumulate(1 - digit % 2 for digit in digits)
            trace = [f"{digit}{'o' if digit % 2 else 'e'}{count}" for digit, count in zip(digits, counts, strict=True)]
            return ",".join(trace), trace[-1][-1]
        case "max" | "min":
            best = list(itertools.accumulate(digits, max if procedure == "max" else min))
            trace = [f"{digit}:{held}" for digit, held in zip(digits[1:], best[1:], strict=True)]
            return ",".join(trace), str(best[-1])
    raise ValueError(f"no procedure {procedure!r} in the demo suite; it has {', '.join(PROCEDURES)}")


def prompt_text(wording: str, digits: tuple[int, ...]) -> str:
    return f"{wording} {' '.join(map(str, digits))}?"


def response_text(procedure: str, digits: tuple[int, ...]) -> str:
    """The response of somebody who reads the prompt as `procedure` and carries it out without a slip."""
    trace, answer = solve(procedure, digits)
    return f"{procedure} {' '.join(map(str, digits))}: {trace} so \\boxed{{{answer}}}"


def is_held_out(prompt: str) -> bool:
    """Whether a prompt belongs to the evaluation: decided by its text alone, so no list has to be kept."""
    return zlib.crc32(prompt.encode()) % HELD_OUT_ONE_IN == 0


def operand_lists(cell: Cell, split: Split) -> list[tuple[int, ...]]:
    """Every list of distinct digits that a cell has on one side of the split, in lexicographic order."""
    held_out = split == "heldout"
    lists = itertools.permutations(DIGITS, cell.level + 2)
    return [digits for digits in lists if is_held_out(prompt_text(cell.wording, digits)) == held_out]


def tells_apart(procedure: str, digits: tuple[int, ...]) -> bool:
    """Whether the answer gives the procedure away: no other procedure has the same one on these digits."""
    answer = solve(procedure, digits)[1]
    return all(solve(other, digits)[1] != answer for other in PROCEDURES if other != procedure)


def problem(cell: Cell, digits: tuple[int, ...]) -> Problem:
    return Problem(prompt_text(cell.wording, digits), solve(cell.procedure, digits)[1], cell.subject, cell.level)


def training_problems(per_cell: int = 32, seed: int = 0) -> list[Problem]:
    """`per_cell` problems of each of the 24 ambiguous cells, none held out; every block of 24 has each cell once."""
    return _balanced("training", per_cell, seed)


def heldout_problems(per_cell: int = 15, seed: int = 0) -> list[Problem]:
    """`per_cell` held-out problems of each of the 24 ambiguous cells; every block of 24 has each cell once."""
    return _balanced("heldout", per_cell, seed)


def _balanced(split: Split, per_cell: int, seed: int) -> list[Problem]:
    rng = random.Random(f"{split} problems, seed {seed}")
    columns = [[problem(cell, digits) for digits in _draw(cell, split, per_cell, rng)] for cell in AMBIGUOUS_CELLS]
    return list(_blocks(columns, rng))


def _draw(cell: Cell, split: Split, count: int, rng: random.Random) -> list[tuple[int, ...]]:
    lists = operand_lists(cell, split)
    rng.shuffle(lists)
    drawn = list(itertools.islice((digits for digits in lists if tells_apart(cell.procedure, digits)), max(0, count)))
    if not 1 <= count <= len(drawn):
        raise ValueError(
            f"{count} {split} problems asked for {cell.subject} at level {cell.level}: ask for at least 1 and, "
            f"there, at most {sum(tells_apart(cell.procedure, digits) for digits in lists)} per cell"
        )
    return drawn


def _blocks(columns: list[list[Problem]], rng: random.Random) -> Iterator[Problem]:
    for row in zip(*columns, strict=True):
        yield from rng.sample(row, len(row))
