"""Which groups move between members (paper eq. 4, and its generalisation to N members).

A candidate is (receiver, prompt, source) with k_receiver = 0 and 1 <= k_source < n_source. Its value is
k_source / n_source * g, g the edge's rate. At most one source serves a slot (receiver, prompt). Value ties break in an
order drawn from `seed`, so no member is favoured by its name, and the result does not depend on the order of any input.
For two members every balance mode but `none` is the paper's SelectWithTies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from graft.candidates import Board, Candidates, find_candidates
from graft.circulation import ABSENT, best_circulation

P = TypeVar("P", bound=Hashable)
IntArray = NDArray[np.int64]

Balance = Literal["circulation", "pairwise", "receiver", "none"]


@dataclass(frozen=True, slots=True)
class Transfer(Generic[P]):
    """The group of `source` on `prompt` replaces the failed group of `receiver`. `tie`: joined at the boundary."""

    receiver: str
    prompt: P
    source: str
    value: float
    tie: bool = False


def select_with_ties(successes: Mapping[P, int], m: int) -> set[P]:
    """The paper's SelectWithTies: the m prompts of highest success count and all that tie with the last of them.

    `successes` is {prompt: k_source} over the candidates of one direction. m = 0 selects nothing.
    """
    if m < 0:
        raise ValueError(f"cannot select {m} prompts")
    if m == 0 or not successes:
        return set()
    lowest = sorted(successes.values(), reverse=True)[:m][-1]
    return {prompt for prompt, count in successes.items() if count >= lowest}


def exchange(
    successes: Mapping[str, Mapping[P, int]],
    attempts: Mapping[str, Mapping[P, int]],
    *,
    edge_rates: Mapping[tuple[str, str], float] | None = None,
    balance: Balance = "circulation",
    ties: bool = True,
    seed: int = 0,
    min_successes: int = 1,
    max_peer_share: float | None = None,
    max_source_share: float | None = None,
    eligible: Collection[tuple[str, P]] | None = None,
) -> list[Transfer[P]]:
    """The transfers of one step, ordered by receiver, then by prompt as text.

    `successes` and `attempts` are {member: {prompt: k}} and {member: {prompt: n}}; a group absent from `attempts`
    (or with n = 0) takes no part. `edge_rates` {(receiver, source): g in (0, 1]}, 1 where missing.
    `balance`: `circulation`, every member gives as many groups as it receives, at the highest total value;
    `pairwise`, each two members give each other the same number; `receiver`, every member receives the same number;
    `none`, the best source for every slot. `ties`: candidates of a used edge with the same k as the lowest selected
    one join, unless their slot is taken.

    Guards, all off by default: `min_successes` of the source's group; `max_peer_share` of a receiver's attempted
    prompts that may be replaced; `max_source_share` of all transfers that may come from one source (reached by
    lowering every member's limit until it holds); `eligible`, the only (member, prompt) groups that may take part.
    Raises ValueError for counts, rates, shares or a mode that make no sense, naming them.
    """
    if balance not in _BALANCE_MODES:
        raise ValueError(f"balance must be one of {', '.join(_BALANCE_MODES)}, got {balance!r}")
    for name, share in (("max_peer_share", max_peer_share), ("max_source_share", max_source_share)):
        if share is not None and not 0.0 < share <= 1.0:
            raise ValueError(f"{name} must lie in (0, 1], got {share}")
    rng = np.random.default_rng(seed)
    board = Board(successes, attempts, eligible, rng)
    candidates = find_candidates(board, edge_rates or {}, min_successes, rng)
    receiver_caps = board.attempted.copy()
    if max_peer_share is not None:
        receiver_caps = _share(max_peer_share, board.attempted)
    chosen = _within_source_share(_BALANCE_MODES[balance], candidates, receiver_caps, max_source_share)
    tied = _boundary_ties(candidates, chosen, receiver_caps, max_source_share) if ties else []
    return _transfers(board, candidates, chosen, tied)


def hold_out(
    transfers: Sequence[Transfer[P]], share: float, *, seed: int
) -> tuple[list[Transfer[P]], list[Transfer[P]]]:
    """Split selected transfers at random into (grafted, held out), each held out with probability `share`.

    The held-out ones are the control group that uptake is measured against. Both keep the order of `transfers`.
    """
    if not 0.0 <= share < 1.0:
        raise ValueError(f"the held-out share must lie in [0, 1), got {share}")
    held = np.random.default_rng(seed).random(len(transfers)) < share
    grafted = [transfer for transfer, out in zip(transfers, held, strict=True) if not out]
    return grafted, [transfer for transfer, out in zip(transfers, held, strict=True) if out]


_Mode = Callable[[Candidates, IntArray, IntArray], list[int]]


def _circulation(candidates: Candidates, receiver_caps: IntArray, source_caps: IntArray) -> list[int]:
    """Give as much as you receive, at the highest total value."""
    slots, row = np.unique(candidates.slot, return_inverse=True)
    values = np.full((len(slots), candidates.members), ABSENT, dtype=np.int64)
    values[row, candidates.source] = candidates.rank
    receivers = np.zeros(len(slots), dtype=np.int64)
    receivers[row] = candidates.receiver
    source = best_circulation(receivers, values, np.minimum(receiver_caps, source_caps))
    return [int(index) for index in np.flatnonzero(candidates.source == source[row])]


def _pairwise(candidates: Candidates, receiver_caps: IntArray, source_caps: IntArray) -> list[int]:
    """Best source for every slot, then as many one way as the other between each two members."""
    unlimited = np.full(candidates.members, len(candidates.slot))
    edges: dict[tuple[int, int], list[int]] = {}
    for index in _best_sources(candidates, unlimited, unlimited):
        edges.setdefault((int(candidates.receiver[index]), int(candidates.source[index])), []).append(index)
    swaps = [
        swap
        for (receiver, source), there in edges.items()
        if receiver < source
        for swap in zip(there, edges.get((source, receiver), []), strict=False)
    ]
    swaps.sort(key=lambda swap: -int(candidates.rank[swap[0]] + candidates.rank[swap[1]]))
    room = np.minimum(receiver_caps, source_caps)
    chosen: list[int] = []
    for there, back in swaps:
        pair = [candidates.receiver[there], candidates.receiver[back]]
        if (room[pair] > 0).all():
            room[pair] -= 1
            chosen += [there, back]
    return chosen


def _equal_receivers(candidates: Candidates, receiver_caps: IntArray, source_caps: IntArray) -> list[int]:
    """The same number for every member: the most that all of them can receive."""
    caps = receiver_caps
    while True:
        chosen = _best_sources(candidates, caps, source_caps)
        received = np.bincount(candidates.receiver[chosen], minlength=candidates.members)
        if received.min() == received.max():
            return chosen
        caps = np.minimum(caps, received.min())


def _best_sources(candidates: Candidates, receiver_caps: IntArray, source_caps: IntArray) -> list[int]:
    """Best source for every slot, highest values first, within the limits of receivers and sources."""
    receivers, sources = receiver_caps.tolist(), source_caps.tolist()
    taken: set[int] = set()
    chosen: list[int] = []
    rows = zip(candidates.slot.tolist(), candidates.receiver.tolist(), candidates.source.tolist(), strict=True)
    for index, (slot, receiver, source) in enumerate(rows):
        if slot not in taken and receivers[receiver] > 0 and sources[source] > 0:
            taken.add(slot)
            receivers[receiver] -= 1
            sources[source] -= 1
            chosen.append(index)
    return chosen


_BALANCE_MODES: dict[str, _Mode] = {
    "circulation": _circulation,
    "pairwise": _pairwise,
    "receiver": _equal_receivers,
    "none": _best_sources,
}


def _within_source_share(
    mode: _Mode, candidates: Candidates, receiver_caps: IntArray, max_source_share: float | None
) -> list[int]:
    if len(candidates.slot) == 0:
        return []
    limit = len(candidates.slot)
    while True:
        chosen = mode(candidates, receiver_caps, np.full(candidates.members, limit))
        given = np.bincount(candidates.source[chosen], minlength=candidates.members)
        # The total falls with every round that fails, so the limit does too, and no transfers satisfy any share.
        if max_source_share is None or given.max() <= _share(max_source_share, given.sum()):
            return chosen
        limit = int(_share(max_source_share, given.sum()))


def _boundary_ties(
    candidates: Candidates, chosen: list[int], receiver_caps: IntArray, max_source_share: float | None
) -> list[int]:
    """Candidates that join because they equal the lowest selected one of their edge in k, in order of value."""
    size = candidates.members
    edge = candidates.receiver * size + candidates.source
    lowest = np.full(size * size, np.iinfo(np.int64).max)
    np.minimum.at(lowest, edge[chosen], candidates.successes[chosen])
    free = ~np.isin(candidates.slot, candidates.slot[chosen])
    taken: set[int] = set()
    received = np.bincount(candidates.receiver[chosen], minlength=size).tolist()
    given = np.bincount(candidates.source[chosen], minlength=size).tolist()
    joined: list[int] = []
    for index in np.flatnonzero(free & (candidates.successes == lowest[edge])).tolist():
        slot, receiver, source = (int(of[index]) for of in (candidates.slot, candidates.receiver, candidates.source))
        if slot in taken or received[receiver] >= receiver_caps[receiver]:
            continue
        total = len(chosen) + len(joined) + 1
        if max_source_share is not None and given[source] + 1 > _share(max_source_share, np.int64(total)):
            continue
        taken.add(slot)
        received[receiver] += 1
        given[source] += 1
        joined.append(index)
    return joined


def _share(share: float, total: IntArray | np.int64) -> IntArray:
    # The slack keeps 0.1 * 30 at 3, which floating point makes 2.9999999999999996 or 3.0000000000000004.
    return np.asarray(np.floor(share * total + 1e-9), dtype=np.int64)


def _transfers(
    board: Board[P], candidates: Candidates, chosen: Iterable[int], tied: Iterable[int]
) -> list[Transfer[P]]:
    transfers = [
        Transfer(
            receiver=board.members[candidates.receiver[index]],
            prompt=board.prompts[candidates.prompt[index]],
            source=board.members[candidates.source[index]],
            value=float(candidates.value[index]),
            tie=tie,
        )
        for indices, tie in ((chosen, False), (tied, True))
        for index in indices
    ]
    return sorted(transfers, key=lambda transfer: (transfer.receiver, str(transfer.prompt)))
