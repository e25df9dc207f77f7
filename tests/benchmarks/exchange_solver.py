"""CPU time of one exchange at N = 3, 8, 16, 32 members, and of its solver against networkx and HiGHS.

    python tests/benchmarks/exchange_solver.py [--prompts 128] [--repeats 5] [--others]

Synthetic steps: every member has its own ability and every prompt its own difficulty, n = 8, about a third of all
groups fail. Times are the median CPU milliseconds of one thread; every solver finds the same total value.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from graft.candidates import TIE_LEVELS
from graft.circulation import best_circulation
from graft.selection import exchange

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


def report(members: int, prompts: int, repeats: int, *, others: bool) -> str:
    """One line of the table."""
    problem = solver_input(members, prompts, seed=1)
    successes, attempts, rates = synthetic_step(members, prompts, seed=1)
    times = [
        cpu_ms(partial(by_paths, problem), repeats),
        cpu_ms(partial(exchange, successes, attempts, edge_rates=rates), repeats),
        cpu_ms(partial(exchange, successes, attempts, edge_rates=rates, balance="none"), repeats),
    ]
    warning = ""
    if others:
        times.append(cpu_ms(partial(by_linear_program, problem), 3))
        times.append(cpu_ms(partial(by_network_simplex, problem), 1))
        totals = {by_paths(problem), by_linear_program(problem), by_network_simplex(problem)}
        warning = "" if len(totals) == 1 else f"  the solvers disagree: {totals}"
    sizes = f"{members:4d} {len(problem[0]):6d} {int((problem[1] > 0).sum()):11d}"
    return sizes + "".join(f" {ms:14.1f}" for ms in times) + warning


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--others", action="store_true", help="also time HiGHS and networkx")
    options = parser.parse_args()
    columns = ["solver", "exchange", "unbalanced"] + ["HiGHS", "networkx"] * options.others
    print("   N  slots  candidates" + "".join(f"{name + ' ms':>15s}" for name in columns))
    for members in (3, 8, 16, 32):
        print(report(members, options.prompts, options.repeats, others=options.others), flush=True)


if __name__ == "__main__":
    main()
