"""The second task suite of the demo: problems of five reasoning-gym generators, each at two levels of difficulty.

reasoning-gym makes the problems and their solutions; here they are put briefly (`turn 90 41/67`), so that a tiny model
can read them, and given a worked solution that ends in a box (`turn 90 41/67: 64/71 so \\boxed{6471}`). Answers are
numerals: lists and matrices are boxed as the row of their digits. A solution takes a few steps, and each step is a
place where somebody who works carelessly may slip: that is what its `hand` is for.

A problem is held out by its text alone. The same seed gives the same problems on every machine. Needs the package
reasoning-gym (the extra `gym`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from population.demo.tasks import Problem, Split, is_held_out
from population.errors import DataError

LEVELS = (1, 2)
DIGITS = "0123456789"

Hand = Callable[[str, Sequence[str]], str]
"""Called as hand(right, others) at every step of a solution; returns what is written down, right or not."""


class Work(NamedTuple):
    """A problem and somebody's solution of it: its steps and the answer they led to."""

    prompt: str
    steps: str
    answer: str


@dataclass(frozen=True, slots=True)
class Generator:
    """A reasoning-gym data set with its settings at each level.

    `work(metadata of an item, hand)` puts the item and solves it; None for items that the suite leaves out.
    """

    dataset: str
    levels: tuple[Mapping[str, Any], ...]
    work: Callable[[Mapping[str, Any], Hand], Work | None]


@dataclass(frozen=True, slots=True)
class Cell:
    """One generator at one level: the unit that the suite is balanced over."""

    generator: str
    level: int


def steady(right: str, _others: Sequence[str]) -> str:
    """The hand of somebody who never slips."""
    return right


def _sort(item: Mapping[str, Any], hand: Hand) -> Work:
    digits = [str(round(float(number))) for number in item["original_numbers"]]
    written = [hand(str(round(float(number))), DIGITS[1:]) for number in item["sorted_numbers"]]
    way = "up" if item["direction"] == "ascending" else "down"
    return Work(f"sort {way} {' '.join(digits)}", ",".join(written), "".join(written))


def _spiral(item: Mapping[str, Any], hand: Hand) -> Work:
    written = "".join(hand(str(digit), DIGITS) for digit in item["solution"])
    return Work(f"spiral {_rows(item['matrix'])}", written, written)


def _turn(item: Mapping[str, Any], hand: Hand) -> Work:
    written = [[hand(str(digit), DIGITS) for digit in row] for row in item["solution"]]
    degrees = 90 * item["num_rotations"]
    return Work(f"turn {degrees} {_rows(item['matrix'])}", _rows(written), _rows(written).replace("/", ""))


def _mirror(item: Mapping[str, Any], hand: Hand) -> Work:
    axis = _AXES[item["operations"][0]["transform"]]
    written = [[hand(str(digit), DIGITS) for digit in row] for row in item["solution"]]
    return Work(f"mirror {axis} {_rows(item['matrix'])}", _rows(written), _rows(written).replace("/", ""))


def _drop(item: Mapping[str, Any], hand: Hand) -> Work | None:
    operation = item["operations"][0]
    if operation["transform"] != ("remove_every_nth_row" if item["rows"] > item["cols"] else "remove_every_nth_col"):
        return None
    written = [[hand(str(digit), DIGITS) for digit in row] for row in item["solution"]]
    prompt = f"drop {operation['transform'][-3:]} {operation['n']} {_rows(item['matrix'])}"
    return Work(prompt, _rows(written), _rows(written).replace("/", ""))


def _rows(matrix: Sequence[Sequence[Any]]) -> str:
    return "/".join("".join(map(str, row)) for row in matrix)


_ONE_DIGIT = {"min_decimals": 0, "max_decimals": 0, "min_value": 0.5, "max_value": 9.49}
_AXES = {"hmirror": "-", "vmirror": "|", "dmirror": "\\", "cmirror": "/"}
_TRANSFORMS = ("rotate", *_AXES, "map", "crop", "remove_every_nth_row", "remove_every_nth_col", "zero_divisible")


def _size(rows: int, columns: int) -> dict[str, int]:
    return {"min_rows": rows, "max_rows": rows, "min_cols": columns, "max_cols": columns}


def _one_of(*transforms: str) -> dict[str, float]:
    """One transformation of a matrix, drawn from these; the weights are logarithms, so the others do not turn up."""
    weights = {f"w_{name}": 30.0 * (name in transforms) for name in _TRANSFORMS}
    return weights | {"min_transforms": 1, "max_transforms": 1}


# reasoning-gym 0.1.25 gives the weights of these four to one another, so all are drawn and the unwanted left out.
_REMOVALS = _one_of("crop", "remove_every_nth_row", "remove_every_nth_col", "zero_divisible")

GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "sort": Generator(
            "number_sorting", tuple({**_ONE_DIGIT, "min_numbers": n, "max_numbers": n} for n in (3, 4)), _sort
        ),
        "spiral": Generator("spiral_matrix", tuple({"min_n": n, "max_n": n} for n in (2, 3)), _spiral),
        "turn": Generator(
            "rotate_matrix",
            tuple({"min_n": 2, "max_n": 2, "min_rotations": a, "max_rotations": b} for a, b in ((1, 1), (2, 3))),
            _turn,
        ),
        "mirror": Generator(
            "manipulate_matrix",
            tuple({**_size(2, 2), **_one_of(*axes)} for axes in (("hmirror", "vmirror"), ("dmirror", "cmirror"))),
            _mirror,
        ),
        "drop": Generator(
            "manipulate_matrix",
            (
                {**_size(3, 2), **_REMOVALS},
                {**_size(2, 3), **_REMOVALS},
            ),
            _drop,
        ),
    }
)
"""Name in the suite -> reasoning-gym's generator. The second level has more numbers, larger matrices, other axes."""

CELLS = tuple(Cell(name, level) for name in GENERATORS for level in LEVELS)


def items(cell: Cell, seed: int) -> Iterator[tuple[Mapping[str, Any], Work]]:
    """(metadata, right work) of one item after another, without end; those that the suite leaves out are skipped.

    Raises DataError where reasoning-gym is not installed.
    """
    try:
        import reasoning_gym
    except ImportError:
        raise DataError(
            "demo:gym- members and data sets need the package reasoning-gym; pip install 'graft-population[gym]'"
        ) from None
    generator = GENERATORS[cell.generator]
    settings = generator.levels[cell.level - 1]
    source = reasoning_gym.create_dataset(generator.dataset, seed=seed, size=2**31, **settings)
    for number in itertools.count():
        item = source[number]["metadata"]
        work = generator.work(item, steady)
        if work is not None:
            yield item, work


def solve(cell: Cell, item: Mapping[str, Any], hand: Hand) -> Work:
    """The problem of an item with the solution that a hand writes down. ValueError for an item that is left out."""
    work = GENERATORS[cell.generator].work(item, hand)
    if work is None:
        raise ValueError(f"the suite leaves out this {cell.generator} item: {dict(item)}")
    return work


def response_text(work: Work) -> str:
    return f"{work.prompt}: {work.steps} so \\boxed{{{work.answer}}}"


def training_problems(per_cell: int = 77, seed: int = 0) -> list[Problem]:
    """`per_cell` problems of each of the 10 cells, none held out; every block of 10 has each cell once."""
    return _balanced("training", per_cell, seed)


def heldout_problems(per_cell: int = 30, seed: int = 0) -> list[Problem]:
    """`per_cell` held-out problems of each of the 10 cells; every block of 10 has each cell once."""
    return _balanced("heldout", per_cell, seed)


def _balanced(split: Split, per_cell: int, seed: int) -> list[Problem]:
    rng = random.Random(f"{split} gym problems, seed {seed}")
    columns = [_draw(cell, split, per_cell, rng.getrandbits(31)) for cell in CELLS]
    return [problem for row in zip(*columns, strict=True) for problem in rng.sample(row, len(row))]


def _draw(cell: Cell, split: Split, count: int, seed: int) -> list[Problem]:
    """`count` distinct problems of a cell on one side of the split; ValueError where it has fewer."""
    found: dict[str, Problem] = {}
    for _, work in itertools.islice(items(cell, seed), 200 * max(0, count)):
        if is_held_out(work.prompt) == (split == "heldout"):
            found.setdefault(work.prompt, Problem(work.prompt, work.answer, cell.generator, cell.level))
        if len(found) == count:
            return list(found.values())
    raise ValueError(
        f"{count} {split} problems asked for {cell.generator} at level {cell.level}: ask for at least 1 and, there, "
        f"at most {len(found)} per cell"
    )
