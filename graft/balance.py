"""How many groups may move each way: the balance modes, what ties with a selection, and the limits of guards.

A mode picks indices of candidates, best first, within the most groups each member may receive and may give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from graft.candidates import Candidates, IntArray
from graft.circulation import ABSENT, best_circulation

Balance = Literal["circulation", "pairwise", "receiver", "none"]

Mode = Callable[[Candidates, IntArray, IntArray], list[int]]


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
    for index in best_sources(candidates, unlimited, unlimited):
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
    """The same number for every member that may receive: the most that all of them can."""
    caps = receiver_caps
    while True:
        chosen = best_sources(candidates, caps, source_caps)
        received = np.bincount(candidates.receiver[chosen], minlength=candidates.members)[candidates.may_receive]
        if received.min() == received.max():
            return chosen
        caps = np.minimum(caps, received.min())


def best_sources(candidates: Candidates, receiver_caps: IntArray, source_caps: IntArray) -> list[int]:
    """Best source for every slot, highest values first, within the limits of receivers and sources."""
    return _by_value(candidates, receiver_caps, source_caps, several=False)


def all_sources(candidates: Candidates, receiver_caps: IntArray, source_caps: IntArray) -> list[int]:
    """Every source of every slot, highest values first; a receiver's limit counts slots, a source's what it gives."""
    return _by_value(candidates, receiver_caps, source_caps, several=True)


def _by_value(candidates: Candidates, receiver_caps: IntArray, source_caps: IntArray, *, several: bool) -> list[int]:
    receivers, sources = receiver_caps.tolist(), source_caps.tolist()
    taken: set[int] = set()
    chosen: list[int] = []
    rows = zip(candidates.slot.tolist(), candidates.receiver.tolist(), candidates.source.tolist(), strict=True)
    for index, (slot, receiver, source) in enumerate(rows):
        room = several if slot in taken else receivers[receiver] > 0
        if room and sources[source] > 0:
            receivers[receiver] -= slot not in taken
            sources[source] -= 1
            taken.add(slot)
            chosen.append(index)
    return chosen


BALANCE_MODES: dict[Balance, Mode] = {
    "circulation": _circulation,
    "pairwise": _pairwise,
    "receiver": _equal_receivers,
    "none": best_sources,
}


def within_source_share(
    mode: Mode, candidates: Candidates, receiver_caps: IntArray, max_source_share: float | None
) -> list[int]:
    """What the mode picks once no source gives more than its share of all transfers."""
    if len(candidates.slot) == 0:
        return []
    limit = len(candidates.slot)
    while True:
        chosen = mode(candidates, receiver_caps, np.full(candidates.members, limit))
        given = np.bincount(candidates.source[chosen], minlength=candidates.members)
        # The total falls with every round that fails, so the limit does too, and no transfers satisfy any share.
        if max_source_share is None or given.max() <= portion(max_source_share, given.sum()):
            return chosen
        limit = int(portion(max_source_share, given.sum()))


def boundary_ties(
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
        if max_source_share is not None and given[source] + 1 > portion(max_source_share, np.int64(total)):
            continue
        taken.add(slot)
        received[receiver] += 1
        given[source] += 1
        joined.append(index)
    return joined


def portion(share: float, total: IntArray | np.int64) -> IntArray:
    """The largest whole number that is at most this share of the total."""
    # The slack keeps 0.1 * 30 at 3, which floating point makes 2.9999999999999996 or 3.0000000000000004.
    return np.asarray(np.floor(share * total + 1e-9), dtype=np.int64)
