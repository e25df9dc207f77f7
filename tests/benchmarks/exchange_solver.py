"""CPU time of one exchange at N = 3, 8, 16, 32 members, and of its solver against networkx and HiGHS.

    python tests/benchmarks/exchange_solver.py [--prompts 128] [--repeats 5]

Synthetic steps: every member has its own ability and every prompt its own difficulty, n = 8, about a third of all
groups fail. Times are the median CPU milliseconds of one thread; every solver finds the same total value.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from graft.circulation import best_circulation
from graft.selection import TIE_LEVELS, exchange

IntArray = NDArray[np.int64]
Problem = tuple[IntArray, IntArray, IntArray]


def synthetic_step(
    members: int, prompts: int, seed: int
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]], dict[tuple[str, str], float]]:
    """Success counts, attempts and edge rates of one made-up step."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 0.7, (members, 1)) + rng.normal(-0.8, 2, (1, prompts)) + rng.normal(0, 1, (members, prompts))
    counts = rng.binomial(8, 1 / (1 + np.exp(-logits)))
    names = [f"m{index}" for index in range(members)]
    successes = {name: {q: int(counts[i, q]) for q in range(prompts)} for i, name in enumerate(names)}
    attempts = {name: dict.fromkeys(range(prompts), 8) for name in names}
    rates = {(i, j): float(rng.uniform(0.2, 1.0)) for i in names for j in names if i != j}
    return successes, attempts, rates


def solver_input(members: int, prompts: int, seed: int) -> Problem:
    """The same step as the solver sees it: receivers [S], integer values [S, N], limits [N]."""
    successes, _, rates = synthetic_step(members, prompts, seed)
    names = list(successes)
    counts = np.array([[successes[name][q] for q in range(prompts)] for name in names])
    useful = (counts > 0) & (counts < 8)
    receivers, prompt = np.nonzero((counts == 0) & useful.any(axis=0))
    g = np.array([[rates.get((i, j), 1.0) for j in names] for i in names])
    worth = np.rint(counts[:, prompt].T * g[receivers] * (1 << 30)).astype(np.int64) + TIE_LEVELS
    values = np.where(useful[:, prompt].T, worth, -(1 << 60))
    return receivers, values, np.full(members, prompts)


def total_of(problem: Problem, sources: IntArray) -> int:
    """Total integer value of an assignment."""
    served = np.flatnonzero(sources >= 0)
    return int(problem[1][served, sources[served]].sum())


def by_paths(problem: Problem) -> int:
    """The product's solver."""
    return total_of(problem, best_circulation(*problem))


def by_network_simplex(problem: Problem) -> int:
    """networkx, integer costs."""
    receivers, values, _ = problem
    graph = nx.DiGraph()
    for slot, source in np.argwhere(values > 0).tolist():
        graph.add_edge(("S", source), ("slot", slot), capacity=1, weight=-int(values[slot, source]))
    for slot, receiver in enumerate(receivers.tolist()):
        graph.add_edge(("slot", slot), ("S", receiver), capacity=1, weight=0)
    return -int(nx.network_simplex(graph)[0])


def by_linear_program(problem: Problem) -> int:
    """HiGHS through scipy."""
    receivers, values, caps = problem
    slot, source = np.nonzero(values > 0)
    columns = np.arange(len(slot))
    ones = np.ones(len(slot))
    once = coo_matrix((ones, (slot, columns)), shape=(len(receivers), len(slot)))
    rows = np.concatenate([source, receivers[slot]])
    balance = coo_matrix((np.concatenate([ones, -ones]), (rows, np.tile(columns, 2))), shape=(len(caps), len(slot)))
    result = linprog(
        -values[slot, source] / (1 << 30),
        A_ub=once.tocsr(),
        b_ub=np.ones(len(receivers)),
        A_eq=balance.tocsr(),
        b_eq=np.zeros(len(caps)),
        bounds=(0, 1),
        method="highs",
    )
    return int(values[slot, source][result.x > 0.5].sum())


def cpu_ms(run: Callable[[], object], repeats: int) -> float:
    """Median CPU milliseconds of `run`."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--others", action="store_true", help="also time networkx and HiGHS")
    options = parser.parse_args()
    print("   N  slots  candidates  solver ms  exchange ms  none ms" + ("   HiGHS ms  networkx ms" * options.others))
    for members in (3, 8, 16, 32):
        problem = solver_input(members, options.prompts, seed=1)
        successes, attempts, rates = synthetic_step(members, options.prompts, seed=1)
        whole = {
            mode: cpu_ms(lambda m=mode: exchange(successes, attempts, edge_rates=rates, balance=m), options.repeats)
            for mode in ("circulation", "none")
        }
        solver = cpu_ms(lambda: by_paths(problem), options.repeats)
        line = f"{members:4d} {len(problem[0]):6d} {int((problem[1] > 0).sum()):11d} {solver:10.1f}"
        line += f" {whole['circulation']:12.1f} {whole['none']:8.1f}"
        if options.others:
            line += f" {cpu_ms(lambda: by_linear_program(problem), 3):10.1f}"
            line += f" {cpu_ms(lambda: by_network_simplex(problem), 1):12.1f}"
            totals = (by_paths(problem), by_linear_program(problem), by_network_simplex(problem))
            line += "" if len(set(totals)) == 1 else f"  DIFFERENT TOTALS {totals}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
