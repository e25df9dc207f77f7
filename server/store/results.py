"""What a recorded run says as far as runs are compared: accuracy and cost at every evaluated step.

Accuracies are shares in [0, 1]. Costs are cumulative from the first step and belong to members, so that the cost of
some members of a run is a sum: rollouts and response tokens are the member's own, seconds are shared out equally over
the members that the run trains.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from server.store.best import Rule, choose, rule_of
from server.store.connections import without_password
from server.store.counts import Floats, Ints
from server.store.records import EvaluationRecord, Role
from server.store.scores import mean_interval
from server.store.views import EvaluationSummary, RunInfo

ByStep = Mapping[int, Mapping[str, float]]

# Cost kinds in the order in which they are shown, and what people call them.
COSTS = {
    "rollouts": "rollouts",
    "rollout_tokens": "rollout tokens",
    "cpu_seconds": "CPU s",
    "wall_seconds": "wall s",
    "gpu_seconds": "GPU s",
}
# Seconds by the name of their metric of the whole run; evaluation and checkpoints are in none of them. GPU seconds are
# the paper's cost, number of GPUs times wall time of the step.
_SECONDS = {"cpu_seconds": "seconds_cpu", "wall_seconds": "step_seconds", "gpu_seconds": "gpu_seconds"}


@dataclass(frozen=True)
class Protocol:
    """How a benchmark was measured, and what it is for: only those of the role "test" are compared."""

    problems: int
    responses: int
    temperature: float
    role: Role = "test"


@dataclass(frozen=True)
class Selection:
    """A run's own rule for its best checkpoints, and the benchmarks it looks at, all of one role."""

    rule: Rule
    role: Role
    benchmarks: tuple[str, ...]


@dataclass(frozen=True)
class RunResult:
    """One run. ``accuracy`` is {benchmark: {step: {member: share right}}}, ``cost`` is {kind: {step: {member: spent so
    far}}}; what was not recorded is not there. ``repeats`` is as ``accuracy``, of best checkpoints measured again, mean
    over the repeats. ``members`` are those the run trains, in slot order.
    """

    uid: str
    store: str
    method: str
    seed: int
    status: str
    last_step: int
    total_steps: int
    members: tuple[str, ...]
    accuracy: Mapping[str, ByStep]
    repeats: Mapping[str, ByStep]
    cost: Mapping[str, ByStep]
    protocol: Mapping[str, Protocol]
    selection: Selection

    @property
    def steps(self) -> tuple[int, ...]:
        """The evaluated steps, ascending."""
        return tuple(sorted({step for by_step in self.accuracy.values() for step in by_step}))

    def spent(self, kind: str, step: int, members: Sequence[str]) -> float | None:
        """What some members had cost at a step; None where that was not recorded."""
        row = self.cost.get(kind, {}).get(step)
        return None if row is None else math.fsum(row[name] for name in members)

    def total(self, kind: str, members: Sequence[str]) -> float | None:
        """What some members cost in the whole run; None where that was not recorded."""
        by_step = self.cost.get(kind)
        return self.spent(kind, max(by_step), members) if by_step else None


Pick = Callable[[RunResult, str, Sequence[int]], int | None]


@dataclass(frozen=True)
class Checkpoint:
    """Which checkpoint of a run is compared: ``pick(run, member, evaluated steps that may be taken)``, None for none of
    them. ``repeated``: by the repeated evaluations of the best checkpoint, not by the one in the course of training.
    """

    name: str
    description: str
    pick: Pick
    repeated: bool = False


def _last(run: RunResult, member: str, steps: Sequence[int]) -> int:
    return max(steps)


def _best(run: RunResult, member: str, steps: Sequence[int]) -> int | None:
    names = run.selection.benchmarks
    scores = {
        step: {name: run.accuracy[name][step][member] for name in names if member in _row(run.accuracy, name, step)}
        for step in steps
    }
    found = choose(scores, names, run.selection.rule)
    # Before the first trained checkpoint a member is what it was.
    return 0 if found is None and max(steps) == 0 else found


def _row(table: Mapping[str, ByStep], name: str, step: int) -> Mapping[str, float]:
    return table.get(name, {}).get(step, {})


CHECKPOINTS = {
    checkpoint.name: checkpoint
    for checkpoint in (
        Checkpoint("last", "the last evaluation of each run", _last),
        Checkpoint("best", "the best checkpoint of each member, as measured in training", _best),
        Checkpoint("repeats", "the best checkpoint of each member, measured again (mean of its repeats)", _best, True),
    )
}


class Answers(typing.Protocol):
    """What a result is made of, as `Reader` answers it; who keeps answers can give them again."""

    def evaluations(self, run: str) -> Sequence[EvaluationSummary]: ...

    def repeated_accuracy(self, run: str) -> dict[str, dict[int, dict[str, float]]]: ...

    def member_history(self, run: str, edges: Sequence[int]) -> dict[str, Ints]: ...

    def metric_history(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]: ...

    def run_metric_history(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]: ...


def read_result(reader: Answers, run: RunInfo, store: str) -> RunResult:
    """The comparable part of a run's record; ``store`` is the database URL, for the reader of the comparison."""
    evaluations = reader.evaluations(run.uid)
    accuracy: dict[str, dict[int, dict[str, float]]] = {}
    protocol = {}
    for e in evaluations:
        if math.isfinite(e.mean):
            accuracy.setdefault(e.benchmark, {}).setdefault(e.step, {})[e.member] = e.mean
            protocol[e.benchmark] = Protocol(e.problems, e.responses, e.temperature, e.role)
    members = tuple(member.name for member in run.members if member.name not in recorded_members(run.config))
    last = run.last_step or 0
    steps = sorted({e.step for e in evaluations} | {0, last})
    return RunResult(
        uid=run.uid,
        store=without_password(store),
        method=run.method,
        seed=run.seed,
        status=run.status,
        last_step=last,
        total_steps=run.total_steps,
        members=members,
        accuracy=accuracy,
        repeats=reader.repeated_accuracy(run.uid),
        cost=_costs(reader, run, members, steps),
        protocol=protocol,
        selection=Selection(*rule_of(run.config)),
    )


def repeated_accuracy(records: Iterable[EvaluationRecord]) -> dict[str, dict[int, dict[str, float]]]:
    """{benchmark: {step: {member: mean over repeats}}}."""
    passes: dict[tuple[str, int, str], list[float]] = {}
    for record in records:
        _, correct, responses = zip(*record.problems, strict=True)
        passes.setdefault((record.benchmark, record.step, record.member), []).append(
            mean_interval(correct, responses).mean
        )
    found: dict[str, dict[int, dict[str, float]]] = {}
    for (benchmark, step, member), values in passes.items():
        found.setdefault(benchmark, {}).setdefault(step, {})[member] = float(np.mean(values))
    return found


def recorded_members(config: Mapping[str, Any]) -> set[str]:
    """The members that are recorded runs: they are not trained and cost nothing."""
    return {str(entry["name"]) for entry in config.get("members", ()) if entry.get("source")}


def _costs(
    reader: Answers, run: RunInfo, members: Sequence[str], steps: Sequence[int]
) -> dict[str, dict[int, dict[str, float]]]:
    """{kind: {step: {member: spent up to the step}}} of every kind that was recorded in all steps. ``steps`` start
    with 0.
    """
    names = [member.name for member in run.members]
    edges = list(steps) if len(steps) > 1 else [0, 0]
    done = np.array([min(max(step - (run.first_step or 1) + 1, 0), run.last_step or 0) for step in edges[1:]])
    own = {
        "rollouts": reader.member_history(run.uid, edges)["rollouts"].astype(float),
        "rollout_tokens": reader.metric_history(run.uid, "response_tokens", edges)[0],
    }
    costs = {kind: _cumulative(table[:, [names.index(m) for m in members]]) for kind, table in own.items()}
    for kind, metric in _SECONDS.items():
        seconds, counted = reader.run_metric_history(run.uid, metric, edges)
        if np.array_equal(np.cumsum(counted), done):
            costs[kind] = _cumulative(np.repeat(seconds[:, None] / max(len(members), 1), len(members), axis=1))
    return {
        kind: {step: dict(zip(members, row, strict=True)) for step, row in zip(edges, table, strict=True)}
        for kind, table in costs.items()
    }


def _cumulative(table: np.ndarray) -> list[list[float]]:
    """[B, M] per bucket to [B + 1][M] at each edge."""
    rows: list[list[float]] = np.vstack([np.zeros(table.shape[1]), np.cumsum(table, axis=0)]).tolist()
    return rows
