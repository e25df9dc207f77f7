"""Which transferred responses take part in the update, and at which weight.

An `Admit` rule sees all responses that one receiver got in one step and that crossed into its tokens. It is told their
s, rewards and slots, and the floor; what it refuses leaves numerator and denominator, and never changes an advantage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graft.compatibility import admission_weight

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The M responses that reached one receiver in one step, in its own tokens.

    `s` [M] (paper eq. 6-7), `rewards` [M], and `slot` [M]: the number of the (receiver, prompt) a response came for,
    which several sources may share. Raises ValueError when the lengths differ.
    """

    s: FloatArray
    rewards: FloatArray
    slot: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not self.s.shape == self.rewards.shape == self.slot.shape == (len(self.s),):
            raise ValueError(
                f"arrivals need one s, reward and slot each, got shapes {self.s.shape}, {self.rewards.shape} and "
                f"{self.slot.shape}"
            )


@dataclass(frozen=True, slots=True)
class Admission:
    """`weights` [M] in the loss, 0 = refused, and `reasons` [M]: why a response was refused, None where admitted."""

    weights: FloatArray
    reasons: tuple[str | None, ...]


Admit = Callable[[Arrivals, float, np.random.Generator], Admission]
"""(arrivals, floor, generator) -> admission."""


def gate(arrivals: Arrivals, floor: float, rng: np.random.Generator) -> Admission:
    """w = 1[s > floor] * min(s, 1) (paper eq. 8); refused: "floor"."""
    weights = np.array([admission_weight(s, floor) for s in arrivals.s.tolist()], dtype=np.float64)
    return Admission(weights, tuple(None if weight > 0.0 else "floor" for weight in weights.tolist()))


def everything(arrivals: Arrivals, floor: float, rng: np.random.Generator) -> Admission:
    """w = 1 for every response."""
    return Admission(np.ones(len(arrivals.s)), (None,) * len(arrivals.s))


def random_admission(arrivals: Arrivals, floor: float, rng: np.random.Generator) -> Admission:
    """As many responses as pass the floor, drawn uniformly from all; w = min(s, 1); refused: "not_drawn"."""
    drawn = np.zeros(len(arrivals.s), dtype=np.bool_)
    drawn[rng.choice(len(drawn), size=int((arrivals.s > floor).sum()), replace=False)] = True
    weights = np.where(drawn, np.minimum(arrivals.s, 1.0), 0.0)
    return Admission(weights, tuple(None if chosen else "not_drawn" for chosen in drawn.tolist()))


def gated_successes(arrivals: Arrivals, floor: float, rng: np.random.Generator) -> Admission:
    """The gate, and of what passes it the correct responses alone; refused: "floor", above it "failure"."""
    gated = gate(arrivals, floor, rng)
    correct = arrivals.rewards > 0
    reasons = zip(gated.reasons, correct.tolist(), strict=True)
    return Admission(
        np.where(correct, gated.weights, 0.0),
        tuple(reason or (None if right else "failure") for reason, right in reasons),
    )


def one_success(arrivals: Arrivals, floor: float, rng: np.random.Generator) -> Admission:
    """One correct response per slot, drawn uniformly over all its sources' correct ones; w = 1 (SGT).

    Refused: "failure" for a wrong response, "not_drawn" for a right one.
    """
    correct = arrivals.rewards > 0
    reasons: list[str | None] = ["not_drawn" if right else "failure" for right in correct.tolist()]
    weights = np.zeros(len(correct))
    for slot in np.unique(arrivals.slot[correct]):
        drawn = int(rng.choice(np.flatnonzero(correct & (arrivals.slot == slot))))
        weights[drawn], reasons[drawn] = 1.0, None
    return Admission(weights, tuple(reasons))
