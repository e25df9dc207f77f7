"""Compare methods on the demo over seed pairs: ``python -m population.demo.study --arms grpo graft --seeds 0 1 2 3 4``.

Each (arm, seed) is one recorded run in a process of its own, with its own store; what is finished is not run again,
what was interrupted goes on. A seed is a pair: it sets the warm start and the training. Printed per arm: held-out
accuracy (mean over members) at the last step by seed, the paired difference to GRPO with a 95 % t interval over seeds
at equal rollouts, and the same at equal CPU time (the arm's newest evaluation within GRPO's CPU seconds). CPU seconds
count training steps; evaluation is left out on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scipy import stats

from server.store.reader import Reader, open_reader

RUN_DEADLINE_S = 3600.0
BENCHMARK = "heldout"
ABSENT = "–"


@dataclass(frozen=True)
class Arm:
    """One way to train: a configuration file and what it overrides."""

    config: str
    overrides: tuple[str, ...]
    description: str


DEMO, PAIR = "configs/demo.yaml", "configs/demo_pair.yaml"
ARMS: Mapping[str, Arm] = {
    "grpo": Arm(DEMO, ("method=grpo",), "independent GRPO, n = 8"),
    "grpo-16": Arm(DEMO, ("method=grpo", "rollouts.rollouts_per_prompt=16"), "independent GRPO, n = 16"),
    "graft": Arm(DEMO, (), "GRAFT as the demo configures it"),
    "no-gate": Arm(DEMO, ("method=graft-no-gate",), "every transferred response at weight 1"),
    "balance-pairwise": Arm(DEMO, ("exchange.balance=pairwise",), "balance by pairs"),
    "balance-receiver": Arm(DEMO, ("exchange.balance=receiver",), "every member receives the same number"),
    "balance-none": Arm(DEMO, ("exchange.balance=none",), "no balance"),
    "normaliser-own": Arm(DEMO, ("exchange.normaliser=own",), "s by own-token means, the paper's"),
    "normaliser-reference": Arm(DEMO, ("exchange.normaliser=reference",), "s per mean token of the population"),
    "pair": Arm(PAIR, (), "GRAFT with two members"),
}


@dataclass(frozen=True)
class Result:
    """One finished run. ``accuracy`` and ``cpu`` are by evaluated step: {step: [N]} and {step: training CPU seconds
    so far}.
    """

    members: tuple[str, ...]
    accuracy: dict[int, np.ndarray]
    cpu: dict[int, float]

    @property
    def last(self) -> int:
        """The last evaluated step."""
        return max(self.accuracy)

    def mean(self, step: int, members: Sequence[str]) -> float:
        """Held-out accuracy at a step, mean over some members."""
        return float(np.mean([self.accuracy[step][self.members.index(name)] for name in members]))

    def step_within(self, cpu_seconds: float) -> int:
        """The newest evaluated step whose training took at most this much CPU."""
        return max((step for step, spent in self.cpu.items() if spent <= cpu_seconds), default=0)


def run_arm(name: str, seed: int, folder: Path, overrides: Sequence[str]) -> Result:
    """Train one arm with one seed pair unless its finished record is there; RuntimeError with the log's tail when it
    fails.
    """
    arm = ARMS[name]
    home = folder / f"{name}-{seed}"
    url = f"sqlite:///{home / 'graft.db'}"
    if not _finished(url):
        home.mkdir(parents=True, exist_ok=True)
        settings = [
            f"seed={seed}",
            f"warm_start_seed={seed}",
            f"folder={folder}",
            f"store={url}",
            *arm.overrides,
            *overrides,
        ]
        command = [sys.executable, "-m", "population", "train", arm.config, "--quiet", "--run", f"{name}-{seed}"]
        command += [part for setting in settings for part in ("--set", setting)] + (
            ["--resume"] if _started(url) else []
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (home / "log.txt").open("w") as log:
            code = subprocess.run(
                command, stdout=log, stderr=log, env=environment, timeout=RUN_DEADLINE_S, check=False
            ).returncode
        if code != 0:
            tail = (home / "log.txt").read_text().strip().splitlines()[-3:]
            raise RuntimeError(f"arm {name}, seed {seed}: exit code {code}: {' / '.join(tail)}")
    with open_reader(url) as reader:
        return read_result(reader)


def read_result(reader: Reader) -> Result:
    """What a finished run's record says."""
    run = reader.run("latest")
    names = tuple(member.name for member in run.members)
    accuracy: dict[int, np.ndarray] = {}
    for e in reader.evaluations(run.uid):
        if e.benchmark == BENCHMARK:
            accuracy.setdefault(e.step, np.full(len(names), np.nan))[names.index(e.member)] = e.mean
    cpu = {step: reader.run_metric(run.uid, "seconds_cpu", 1, step)[0] if step else 0.0 for step in accuracy}
    return Result(names, accuracy, cpu)


def _started(url: str) -> bool:
    return Path(url.removeprefix("sqlite:///")).exists()


def _finished(url: str) -> bool:
    if not _started(url):
        return False
    with open_reader(url) as reader:
        runs = reader.runs()
    return bool(runs) and runs[0].status == "finished"


def run_all(
    arms: Sequence[str], seeds: Sequence[int], folder: Path, jobs: int, overrides: Sequence[str], console: Console
) -> dict[str, dict[int, Result]]:
    """Run everything, ``jobs`` at a time, one progress bar; {arm: {seed: result}}."""
    work = [(arm, seed) for seed in seeds for arm in arms]
    with Progress(console=console) as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task(f"{len(work)} runs", total=len(work))
        futures = {}
        for arm, seed in work:
            futures[(arm, seed)] = pool.submit(run_arm, arm, seed, folder, overrides)
            futures[(arm, seed)].add_done_callback(lambda _: progress.advance(task))
        results: dict[str, dict[int, Result]] = {arm: {} for arm in arms}
        for (arm, seed), future in futures.items():
            results[arm][seed] = future.result()
    return results


@dataclass(frozen=True)
class Paired:
    """Differences by seed with their mean and 95 % t interval; the interval is None for fewer than two seeds."""

    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean difference."""
        return float(np.mean(self.differences))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % t interval of the mean."""
        if len(self.differences) < 2:
            return None
        half = float(stats.t.ppf(0.975, len(self.differences) - 1) * stats.sem(self.differences))
        return self.mean - half, self.mean + half


def compare(arm: Mapping[int, Result], baseline: Mapping[int, Result]) -> tuple[Paired, Paired]:
    """(at equal rollouts: both at their last step; at equal CPU: the arm within the baseline's CPU seconds), over
    common seeds.

    Members are those of the arm: a pair is compared with the same two members trained alone.
    """
    equal_steps, equal_cpu = [], []
    for seed in sorted(set(arm) & set(baseline)):
        a, b = arm[seed], baseline[seed]
        reference = b.mean(b.last, a.members)
        share = len(a.members) / len(b.members)  # what training only these members would have cost
        equal_steps.append(a.mean(a.last, a.members) - reference)
        equal_cpu.append(a.mean(a.step_within(b.cpu[b.last] * share), a.members) - reference)
    return Paired(tuple(equal_steps)), Paired(tuple(equal_cpu))


def rows(results: Mapping[str, Mapping[int, Result]]) -> Iterator[list[str]]:
    """The table's rows as text; a dash where an arm is not compared with itself or its baseline was not run."""
    grpo, graft = results.get("grpo"), results.get("graft")
    for name, by_seed in results.items():
        finals = [r.mean(r.last, r.members) for r in by_seed.values()]
        starts = [r.mean(0, r.members) for r in by_seed.values()]
        spread = f" ± {np.std(finals, ddof=1):.3f}" if len(finals) > 1 else ""
        cells = [name, f"{np.mean(starts):.3f}", " ".join(f"{x:.3f}" for x in finals), f"{np.mean(finals):.3f}{spread}"]
        cells.append(f"{np.mean([r.cpu[r.last] for r in by_seed.values()]):.0f}")
        against_grpo = compare(by_seed, grpo) if grpo and name != "grpo" else (None, None)
        against_graft = compare(by_seed, graft)[0] if graft and name not in ("grpo", "graft") else None
        cells += [ABSENT if paired is None else _signed(paired) for paired in (*against_grpo, against_graft)]
        yield cells


def _signed(paired: Paired) -> str:
    text = f"{paired.mean:+.3f}"
    if paired.interval is not None:
        text += f" [{paired.interval[0]:+.3f}, {paired.interval[1]:+.3f}]"
    return text


HEADINGS = (
    "arm",
    "start",
    "held-out accuracy by seed",
    "mean ± sd",
    "CPU s",
    "against grpo, equal rollouts",
    "against grpo, equal CPU",
    "against graft, equal rollouts",
)


def print_table(console: Console, results: Mapping[str, Mapping[int, Result]]) -> None:
    """The comparison for people."""
    table = Table(*HEADINGS, title="held-out accuracy, mean over members; differences paired by seed, 95 % t intervals")
    for row in rows(results):
        table.add_row(*row)
    console.print(table)


def markdown(results: Mapping[str, Mapping[int, Result]]) -> str:
    """The comparison as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows(results))]) + "\n"


def as_json(results: Mapping[str, Mapping[int, Result]]) -> str:
    """Everything the table is made of."""
    tree = {
        name: {
            str(seed): {
                "members": r.members,
                "accuracy": {str(step): values.tolist() for step, values in r.accuracy.items()},
                "cpu_seconds": {str(step): seconds for step, seconds in r.cpu.items()},
            }
            for seed, r in by_seed.items()
        }
        for name, by_seed in results.items()
    }
    return json.dumps(tree, indent=1)


def from_json(text: str) -> dict[str, dict[int, Result]]:
    """The inverse of :func:`as_json`."""
    return {
        name: {
            int(seed): Result(
                tuple(run["members"]),
                {int(step): np.array(values) for step, values in run["accuracy"].items()},
                {int(step): seconds for step, seconds in run["cpu_seconds"].items()},
            )
            for seed, run in by_seed.items()
        }
        for name, by_seed in json.loads(text).items()
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--arms",
        nargs="+",
        default=["grpo", "graft"],
        choices=[*ARMS, "all"],
        metavar="ARM",
        help=f"all, or some of {', '.join(ARMS)}",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--folder", type=Path, default=Path("runs/study"))
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="for every arm"
    )
    parser.add_argument("--output", type=Path, help="write results as JSON and a Markdown table beside it")
    arguments = parser.parse_args()
    console = Console()
    started = time.monotonic()
    arms = list(ARMS) if "all" in arguments.arms else arguments.arms
    results = run_all(arms, arguments.seeds, arguments.folder, arguments.jobs, arguments.overrides, console)
    print_table(console, results)
    for name in arms:
        console.print(f"{name}: {ARMS[name].description}", highlight=False)
    console.print(f"{time.monotonic() - started:.0f} s wall; the runs are in {arguments.folder}", highlight=False)
    if arguments.output:
        arguments.output.write_text(as_json(results))
        arguments.output.with_suffix(".md").write_text(markdown(results))


if __name__ == "__main__":
    main()
