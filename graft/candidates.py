"""The step's counts as arrays, and every group that could move, ranked."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from graft.circulation import value_bits

P = TypeVar("P", bound=Hashable)
IntArray = NDArray[np.int64]

# Equal values are told apart by a draw of this many levels, far below one unit of any value.
TIE_LEVELS = 1024


class Board(Generic[P]):
    """The step's counts as arrays [N, P], members and prompts in a seeded order that no input order can change."""

    def __init__(
        self,
        successes: Mapping[str, Mapping[P, int]],
        attempts: Mapping[str, Mapping[P, int]],
        eligible: Collection[tuple[str, P]] | None,
        rng: np.random.Generator,
    ) -> None:
        self.members = _shuffled(attempts, rng)
        self.prompts = _shuffled({prompt for counts in attempts.values() for prompt in counts}, rng)
        shape = (len(self.members), len(self.prompts))
        self.n = np.array([[attempts[m].get(q, 0) for q in self.prompts] for m in self.members], dtype=np.int64)
        solved = [successes.get(m, {}) for m in self.members]
        self.k = np.array([[counts.get(q, -1) for q in self.prompts] for counts in solved], dtype=np.int64)
        self.n, self.k = self.n.reshape(shape), self.k.reshape(shape)
        self._check()
        self.attempted: IntArray = np.count_nonzero(self.n, axis=1)
        if eligible is not None:
            allowed = eligible if isinstance(eligible, (set, frozenset)) else set(eligible)
            part = np.array([[(m, q) in allowed for q in self.prompts] for m in self.members], dtype=bool)
            self.n = np.where(part.reshape(shape), self.n, 0)

    def _check(self) -> None:
        bad = (self.n < 0) | ((self.n > 0) & ((self.k < 0) | (self.k > self.n)))
        if bad.any():
            row, column = (int(index) for index in np.argwhere(bad)[0])
            found = "no success count" if self.k[row, column] < 0 else f"{self.k[row, column]} successes"
            raise ValueError(
                f"member {self.members[row]!r}, prompt {self.prompts[column]!r}: {found} for "
                f"{self.n[row, column]} attempts; give 0 <= successes <= attempts for every attempted prompt"
            )


def _shuffled(items: Iterable[P], rng: np.random.Generator) -> list[P]:
    ordered = sorted(items, key=str)
    return [ordered[index] for index in rng.permutation(len(ordered))]


@dataclass(frozen=True, slots=True)
class Candidates:
    """All candidates [C], by descending rank; members and prompts are rows and columns of the board.

    `rank` is the value in integers, plus a random draw below one unit of it that breaks ties. `slot` numbers the
    (receiver, prompt) that a candidate would fill.
    """

    members: int
    receiver: IntArray
    prompt: IntArray
    source: IntArray
    successes: IntArray
    value: NDArray[np.float64]
    rank: IntArray
    slot: IntArray


def find_candidates(
    board: Board[P], edge_rates: Mapping[tuple[str, str], float], min_successes: int, rng: np.random.Generator
) -> Candidates:
    """Candidates of the board: k_receiver = 0 and max(1, min_successes) <= k_source < n_source (paper eq. 4)."""
    failed = (board.n > 0) & (board.k == 0)
    useful = (board.k >= max(min_successes, 1)) & (board.k < board.n)
    members = len(board.members)
    rates = np.ones((members, members))
    index = {member: row for row, member in enumerate(board.members)}
    for (receiver, source), rate in edge_rates.items():
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"the rate of edge {source!r} -> {receiver!r} must lie in (0, 1], got {rate}")
        if receiver in index and source in index:
            rates[index[receiver], index[source]] = rate
    # A member's own group is never both failed and useful, so no candidate has itself as a source.
    receiver_of, prompt, source_of = np.nonzero(failed[:, :, None] & useful.T[None, :, :])
    k, n, g = board.k[source_of, prompt], board.n[source_of, prompt], rates[receiver_of, source_of]
    # One unit per success, well above the tie draw even for the lowest rate: k alone ranks an edge's prompts.
    unit = np.maximum(np.rint(g * 2.0 ** (value_bits(members) - 1) / n).astype(np.int64), 2 * TIE_LEVELS)
    rank = k * unit + rng.integers(0, TIE_LEVELS, size=len(k))
    order = np.argsort(-rank, kind="stable")
    return Candidates(
        members=members,
        receiver=receiver_of[order],
        prompt=prompt[order],
        source=source_of[order],
        successes=k[order],
        value=(k / np.maximum(n, 1) * g)[order],
        rank=rank[order],
        slot=(receiver_of * len(board.prompts) + prompt)[order],
    )
