"""Time the store: commits of a step, and questions to a run of many steps.

    python tests/benchmarks/store.py [--steps 20000]

Prints milliseconds: CPU and wall for commits (a commit waits for the disk), wall for questions (median of several).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy import insert

sys.path.insert(0, str(Path(__file__).parents[2]))

from server.store import schema
from server.store.counts import MEMBER_COUNTS, PAIR_COUNTS, PAIR_SUMS
from server.store.reader import open_reader
from server.store.writer import open_writer
from tests.store.synthetic import Scenario

METRICS = [f"metric_{number}" for number in range(30)]


def time_commits(folder: Path, prompts: int, tokens: int) -> None:
    """Ten commits of 3 members x `prompts` x 8 responses."""
    scenario = Scenario(prompts=prompts, tokens=tokens)
    steps = [scenario.step(step) for step in range(1, 11)]
    cpu, wall = [], []
    with open_writer(str(folder / f"commits-{prompts}-{tokens}.db")) as writer:
        writer.start_run(scenario.run())
        for step in steps:
            started = time.process_time(), time.perf_counter()
            writer.commit(step)
            cpu.append(1e3 * (time.process_time() - started[0]))
            wall.append(1e3 * (time.perf_counter() - started[1]))
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(
        f"commit 3 x {prompts} x 8 of {tokens} tokens: CPU {statistics.median(cpu[1:]):.1f} (first {cpu[0]:.0f}), "
        f"wall {statistics.median(wall[1:]):.1f} ms; {size / 10 / (3 * prompts * 8):.0f} bytes a response"
    )


def make_long_run(url: str, members: int, steps: int) -> None:
    """A run of many steps with only the rows the dashboard reads, inserted past the writer."""
    scenario = Scenario(members=members, steps=steps)
    with open_writer(url) as writer:
        writer.start_run(scenario.run())
        with writer._engine.begin() as connection:
            names = [{"id": place, "name": name} for place, name in enumerate(METRICS)]
            connection.execute(insert(schema.metric_names), names)
            for table, rows in _rows(members, steps):
                connection.execute(insert(table), rows)
            connection.exec_driver_sql(f"UPDATE runs SET first_step = 1, last_step = {steps}")


def _rows(members: int, steps: int) -> Iterator[tuple]:
    slots = range(members)
    for first in range(1, steps + 1, 500):
        part = range(first, min(first + 500, steps + 1))
        yield (
            schema.member_counts,
            [
                {"run": 1, "step": step, "member": slot, **dict.fromkeys(MEMBER_COUNTS, 7 * step)}
                for step in part
                for slot in slots
            ],
        )
        yield (
            schema.pair_counts,
            [
                {
                    "run": 1,
                    "step": step,
                    "receiver": i,
                    "source": j,
                    **dict.fromkeys((*PAIR_COUNTS, *PAIR_SUMS), 5 * step),
                }
                for step in part
                for i in slots
                for j in slots
                if i != j
            ],
        )
        yield (
            schema.patterns,
            [
                {"run": 1, "step": step, "solved": mask, "prompts": 4}
                for step in part
                for mask in range(min(1 << members, 32))
            ],
        )
        yield schema.metrics, [
            {
                "run": 1, "name": name, "member": slot, "step": step, "numerator": 1.0, "denominator": 2.0,
                "sum_numerator": 1.0 * step, "sum_numerator_low": 0.0, "sum_denominator": 2.0 * step,
                "finite": True, "count_finite": step, "count_not_finite": 0,
            }
            for name in range(len(METRICS))
            for slot in slots
            for step in part
        ]  # fmt: skip


def time_questions(url: str, steps: int) -> None:
    """The dashboard's questions, each the median of seven."""
    edges = {buckets: [steps * place // buckets for place in range(buckets + 1)] for buckets in (50, 300)}
    with open_reader(url) as reader:
        questions: dict[str, Callable[[], object]] = {
            "revision": lambda: reader.revision("latest"),
            "complementarity of the whole run": lambda: reader.complementarity("latest", 1, steps),
            "member counts": lambda: reader.member_counts("latest", 1, steps),
            "pair history, 50 buckets": lambda: reader.pair_history("latest", edges[50]),
            "pair history, 300 buckets": lambda: reader.pair_history("latest", edges[300]),
            "member history, 300 buckets": lambda: reader.member_history("latest", edges[300]),
            "metric history, 50 buckets": lambda: reader.metric_history("latest", METRICS[3], edges[50]),
            "metric history, 300 buckets": lambda: reader.metric_history("latest", METRICS[3], edges[300]),
            "metric names": lambda: reader.metric_names("latest"),
            "patterns of the last 200 steps": lambda: reader.patterns("latest", steps - 199, steps),
            "patterns of the whole run": lambda: reader.patterns("latest", 1, steps),
        }
        for name, ask in questions.items():
            times = []
            for _ in range(7):
                started = time.perf_counter()
                ask()
                times.append(1e3 * (time.perf_counter() - started))
            print(f"{name}: {statistics.median(times):.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--members", type=int, default=5)
    arguments = parser.parse_args()
    for prompts, tokens in ((32, 25), (128, 25), (128, 1000)):
        with tempfile.TemporaryDirectory() as folder:
            time_commits(Path(folder), prompts, tokens)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/long.db"
        make_long_run(url, arguments.members, arguments.steps)
        megabytes = (Path(folder) / "long.db").stat().st_size / 1e6
        print(f"run of {arguments.members} members and {arguments.steps} steps, index only: {megabytes:.0f} MB")
        time_questions(url, arguments.steps)


if __name__ == "__main__":
    main()
