"""The step's counts as arrays, and every group that could move under a rule, ranked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from graft.circulation import value_bits

P = TypeVar("P", bound=Hashable)
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# Equal values are told apart by a draw of this many levels, far below one unit of any value.
TIE_LEVELS = 1024


class Board(Generic[P]):
    """The step's counts as arrays [N, P], members and prompts in a seeded order that no input order can change."""

    def __init__(
        self,
        successes: Mapping[str, Mapping[P, int]],
        attempts: Mapping[str, Mapping[P, int]],
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
    (receiver, prompt) that a candidate would fill. `may_receive` are the rows of the members that can be receivers.
    """

    members: int
    may_receive: IntArray
    receiver: IntArray
    prompt: IntArray
    source: IntArray
    successes: IntArray
    value: FloatArray
    rank: IntArray
    slot: IntArray


Rule = Callable[[IntArray, IntArray], tuple[BoolArray, BoolArray]]
"""(successes, attempts), each [N, P] -> (group wants a peer's, group may be given), each [N, P]."""


def complementary(k: IntArray, n: IntArray) -> tuple[BoolArray, BoolArray]:
    """k_receiver = 0 and 1 <= k_source < n_source (paper eq. 4)."""
    return (n > 0) & (k == 0), (k > 0) & (k < n)


def rescuable(k: IntArray, n: IntArray) -> tuple[BoolArray, BoolArray]:
    """k_receiver = 0 and k_source >= 1: sources that solved everything count too."""
    return (n > 0) & (k == 0), (n > 0) & (k > 0)


def attempted(k: IntArray, n: IntArray) -> tuple[BoolArray, BoolArray]:
    """Whatever the rewards."""
    return n > 0, n > 0


def find_candidates(
    board: Board[P],
    rule: Rule,
    rng: np.random.Generator,
    *,
    edge_rates: Mapping[tuple[str, str], float],
    values: Mapping[tuple[str, P, str], float],
    min_successes: int,
    receivers: Collection[str] | None,
) -> Candidates:
    """The candidates that the rule and the guards leave, valued k_source / n_source * g or as `values` says."""
    wanting, useful = rule(board.k, board.n)
    members = len(board.members)
    may_receive = np.array([receivers is None or member in receivers for member in board.members], dtype=np.bool_)
    wanting &= may_receive[:, None]
    useful &= board.k >= min_successes
    others = ~np.eye(members, dtype=np.bool_)
    receiver, prompt, source = np.nonzero(wanting[:, :, None] & useful.T[None, :, :] & others[:, None, :])
    k, n, g = board.k[source, prompt], board.n[source, prompt], _rates(board, edge_rates)[receiver, source]
    top = 2.0 ** (value_bits(members) - 1)
    # One unit per success, well above the tie draw even for the lowest rate: k alone ranks an edge's prompts.
    worth = k * np.maximum(np.rint(g * top / np.maximum(n, 1)).astype(np.int64), 2 * TIE_LEVELS)
    value = k / np.maximum(n, 1) * g
    if values:
        given = _given_values(board, values)[receiver, prompt, source]
        known = ~np.isnan(given)
        value = np.where(known, given, value)
        # In whole tie levels, so that equal values are told apart by the draw alone.
        units = np.rint(value * top / TIE_LEVELS).astype(np.int64) * TIE_LEVELS
        worth = np.where(known, units, worth)
    # Positive even at value 0: such a candidate comes last, but it is one.
    rank = np.maximum(worth, 1) + rng.integers(0, TIE_LEVELS, size=len(k))
    order = np.argsort(-rank, kind="stable")
    return Candidates(
        members=members,
        may_receive=np.flatnonzero(may_receive),
        receiver=receiver[order],
        prompt=prompt[order],
        source=source[order],
        successes=k[order],
        value=value[order],
        rank=rank[order],
        slot=(receiver * len(board.prompts) + prompt)[order],
    )


def _rates(board: Board[P], edge_rates: Mapping[tuple[str, str], float]) -> FloatArray:
    rates = np.ones((len(board.members), len(board.members)))
    index = {member: row for row, member in enumerate(board.members)}
    for (receiver, source), rate in edge_rates.items():
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"the rate of edge {source!r} -> {receiver!r} must lie in (0, 1], got {rate}")
        if receiver in index and source in index:
            rates[index[receiver], index[source]] = rate
    return rates


def _given_values(board: Board[P], values: Mapping[tuple[str, P, str], float]) -> FloatArray:
    """[N, P, N] by receiver, prompt and source; NaN where nothing is given."""
    members, prompts = len(board.members), len(board.prompts)
    given = np.full((members, prompts, members), np.nan)
    row = {member: index for index, member in enumerate(board.members)}
    column = {prompt: index for index, prompt in enumerate(board.prompts)}
    for (receiver, prompt, source), value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(
                f"the value of source {source!r} for {receiver!r} on prompt {prompt!r} must lie in [0, 1], got {value}"
            )
        if receiver in row and prompt in column and source in row:
            given[row[receiver], column[prompt], row[source]] = value
    return given
