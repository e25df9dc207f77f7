"""What each member of the second suite is taught before the reinforcement learning starts.

A member is taught a generator well, well at the first level only, badly, or not at all. Its corpus holds worked
solutions. The teacher gets all steps right but, in a given share of the solutions, the last one: in less than half of
them where the member is taught well, in nearly all where it is taught badly, more often at the second level. So a
member has mixed groups on what it was taught well, fails whole groups on what it was taught badly although it knows all
steps but one, and finds solutions unlikely that it was never taught to write. Every generator and level is taught well
to at least one member, so members fail at different things: the premise of an exchange is built in here, it is not a
finding.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from population.demo.gym_tasks import CELLS, Cell, Work, items, response_text, solve
from population.demo.tasks import is_held_out

Shares = tuple[float, float]

WELL: Shares = (0.75, 0.6)
HALF: Shares = (0.75, 0.005)
BADLY: Shares = (0.02, 0.005)
GOOD = 0.5

TAUGHT: Mapping[str, Mapping[str, Shares]] = MappingProxyType(
    {
        "qwen3": MappingProxyType({"sort": WELL, "spiral": WELL, "turn": HALF, "mirror": BADLY}),
        "llama": MappingProxyType({"spiral": BADLY, "turn": WELL, "mirror": WELL, "drop": HALF}),
        "neox": MappingProxyType({"sort": BADLY, "spiral": WELL, "mirror": WELL, "drop": HALF}),
        "smollm3": MappingProxyType({"sort": HALF, "spiral": BADLY, "turn": WELL, "drop": WELL}),
    }
)
"""Family -> generator -> share of right solutions at each level; a generator that is not there is not taught."""


def examples(family: str, count: int, seed: int) -> list[tuple[str, str]]:
    """`count` (prompt, response) pairs of a member's corpus over all it is taught, without held-out problems.

    KeyError for a family that the suite does not have. Reproducible: the same arguments give the same pairs.
    """
    taught = TAUGHT[family]
    rng = random.Random(f"warm start of gym-{family}, seed {seed}")
    cells = [cell for cell in CELLS if cell.generator in taught]
    streams = {cell: _training_items(cell, rng.getrandbits(31)) for cell in cells}
    return [
        _pair(_written(cell, next(streams[cell])[0], taught[cell.generator][cell.level - 1], rng))
        for cell in rng.choices(cells, k=count)
    ]


def right_examples(per_cell: int, seed: int) -> list[tuple[str, str]]:
    """`per_cell` (prompt, right response) pairs of every cell: what the tokenizers are trained on."""
    rng = random.Random(f"right gym examples, seed {seed}")
    streams = [_training_items(cell, rng.getrandbits(31)) for cell in CELLS]
    return [_pair(next(stream)[1]) for stream in streams for _ in range(per_cell)]


def _training_items(cell: Cell, seed: int) -> Iterator[tuple[Mapping[str, Any], Work]]:
    return ((item, work) for item, work in items(cell, seed) if not is_held_out(work.prompt))


def _pair(work: Work) -> tuple[str, str]:
    return work.prompt, response_text(work)


def _written(cell: Cell, item: Mapping[str, Any], share: float, rng: random.Random) -> Work:
    """A solution that is right with probability `share`; else the teacher slips at its last step, the hardest one."""
    steps = 0

    def counting(right: str, _others: Sequence[str]) -> str:
        nonlocal steps
        steps += 1
        return right

    solve(cell, item, counting)
    slips, step = rng.random() >= share, 0

    def careless(right: str, others: Sequence[str]) -> str:
        nonlocal step
        step += 1
        return rng.choice([other for other in others if other != right]) if slips and step == steps else right

    return solve(cell, item, careless)
