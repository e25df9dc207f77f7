"""The success graph and the router's own work at 1,000,000 prompts x 32 members, solver apart.

    .venv/bin/python tests/benchmarks/success_graph.py

Prints machine, versions, memory of the graph, and CPU ms a step (median) of recording 128 prompts x 32 members and of
the router without the solver (balance none: best source per slot, no balance). The solver alone: exchange_solver.py.
"""

from __future__ import annotations

import json
import platform
import statistics
import time

import numpy as np
import psutil

from graft.groups import Group, Response
from graft.methods import METHODS
from population.config import ExchangeConfig
from population.router import Router
from population.success_graph import StepCounts, SuccessGraph

PROMPTS, MEMBERS, BATCH, RESPONSES, STEPS = 1_000_000, 32, 128, 8, 21


def batch(
    rng: np.random.Generator, keys: np.ndarray, members: list[str], response: Response
) -> dict[str, dict[int, Group]]:
    """Groups of one step with random rewards, so that about half of the groups are all-fail."""
    chosen = rng.choice(keys, BATCH, replace=False).tolist()
    graded = np.ones(RESPONSES, bool)
    found: dict[str, dict[int, Group]] = {}
    for member in members:
        difficulty = rng.random(BATCH)[:, None]
        rewards = (rng.random((BATCH, RESPONSES)) < np.maximum(difficulty - 0.5, 0)).astype(np.float64)
        found[member] = {
            p: Group(member, p, (response,) * RESPONSES, r, graded) for p, r in zip(chosen, rewards, strict=True)
        }
    return found


def main() -> None:
    """Measure and print."""
    rng = np.random.default_rng(0)
    keys = np.sort(rng.choice(2**53 - 1, PROMPTS, replace=False)).astype(np.int64)
    members = [f"m{i:02d}" for i in range(MEMBERS)]
    response = Response(np.ones(4, np.int32), "text", np.zeros(4, np.float32), True, 0)
    process = psutil.Process()
    before = process.memory_info().rss
    graph = SuccessGraph(members, keys)
    router = Router(METHODS["graft"], ExchangeConfig(balance="none"), seed=0)
    record, route = [], []
    for step in range(1, STEPS + 1):
        groups = batch(rng, keys, members, response)
        start = time.process_time()
        counts = StepCounts.of(groups)
        graph.record(step, groups)
        record.append(time.process_time() - start)
        start = time.process_time()
        router.route(step, counts)
        route.append(time.process_time() - start)
    for array in (graph.attempts, graph.successes, graph.rate, graph.last_step):
        array[:] += 0  # touch every page, so that the memory figure is the whole graph's
    memory = process.memory_info().rss - before
    start = time.process_time()
    graph.complementarity()
    matrix = time.process_time() - start
    print(
        json.dumps(
            {
                "machine": f"{platform.machine()}, {psutil.cpu_count()} cores, numpy {np.__version__}",
                "prompts x members": f"{PROMPTS} x {MEMBERS}",
                "record_ms": round(1e3 * statistics.median(record), 2),
                "route_without_solver_ms": round(1e3 * statistics.median(route), 2),
                "both_ms": round(1e3 * statistics.median(a + b for a, b in zip(record, route, strict=True)), 2),
                "memory_gib": round(memory / 2**30, 3),
                "whole_matrix_s": round(matrix, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
