"""METHODS: each method as a pair (which groups move, how the update uses them).

Both axes are independent: a further row of the paper's tables is one more entry here, made of a `Which` and a `How`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from graft.compatibility import admission_weight
from graft.minibatches import Position
from graft.selection import Balance, Transfer, exchange


class Which(Protocol):
    """Chooses the groups that move, from {member: {prompt: k}} and {member: {prompt: n}}; see `graft.selection`."""

    def __call__(
        self,
        successes: Mapping[str, Mapping[int, int]],
        attempts: Mapping[str, Mapping[int, int]],
        *,
        edge_rates: Mapping[tuple[str, str], float] | None = None,
        balance: Balance = "circulation",
        ties: bool = True,
        seed: int = 0,
        min_successes: int = 1,
        max_peer_share: float | None = None,
        max_source_share: float | None = None,
        eligible: Collection[tuple[str, int]] | None = None,
    ) -> list[Transfer[int]]: ...


@dataclass(frozen=True, slots=True)
class How:
    """How the receiver's update uses a transferred response.

    `weight(s, floor)` is the response's weight in the loss; 0.0 removes it. `position` is where grafted prompts stand
    in the order of minibatches. `description` and `equation` are for people.
    """

    weight: Callable[[float, float], float]
    position: Position
    description: str
    equation: str


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the paper's tables. `which` is None for a method without exchange."""

    name: str
    which: Which | None
    how: How

    @property
    def exchanges(self) -> bool:
        """True when members give each other groups, so that the method needs at least two of them."""
        return self.which is not None


def _refuse(s: float, floor: float) -> float:
    return 0.0


def _admit(s: float, floor: float) -> float:
    return 1.0


OWN_ONLY = How(
    weight=_refuse,
    position="last",
    description="own groups only",
    equation="J = 1/sum|o| sum_j sum_t min(rho a, clip(rho, 1-e_low, 1+e_high) a)",
)
GATED = How(
    weight=admission_weight,
    position="last",
    description="gated by compatibility, advantages of the source's group, clipped, peers last",
    equation="J as for own groups, each response times w = 1[s > floor] min(s, 1); s <= floor leaves the batch",
)
UNGATED = How(
    weight=_admit,
    position="last",
    description="every transferred response at full weight, advantages of the source's group, clipped, peers last",
    equation="J as for own groups, w = 1",
)

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("grpo", None, OWN_ONLY),
        Method("graft", exchange, GATED),
        Method("graft-no-gate", exchange, UNGATED),
    )
}
