"""The circulation is optimal: against brute force, a linear program and network simplex."""

from __future__ import annotations

from itertools import product

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import linprog

from graft.circulation import ABSENT, best_circulation


def random_problem(seed, members, slots, highest):
    """Receivers, values and caps; every slot has at least one source that is not its receiver."""
    rng = np.random.default_rng(seed)
    receivers = rng.integers(0, members, slots)
    values = np.where(rng.random((slots, members)) < 0.5, rng.integers(1, highest + 1, (slots, members)), ABSENT)
    values[np.arange(slots), (receivers + rng.integers(1, members, slots)) % members] = 1 + highest // 2
    values[np.arange(slots), receivers] = ABSENT
    caps = np.full(members, slots) if seed % 2 else rng.integers(0, 1 + slots // 2, members)
    return receivers, values, caps


def checked_total(receivers, values, caps, sources):
    """Total value of an assignment after checking that it is a circulation within the caps."""
    served = np.flatnonzero(sources >= 0)
    given = np.bincount(sources[served], minlength=len(caps))
    received = np.bincount(receivers[served], minlength=len(caps))
    assert (given == received).all()
    assert (given <= caps).all()
    assert (values[served, sources[served]] > 0).all()
    return int(values[served, sources[served]].sum())


def brute_force(receivers, values, caps):
    best = 0
    choices = [[-1, *np.flatnonzero(row > 0)] for row in values]
    for assignment in product(*choices):
        given = [assignment.count(member) for member in range(len(caps))]
        received = [0] * len(caps)
        for receiver, source in zip(receivers, assignment, strict=True):
            received[receiver] += source >= 0
        if given == received and all(count <= cap for count, cap in zip(given, caps, strict=True)):
            best = max(best, sum(int(values[slot, source]) for slot, source in enumerate(assignment) if source >= 0))
    return best


def linear_program(receivers, values, caps):
    slot, source = np.nonzero(values > 0)
    columns = np.arange(len(slot))
    once = np.zeros((len(receivers), len(slot)))
    once[slot, columns] = 1
    given, received = np.zeros((2, len(caps), len(slot)))
    given[source, columns] = 1
    received[receivers[slot], columns] = 1
    result = linprog(
        -values[slot, source],
        A_ub=np.vstack([once, given]),
        b_ub=np.concatenate([np.ones(len(receivers)), caps]),
        A_eq=given - received,
        b_eq=np.zeros(len(caps)),
        bounds=(0, 1),
        method="highs",
    )
    assert result.success
    return -result.fun


def network_simplex(receivers, values, caps):
    graph = nx.DiGraph()
    for member, cap in enumerate(caps.tolist()):
        graph.add_edge(("receives", member), ("gives", member), capacity=cap, weight=0)
    for slot, source in np.argwhere(values > 0).tolist():
        graph.add_edge(("gives", source), ("slot", slot), capacity=1, weight=-int(values[slot, source]))
    for slot, receiver in enumerate(receivers.tolist()):
        graph.add_edge(("slot", slot), ("receives", receiver), capacity=1, weight=0)
    return -nx.network_simplex(graph)[0]


@pytest.mark.parametrize("highest", [1, 3, 1000])
def test_equals_brute_force_on_small_cases(highest):
    for seed in range(40):
        problem = random_problem(seed, members=2 + seed % 3, slots=1 + seed % 6, highest=highest)
        assert checked_total(*problem, best_circulation(*problem)) == brute_force(*problem)


@pytest.mark.parametrize("highest", [4, 10**6])
def test_equals_the_linear_program(highest):
    for seed in range(40):
        problem = random_problem(seed, members=2 + seed % 7, slots=1 + 3 * seed, highest=highest)
        assert checked_total(*problem, best_circulation(*problem)) == pytest.approx(linear_program(*problem), rel=1e-9)


@pytest.mark.parametrize("highest", [2, 1 << 48])
def test_equals_network_simplex_to_the_last_unit(highest):
    for seed in range(40):
        problem = random_problem(seed, members=2 + seed % 9, slots=1 + 3 * seed, highest=highest)
        assert checked_total(*problem, best_circulation(*problem)) == network_simplex(*problem)


def test_a_large_population_is_solved_to_the_last_unit():
    receivers, values, caps = random_problem(1, members=24, slots=500, highest=1 << 40)
    assert checked_total(receivers, values, caps, best_circulation(receivers, values, caps)) == network_simplex(
        receivers, values, caps
    )


def test_no_room_gives_no_exchange():
    receivers, values, caps = random_problem(1, members=4, slots=20, highest=9)
    assert (best_circulation(receivers, values, np.zeros_like(caps)) == -1).all()
