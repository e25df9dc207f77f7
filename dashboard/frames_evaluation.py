"""Frames and rows of the Evaluation page: pure, no Streamlit, no database. Scores are shares in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from dashboard import formats, paper
from dashboard.frames import Array
from dashboard.frames_compare import scores_by_step
from server.store.reader import BestCheckpoint, EvaluationSummary, RunResult, Score

MEAN = "mean of the test sets"
_Z = 1.959963984540054
# What a run is measured by against its cost, in order of preference, and its name.
COSTS = (("gpu_seconds", "GPU hours"), ("cpu_seconds", "CPU hours"), ("wall_seconds", "hours of wall time"))


class Figure(NamedTuple):
    """A score with its 95 % interval over problems."""

    mean: float
    low: float
    high: float

    def text(self) -> str:
        """In percent; a dash where it is missing."""
        if not math.isfinite(self.mean):
            return formats.MISSING
        return f"{formats.percent(self.mean)} ({formats.span(self.low, self.high)})"


def mean_figure(parts: Sequence[Figure]) -> Figure:
    """The unweighted mean over benchmarks; their problems are other ones, so distances to the bounds add as squares."""
    size = len(parts)
    mean = math.fsum(part.mean for part in parts) / size
    down = math.sqrt(math.fsum((part.mean - part.low) ** 2 for part in parts)) / size
    up = math.sqrt(math.fsum((part.high - part.mean) ** 2 for part in parts)) / size
    return Figure(mean, mean - down, mean + up)


def figures(evaluations: Sequence[EvaluationSummary], benchmarks: Sequence[str]) -> dict[str, dict[int, Figure]]:
    """{member: {step: mean over the benchmarks}} of the steps at which a member was evaluated on all of them."""
    found: dict[str, dict[int, dict[str, Figure]]] = {}
    for one in evaluations:
        if one.benchmark in benchmarks and math.isfinite(one.mean):
            at = found.setdefault(one.member, {}).setdefault(one.step, {})
            at[one.benchmark] = Figure(one.mean, one.low, one.high)
    return {
        member: {
            step: mean_figure([own[name] for name in benchmarks])
            for step, own in sorted(by_step.items())
            if len(own) == len(benchmarks)
        }
        for member, by_step in found.items()
    }


def curves(
    names: Sequence[str], labels: Sequence[str], scores: Mapping[str, Mapping[int, Figure]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Frames "curves" and "hover" of `charts.curves`, at the evaluated steps."""
    steps = sorted({step for own in scores.values() for step in own})
    gap = Figure(math.nan, math.nan, math.nan)
    rows = [
        (label, step, *(one := scores.get(name, {}).get(step, gap)), math.isfinite(one.mean))
        for step in steps
        for name, label in zip(names, labels, strict=True)
    ]
    hover = pd.DataFrame({"step": steps, "steps": [formats.count(step) for step in steps]})
    for place, name in enumerate(names):
        hover[f"m{place}"] = [scores.get(name, {}).get(step, gap).text() for step in steps]
    return pd.DataFrame(rows, columns=["member", "step", "value", "low", "high", "lone"]), hover


def paired_by_problem(own: tuple[Array, Array, Array], base: tuple[Array, Array, Array]) -> tuple[Figure, int]:
    """(own less base with its 95 % interval, how many problems both have), from (keys, right, responses) each.

    The interval is over problems: it says what other problems would change, not what another seed would.
    """
    keys, left, right = np.intersect1d(own[0], base[0], return_indices=True)
    if len(keys) < 2:
        return Figure(math.nan, math.nan, math.nan), len(keys)
    change = own[1][left] / own[2][left] - base[1][right] / base[2][right]
    mean = float(change.mean())
    half = _Z * float(change.std(ddof=1)) / math.sqrt(len(keys))
    return Figure(mean, mean - half, mean + half), len(keys)


def points_text(change: Figure) -> str:
    """A difference in percentage points with its interval."""
    if not math.isfinite(change.mean):
        return formats.MISSING
    middle, low, high = (formats.signed(100 * value, 1) for value in change)
    return f"{middle} ({low} to {high})"


@dataclass(frozen=True)
class Scored:
    """One member as its rows of the table need it."""

    name: str
    label: str
    best: BestCheckpoint | None
    scores: Mapping[str, Score]
    repeats: Mapping[str, Score]
    changes: Mapping[str, Figure]


def table(
    members: Sequence[Scored], evaluations: Sequence[EvaluationSummary], benchmarks: Sequence[str], compared: bool
) -> pd.DataFrame:
    """A row for every member and benchmark; `scores` and `repeats` of the best checkpoint, `changes` to a baseline.
    maj@k and repeats that no row has are left out."""
    rows = []
    for member in members:
        for name in benchmarks:
            own = {one.step: one for one in evaluations if one.member == member.name and one.benchmark == name}
            if not own:
                continue
            first, last = own[min(own)], own[max(own)]
            best = own.get(member.best.step) if member.best else None
            score = member.scores.get(name)
            row = {
                "Member": member.label,
                "Benchmark": formats.clean(name, 40),
                "For": "selection" if last.role == "validation" else "report",
                "Before": _at(first) if first.step == 0 else formats.MISSING,
                "Last": _at(last) if last.step else formats.MISSING,
                "Best": _at(best) if best else formats.MISSING,
                "pass@k": _largest("pass", score.pass_at if score else {}),
                "maj@k": _largest("maj", score.majority_at if score else {}),
                "Repeated": _repeated(member.repeats.get(name)),
                "From": f"{formats.count(last.problems)} × {formats.count(last.responses / max(last.problems, 1))}",
            }
            if compared:
                row["Less baseline"] = points_text(member.changes.get(name, Figure(math.nan, math.nan, math.nan)))
            rows.append(row)
    frame = pd.DataFrame(rows)
    nowhere = [name for name in ("maj@k", "Repeated") if name in frame and (frame[name] == formats.MISSING).all()]
    leading = ["Member", "Benchmark", "For", "Before", "Last", *(["Less baseline"] if compared else [])]
    return frame[[*leading, *(name for name in frame.columns if name not in (*leading, *nowhere))]]


def _at(one: EvaluationSummary) -> str:
    return f"{Figure(one.mean, one.low, one.high).text()}, step {formats.count(one.step)}"


def _largest(what: str, at: Mapping[int, float]) -> str:
    """The figure of the largest k, which is named."""
    if not at:
        return formats.MISSING
    k = max(at)
    return f"{formats.percent(at[k])} ({what}@{k})"


def _repeated(score: Score | None) -> str:
    if score is None:
        return formats.MISSING
    sd = f" ± {formats.number(100 * score.sd, 2)}" if math.isfinite(score.sd) else ""
    return f"{formats.number(100 * score.pass1.mean, 2)}{sd} (n {len(score.passes)})"


def cost_kind(run: RunResult) -> tuple[str, str] | None:
    """(kind, name) of the cost a run is measured by; None where none was recorded in all steps."""
    return next(((kind, name) for kind, name in COSTS if kind in run.cost), None)


def cost_points(run: RunResult, kind: str, members: Sequence[str], benchmarks: Sequence[str]) -> dict[int, tuple]:
    """{step: (hours, score)} at the evaluated steps of a run, all its members together; {} without such a cost."""
    found = {}
    for step, score in scores_by_step(run, members, benchmarks).items():
        spent = run.spent(kind, step, members)
        if spent is not None:
            found[step] = (spent / 3600, score)
    return found


def frontier(runs: Sequence[tuple[str, str, Mapping[int, tuple]]], unit: str) -> dict[str, pd.DataFrame]:
    """Frames "runs" and "frontier" of `charts_compare.frontier` from (kind, run's name, {step: (hours, score)}).

    Of "other runs" only the best point is drawn; the frontier is over all points of all runs.
    """
    rows, everything = [], []
    for kind, name, points in runs:
        best = max(points, key=lambda step: (points[step][1], -step), default=None)
        for step, (hours, score) in sorted(points.items()):
            everything.append((hours, score))
            if kind != "other runs" or step == best:
                detail = f"{formats.percent(score)} at {hours:,.3g} {unit}, step {formats.count(step)}"
                rows.append((kind, name, hours, score, detail, step == best))
    steps: list[tuple[float, float]] = []
    for hours, score in sorted(everything):
        if not steps or score > steps[-1][1]:
            steps.append((hours, score))
    if steps:
        steps.append((max(hours for hours, _ in everything), steps[-1][1]))
    return {
        "runs": pd.DataFrame(rows, columns=["kind", "run", "x", "value", "detail", "best"]),
        "frontier": pd.DataFrame(steps, columns=["x", "value"]),
    }


def paper_table(
    members: Sequence[Scored], models: Mapping[str, str], hours: Mapping[str, float], rows: Sequence[paper.Row]
) -> pd.DataFrame:
    """Ours, then the paper's rows: percent ± standard deviation over repeats (ours) or five inference seeds (paper).

    `hours`: GPU hours of our members up to their best checkpoints, where they were recorded.
    """
    table = []
    for member in members:
        own = {paper.canonical(name): score for name, score in (member.repeats or member.scores).items()}
        cells = {name: own.get(name) for name in paper.BENCHMARKS}
        known = [score.pass1.mean for score in cells.values() if score is not None]
        average = 100 * math.fsum(known) / len(known) if len(known) == len(cells) else None
        row = {"Whose": "this run", "Model": formats.clean(paper.base_model(models[member.name]), 40), "Method": ""}
        row |= {name: _percent_sd(score) for name, score in cells.items()}
        table.append(
            row | {paper.AVERAGE: formats.number(average, 2), "GPU hours": formats.number(hours.get(member.name), 1)}
        )
    for one in rows:
        beside = f" with {one.peer}" if one.peer else ""
        row = {"Whose": "paper, table 1", "Model": one.model, "Method": one.method + beside}
        row |= {name: f"{mean:.2f} ± {sd:.2f}" for name, (mean, sd) in one.scores.items()}
        table.append(row | {"GPU hours": formats.number(one.gpu_hours, 1)})
    return pd.DataFrame(table)


def _percent_sd(score: Score | None) -> str:
    if score is None:
        return formats.MISSING
    sd = f" ± {100 * score.sd:.2f}" if math.isfinite(score.sd) else ""
    return f"{100 * score.pass1.mean:.2f}{sd}"
