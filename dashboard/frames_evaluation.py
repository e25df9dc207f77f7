"""Frames and rows of the Evaluation page: pure, no Streamlit, no database. Scores are shares in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce

import numpy as np
import pandas as pd

from dashboard import formats, paper
from dashboard.frames import Array, Z
from dashboard.frames_compare import scores_by_step
from server.store.reader import BestCheckpoint, EvaluationSummary, MeanInterval, RunResult, Score, combined

MEAN = "mean of the test sets"
UNKNOWN = MeanInterval(math.nan, math.nan, math.nan)
OTHERS = "other runs"
# What a run is measured by against its cost, in order of preference, and its name.
COSTS = (("gpu_seconds", "GPU hours"), ("cpu_seconds", "CPU hours"), ("wall_seconds", "hours of wall time"))


def text(figure: MeanInterval) -> str:
    """A score with its interval in percent; a dash where it is missing."""
    if not math.isfinite(figure.mean):
        return formats.MISSING
    return f"{formats.percent(figure.mean)} ({formats.span(figure.low, figure.high)})"


def figures(evaluations: Sequence[EvaluationSummary], benchmarks: Sequence[str]) -> dict[str, dict[int, MeanInterval]]:
    """{member: {step: mean over the benchmarks}} of the steps at which a member was evaluated on all of them."""
    found: dict[str, dict[int, dict[str, MeanInterval]]] = {}
    for one in evaluations:
        if one.benchmark in benchmarks and math.isfinite(one.mean):
            at = found.setdefault(one.member, {}).setdefault(one.step, {})
            at[one.benchmark] = _figure(one)
    return {
        member: {
            step: combined([own[name] for name in benchmarks])
            for step, own in sorted(by_step.items())
            if len(own) == len(benchmarks)
        }
        for member, by_step in found.items()
    }


def curves(
    names: Sequence[str], labels: Sequence[str], scores: Mapping[str, Mapping[int, MeanInterval]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Frames "curves" and "hover" of `charts.curves`, at the evaluated steps."""
    steps = sorted({step for own in scores.values() for step in own})
    rows = [
        (label, step, *(one := scores.get(name, {}).get(step, UNKNOWN)), math.isfinite(one.mean))
        for step in steps
        for name, label in zip(names, labels, strict=True)
    ]
    hover = pd.DataFrame({"step": steps, "steps": [formats.count(step) for step in steps]})
    for place, name in enumerate(names):
        hover[f"m{place}"] = [text(scores.get(name, {}).get(step, UNKNOWN)) for step in steps]
    return pd.DataFrame(rows, columns=["member", "step", "value", "low", "high", "lone"]), hover


Problems = tuple[Array, Array, Array]


def paired_by_problem(own: Problems, base: Problems) -> tuple[MeanInterval, int]:
    """(own less base with its 95 % interval, how many problems both have), from (keys, right, responses) each.

    The interval is over problems: it says what other problems would change, not what another seed would.
    """
    return joint_change([(own, base)])


def joint_change(pairs: Sequence[tuple[Problems, Problems]]) -> tuple[MeanInterval, int]:
    """(mean over pairs of own less base with its 95 % interval, how many problems all have): members answer the same
    problems, so a problem's change is its mean over them."""
    keys = reduce(np.intersect1d, [one[0] for pair in pairs for one in pair])
    if len(keys) < 2:
        return UNKNOWN, len(keys)
    change = np.mean([_shares(own, keys) - _shares(base, keys) for own, base in pairs], axis=0)
    mean = float(change.mean())
    half = Z * float(change.std(ddof=1)) / math.sqrt(len(keys))
    return MeanInterval(mean, mean - half, mean + half), len(keys)


def _shares(problems: Problems, keys: Array) -> np.ndarray:
    """The share of right responses to each of these problems, of ascending keys."""
    place = np.searchsorted(problems[0], keys)
    return np.asarray(problems[1][place] / problems[2][place], np.float64)


def points_text(change: MeanInterval) -> str:
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
    changes: Mapping[str, MeanInterval]


def table(
    members: Sequence[Scored],
    evaluations: Sequence[EvaluationSummary],
    benchmarks: Sequence[str],
    selecting: Collection[str],
    compared: bool,
) -> pd.DataFrame:
    """A row for every member and benchmark: before training, last, best, the repeats, and the change to a baseline.

    `selecting`: the benchmarks whose scores chose the best checkpoints. A column of repeats that no row has is left
    out."""
    rows = []
    for member in members:
        for name in benchmarks:
            own = {one.step: one for one in evaluations if one.member == member.name and one.benchmark == name}
            if not own:
                continue
            first, last = own[min(own)], own[max(own)]
            best = own.get(member.best.step) if member.best else None
            row = {
                "Member": member.label,
                "Benchmark": formats.clean(name, 40),
                "For": purpose(last.role, name in selecting),
                "Before": text(_figure(first)) if first.step == 0 else formats.MISSING,
                "Last": _at(last) if last.step else formats.MISSING,
                "Best": _at(best) if best else formats.MISSING,
                "Repeated": _repeated(member.repeats.get(name)),
                "n": f"{formats.count(last.problems)} × {formats.count(last.responses / max(last.problems, 1))}",
            }
            if compared:
                row["Less baseline"] = points_text(member.changes.get(name, UNKNOWN))
            rows.append(row)
    frame = pd.DataFrame(rows)
    nowhere = ["Repeated"] if len(frame) and (frame["Repeated"] == formats.MISSING).all() else []
    leading = ["Member", "Benchmark", "For", "Before", "Last", *(["Less baseline"] if compared else [])]
    return frame[[*leading, *(name for name in frame.columns if name not in (*leading, *nowhere))]]


def score_numbers(members: Sequence[Scored], evaluations: Sequence[EvaluationSummary]) -> pd.DataFrame:
    """Every evaluation of these members, their repeats, and differences to a baseline, for files: shares."""
    rows: list[dict[str, object]] = []
    for member in members:
        rows += [
            {"what": "best" if member.best and member.best.step == one.step else "evaluation"} | asdict(one)
            for one in evaluations
            if one.member == member.name
        ]
        for name, score in member.repeats.items():
            head = {"what": "repeats of the best", "member": member.name, "benchmark": name, "problems": score.problems}
            rows.append(head | {"sd": score.sd, "passes": len(score.passes)} | _named(score.pass1))
        for name, change in member.changes.items():
            rows.append({"what": "less baseline", "member": member.name, "benchmark": name} | _named(change))
    return pd.DataFrame(rows)


def _named(figure: MeanInterval) -> dict[str, object]:
    return {"mean": figure.mean, "low": figure.low, "high": figure.high}


def _at(one: EvaluationSummary) -> str:
    return f"{text(_figure(one))}, step {formats.count(one.step)}"


def _figure(one: EvaluationSummary) -> MeanInterval:
    return MeanInterval(one.mean, one.low, one.high)


def purpose(role: str, selects: bool) -> str:
    """What a benchmark is for: a test set that also chose the checkpoints reports a score that it selected."""
    if role == "validation":
        return "selection" if selects else "validation"
    return "selection + report" if selects else "report"


def table_of_k(members: Sequence[Scored], benchmarks: Sequence[str]) -> pd.DataFrame:
    """pass@k and maj@k of the best checkpoint for every k that was recorded: two rows for a member and benchmark, the
    second only where answers were told apart."""
    scores = [(member, member.scores[name]) for member in members for name in benchmarks if name in member.scores]
    ks = sorted({k for _, score in scores for k in (*score.pass_at, *score.majority_at)})
    rows = []
    for member, score in scores:
        for kind, figures in (("pass@k", score.pass_at), ("maj@k", score.majority_at)):
            if figures:
                head = {"Member": member.label, "Benchmark": formats.clean(score.benchmark, 40), "Estimate": kind}
                cells = {f"k = {k}": text(figures.get(k, UNKNOWN)) for k in ks}
                rows.append(head | cells | {"n": _size(score)})
    return pd.DataFrame(rows)


def numbers_of_k(members: Sequence[Scored], benchmarks: Sequence[str]) -> pd.DataFrame:
    """The same as `table_of_k`, a row for every k, for files: shares."""
    rows = []
    for member in members:
        for score in (member.scores[name] for name in benchmarks if name in member.scores):
            for kind, figures in (("pass@k", score.pass_at), ("maj@k", score.majority_at)):
                head = {"member": member.name, "benchmark": score.benchmark, "estimate": kind}
                size = {"problems": score.problems, "responses": score.responses}
                rows += [head | {"k": k} | size | _named(figure) for k, figure in sorted(figures.items())]
    return pd.DataFrame(rows)


def _size(score: Score) -> str:
    """Problems × responses to each, where they are as many."""
    each = formats.count(score.responses) if score.responses else "several"
    return f"{formats.count(score.problems)} × {each}"


def _repeated(score: Score | None) -> str:
    if score is None:
        return formats.MISSING
    sd = f" ± {formats.number(100 * score.sd, 2)}" if math.isfinite(score.sd) else ""
    return f"{formats.number(100 * score.pass1.mean, 2)}{sd} (n {len(score.passes)})"


def cost_kind(run: RunResult) -> tuple[str, str] | None:
    """(kind, name) of the cost a run is measured by; None where none was recorded in all steps."""
    return next(((kind, name) for kind, name in COSTS if kind in run.cost), None)


def cost_steps(run: RunResult, kind: str, benchmarks: Sequence[str]) -> dict[int, float]:
    """{step: hours spent by all members together} of the evaluations of all of them on all benchmarks; {} without such
    a cost."""
    spent = {step: run.spent(kind, step, run.members) for step in scores_by_step(run, run.members, benchmarks)}
    return {step: seconds / 3600 for step, seconds in spent.items() if seconds is not None}


def best_step(run: RunResult, steps: Collection[int], benchmarks: Sequence[str]) -> int:
    """Of these evaluated steps, at least one, that of the highest score of all members, the earliest of equals."""
    scores = scores_by_step(run, run.members, benchmarks)
    return max(steps, key=lambda step: (scores[step], -step))


Points = Mapping[int, tuple[float, MeanInterval]]


def frontier(runs: Sequence[tuple[str, str, Points]], unit: str) -> dict[str, pd.DataFrame]:
    """Frames "runs" and "frontier" of `charts_compare.frontier` from (kind, run's name, {step: (hours, score)}).

    The frontier is over all points of all runs.
    """
    rows, everything = [], []
    for kind, name, points in runs:
        best = max(points, key=lambda step: (points[step][1].mean, -step), default=None)
        for step, (hours, score) in sorted(points.items()):
            everything.append((hours, score.mean))
            detail = f"{text(score)} at {hours:,.3g} {unit}, step {formats.count(step)}"
            rows.append((kind, name, hours, *score, detail, step == best))
    steps: list[tuple[float, float]] = []
    for hours, mean in sorted(everything):
        if not steps or mean > steps[-1][1]:
            steps.append((hours, mean))
    if steps:
        steps.append((max(hours for hours, _ in everything), steps[-1][1]))
    return {
        "runs": pd.DataFrame(rows, columns=["kind", "run", "x", "value", "low", "high", "detail", "best"]),
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
