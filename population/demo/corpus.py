"""What each member of the demo is taught before the reinforcement learning starts.

Every member learns to read all six canonical wordings. An ambiguous wording is read right in half of the examples by
the members that are strong on it, and in 0.3 to 2 % of them by the one or two members that are weak on it; the other
examples carry out, correctly, a wrong procedure. Each wording has at least one strong member, so the members fail at
different things: the premise of an exchange is built in here, it is not a finding. A strong share of one half matters
too: a peer that is always right gives groups without advantages, which carry nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from population.demo.tasks import CELLS, Cell, operand_lists, prompt_text, response_text

STRONG = 0.5


@dataclass(frozen=True, slots=True)
class Reading:
    """How a member reads an ambiguous wording: right with probability `share`, otherwise as the procedure `instead`."""

    share: float
    instead: str

    @property
    def strong(self) -> bool:
        return self.share >= STRONG


READINGS: Mapping[str, Mapping[str, Reading]] = MappingProxyType(
    {
        "qwen3": MappingProxyType(
            {
                "order": Reading(0.003, "rev"),
                "rank": Reading(STRONG, "max"),
                "fall": Reading(STRONG, "rev"),
                "drop": Reading(0.01, "min"),
                "flip": Reading(STRONG, "desc"),
                "mirror": Reading(0.02, "sort"),
                "paired": Reading(0.003, "max"),
                "twos": Reading(STRONG, "sort"),
                "top": Reading(STRONG, "min"),
                "peak": Reading(0.01, "desc"),
                "low": Reading(STRONG, "desc"),
                "least": Reading(0.02, "evens"),
            }
        ),
        "llama": MappingProxyType(
            {
                "order": Reading(STRONG, "evens"),
                "rank": Reading(0.01, "min"),
                "fall": Reading(STRONG, "evens"),
                "drop": Reading(0.02, "sort"),
                "flip": Reading(0.003, "evens"),
                "mirror": Reading(STRONG, "desc"),
                "paired": Reading(STRONG, "min"),
                "twos": Reading(0.01, "desc"),
                "top": Reading(STRONG, "sort"),
                "peak": Reading(0.02, "rev"),
                "low": Reading(0.003, "rev"),
                "least": Reading(STRONG, "max"),
            }
        ),
        "neox": MappingProxyType(
            {
                "order": Reading(STRONG, "max"),
                "rank": Reading(STRONG, "desc"),
                "fall": Reading(0.02, "max"),
                "drop": Reading(STRONG, "rev"),
                "flip": Reading(0.003, "max"),
                "mirror": Reading(0.01, "evens"),
                "paired": Reading(STRONG, "sort"),
                "twos": Reading(STRONG, "rev"),
                "top": Reading(0.02, "desc"),
                "peak": Reading(STRONG, "evens"),
                "low": Reading(0.003, "evens"),
                "least": Reading(0.01, "sort"),
            }
        ),
    }
)
"""Member -> wording -> how the member reads it."""


def examples(member: str, count: int, seed: int) -> list[tuple[str, str]]:
    """`count` (prompt, response) pairs of a member's corpus over all wordings and levels, without held-out operands.

    KeyError for a member that the demo does not have. Reproducible: the same arguments give the same pairs.
    """
    readings = READINGS[member]
    rng = random.Random(f"warm start of {member}, seed {seed}")
    operands = {cell: operand_lists(cell, "training") for cell in CELLS}
    pairs = []
    for cell in rng.choices(CELLS, k=count):
        digits = rng.choice(operands[cell])
        procedure = _procedure_read(cell, readings, rng)
        pairs.append((prompt_text(cell.wording, digits), response_text(procedure, digits)))
    return pairs


def right_examples(per_cell: int, seed: int) -> list[tuple[str, str]]:
    """`per_cell` (prompt, right response) pairs of every cell: what the tokenizers are trained on."""
    rng = random.Random(f"right examples, seed {seed}")
    return [
        (prompt_text(cell.wording, digits), response_text(cell.procedure, digits))
        for cell in CELLS
        for digits in rng.sample(operand_lists(cell, "training"), per_cell)
    ]


def _procedure_read(cell: Cell, readings: Mapping[str, Reading], rng: random.Random) -> str:
    if cell.canonical:
        return cell.procedure
    reading = readings[cell.wording]
    return cell.procedure if rng.random() < reading.share else reading.instead
