"""The exchange of highest total value in which every member gives as many groups as it receives.

A maximum-value circulation over source -> slot -> receiver -> the same member as a source, solved exactly in integers.
A slot is one (receiver, prompt) that can be rescued; it has one holder: the source that serves it, or, at value 0, its
own receiver when it goes unserved. Moving slots between holders is then the whole residual network, so the solver
works on 2N nodes (N sources, N receivers) and never on the N * P slots: successive shortest paths, started from the
best source for every slot, which is optimal but for the balance. Each path repairs one unit of imbalance at the
least loss, so the result is optimal when none is left (Ahuja, Magnanti & Orlin, "Network Flows", ch. 9.7).
Chosen over networkx's network simplex (the same optimum, up to ten times slower) and over HiGHS's LP (about as fast,
but in floating point, where values that differ only in the draw that breaks ties are equal); both check it in the
tests, and `tests/benchmarks/exchange_solver.py` times all three.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

# "No such candidate" in the value matrix. Costs above the half of it are unreachable; int64 holds three times as much.
ABSENT = -(1 << 60)
UNREACHABLE = 1 << 60
FAR = 1 << 59


def value_bits(members: int) -> int:
    """Bits a single value may use so that no path over 2 * `members` nodes can reach `FAR`."""
    return 58 - (2 * members).bit_length()


def best_circulation(receivers: IntArray, values: IntArray, caps: IntArray) -> IntArray:
    """Source of every slot [S], or -1 where it goes unserved.

    `receivers` [S] is each slot's receiver, `values` [S, N] the positive integer value of each source for it (`ABSENT`
    where it is no candidate; every slot has one), below 2 ** value_bits(N). `caps` [N] bounds how many groups a
    member receives, and so gives.
    """
    members = len(caps)
    network = _Network(receivers, values, caps)
    while (starts := network.imbalance > 0).any():
        network.push(_cheapest_path(network.costs, starts, network.imbalance < 0))
    return np.where(network.holder < members, network.holder, -1)


class _Network:
    """Holders of the slots and the residual network over them; nodes 0..N-1 give, nodes N..2N-1 receive."""

    def __init__(self, receivers: IntArray, values: IntArray, caps: IntArray) -> None:
        slots, members = values.shape
        self.members = members
        self.caps = caps
        self.values = np.full((slots, 2 * members), ABSENT, dtype=np.int64)
        self.values[:, :members] = values
        self.values[np.arange(slots), members + receivers] = 0
        self.holder = values.argmax(axis=1)
        given = np.bincount(self.holder, minlength=members)
        received = np.bincount(receivers, minlength=members)
        self.passed = np.minimum(np.minimum(given, received), caps)
        # Receivers hold too much where positive, sources give too much where negative; the total is zero.
        self.imbalance = np.concatenate([self.passed - given, received - self.passed])
        # costs[u, v]: the least value lost when u takes over a slot that v holds; slot_of[u, v] is that slot.
        self.costs = np.full((2 * members, 2 * members), UNREACHABLE, dtype=np.int64)
        self.slot_of = np.zeros((2 * members, 2 * members), dtype=np.int64)
        for node in range(2 * members):
            self._refresh(node)

    def push(self, path: list[int]) -> None:
        """Move one unit along `path`, from a receiver that holds too much to a source that gives too much."""
        for taker, loser in pairwise(path):
            if taker - loser == self.members:
                self.passed[loser] += 1
            elif loser - taker == self.members:
                self.passed[taker] -= 1
            else:
                self.holder[self.slot_of[taker, loser]] = taker
        self.imbalance[path[0]] -= 1
        self.imbalance[path[-1]] += 1
        for node in path:
            self._refresh(node)

    def _refresh(self, node: int) -> None:
        """Recompute the arcs into `node` after its slots or its member's throughput changed."""
        held = np.flatnonzero(self.holder == node)
        if len(held):
            loss = self.values[held, node][:, None] - self.values[held]
            cheapest = loss.argmin(axis=0)
            self.costs[:, node] = np.minimum(loss[cheapest, np.arange(loss.shape[1])], UNREACHABLE)
            self.slot_of[:, node] = held[cheapest]
        else:
            self.costs[:, node] = UNREACHABLE
        member = node % self.members
        receiving = member + self.members
        room = self.passed[member] < self.caps[member]
        self.costs[receiving, member] = 0 if room else UNREACHABLE
        self.costs[member, receiving] = 0 if self.passed[member] > 0 else UNREACHABLE


def _cheapest_path(costs: IntArray, starts: NDArray[np.bool_], ends: NDArray[np.bool_]) -> list[int]:
    """Nodes of a least-cost path from any start to any end (Bellman-Ford; costs may be negative, cycles are not)."""
    nodes = np.arange(len(costs))
    distance = np.where(starts, 0, UNREACHABLE)
    previous = np.full(len(costs), -1)
    for _ in nodes:
        through = distance[:, None] + costs
        best = through.argmin(axis=0)
        shorter = through[best, nodes]
        improved = (shorter < distance) & (shorter < FAR)
        if not improved.any():
            break
        distance[improved] = shorter[improved]
        previous[improved] = best[improved]
    path = [int(np.where(ends, distance, UNREACHABLE).argmin())]
    while previous[path[-1]] >= 0:
        path.append(int(previous[path[-1]]))
    return path[::-1]
