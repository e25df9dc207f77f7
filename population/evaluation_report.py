"""Evaluations for people and programs: one row for each member and benchmark, and how the checkpoint was selected."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from server.store.reader import Reader, RunInfo
from server.store.records import EvaluationRecord
from server.store.scores import Score, aggregate, score
from server.store.views import BestCheckpoint

ABSENT = "–"
DEFAULT_K = (4, 8)


def scores_of(records: Iterable[EvaluationRecord], ks: Sequence[int]) -> list[Score]:
    """A score for each member and benchmark, and behind a member's the mean of its test benchmarks if it has several.

    Members and benchmarks in the order they come in; records of the same two are repeats.
    """
    by_place: dict[str, dict[str, list[EvaluationRecord]]] = {}
    for record in records:
        by_place.setdefault(record.member, {}).setdefault(record.benchmark, []).append(record)
    found = []
    for by_benchmark in by_place.values():
        own = [score(repeats, ks) for repeats in by_benchmark.values()]
        tests = [one for one in own if one.role == "test"]
        found += [*own, *([aggregate(tests)] if len(tests) > 1 else [])]
    return found


def print_scores(console: Console, scores: Sequence[Score], steps: Mapping[str, int], title: str = "") -> None:
    """The table; ``steps`` {member: step of its weights}, where it is known. Rates in percent."""
    ks = sorted({k for one in scores for k in (*one.pass_at, *one.majority_at)})
    table = Table(title=title or None, title_justify="left")
    table.add_column("member")
    if steps:
        table.add_column("step", justify="right")
    for name in ("benchmark", "n", "pass@1 [95 %]"):
        table.add_column(name, justify="left" if name == "benchmark" else "right")
    repeated = any(len(one.passes) > 1 for one in scores)
    if repeated:
        table.add_column("sd", justify="right")
    for k in ks:
        table.add_column(f"pass@{k}", justify="right")
    for k in ks:
        table.add_column(f"maj@{k}", justify="right")
    for i, one in enumerate(scores):
        cells = [one.member, *([str(steps.get(one.member, ABSENT))] if steps else []), _name(one), _size(one)]
        cells.append(f"{_percent(one.pass1.mean)} [{_percent(one.pass1.low)}, {_percent(one.pass1.high)}]")
        cells += [_percent(one.sd, 2)] if repeated else []
        cells += [
            _percent(part[k].mean if k in part else math.nan) for part in (one.pass_at, one.majority_at) for k in ks
        ]
        last = i + 1 == len(scores) or scores[i + 1].member != one.member
        table.add_row(*cells, end_section=last)
    console.print(table)


def _name(one: Score) -> str:
    if one.benchmarks > 1:
        return f"mean of {one.benchmarks}"
    return one.benchmark if one.role == "test" else f"{one.benchmark} ({one.role})"


def _size(one: Score) -> str:
    """Problems x responses to each, x repeats."""
    parts = [f"{one.problems:,}", f"{one.responses:,}" if one.responses else "…"]
    return " x ".join([*parts, *([str(len(one.passes))] if len(one.passes) > 1 else [])])


def _percent(value: float, digits: int = 1) -> str:
    return ABSENT if math.isnan(value) else f"{100 * value:.{digits}f}"


LEGEND = (
    "Percent. n: problems x responses (x repeats with other random numbers). pass@1: mean over responses, then "
    "problems, then repeats; [95 %] over problems; sd over repeats. pass@k, maj@k: exact, over all k of the responses."
)


def selection_notes(best: Sequence[BestCheckpoint]) -> list[str]:
    """How the checkpoints were selected, in sentences; a warning where it was on the test sets."""
    notes = []
    for rule, role, benchmarks in dict.fromkeys((b.rule, b.selected_on, b.benchmarks) for b in best):
        steps = ", ".join(
            f"{b.member} step {b.step}"
            for b in best
            if (b.rule, b.selected_on, b.benchmarks) == (rule, role, benchmarks)
        )
        named = ", ".join(benchmarks)
        if rule == "last":
            notes.append(f"Checkpoints: the last evaluated of each member, not selected ({steps}).")
        elif role == "validation":
            notes.append(f"Checkpoints: best mean pass@1 on held-out problems (role: validation): {named} ({steps}).")
        else:
            notes.append(f"Checkpoints: best mean pass@1 on the test sets themselves: {named} ({steps}).")
            notes.append(
                "warning: selected on the test sets, as in the paper, so that these figures are optimistic; a "
                "benchmark with role: validation selects on held-out problems"
            )
    return notes


def selection_of(manifests: Mapping[str, Mapping[str, Any] | None]) -> list[BestCheckpoint]:
    """What the manifests beside exported weights say of their selection; members without one are left out."""
    return [
        BestCheckpoint(
            name, facts["step"], facts["score"], facts["rule"], facts["selected_on"], tuple(facts["benchmarks"])
        )
        for name, facts in manifests.items()
        if facts is not None
    ]


def print_best(console: Console, reader: Reader, run: RunInfo) -> None:
    """The repeated evaluations of a run's best checkpoints and how they were selected; nothing without any."""
    records = reader.repeats(run.uid)
    if not records:
        return
    best = reader.best(run.uid)
    ks = run.config.get("evaluation", {}).get("k", DEFAULT_K)
    steps = {one.member: one.step for one in best}
    print_scores(console, scores_of(records, ks), steps, "Best checkpoints, evaluated again")
    for line in (*selection_notes(best), LEGEND):
        console.print(line, highlight=False)


def print_evaluation(
    console: Console,
    records: Sequence[EvaluationRecord],
    manifests: Mapping[str, Mapping[str, Any] | None],
    ks: Sequence[int],
    *,
    as_json: bool,
) -> None:
    """What ``graft evaluate`` measured. ``manifests`` {member: what lies beside its weights, None where nothing}."""
    scores, best = scores_of(records, ks), selection_of(manifests)
    if as_json:
        print(json_text(scores, best))
        return
    print_scores(console, scores, {one.member: one.step for one in best})
    unknown = [name for name, facts in manifests.items() if facts is None]
    notes = [f"Checkpoints: as given, how they were selected is not known ({', '.join(unknown)})."] if unknown else []
    for line in (*notes, *selection_notes(best), LEGEND):
        console.print(line, highlight=False)


def json_text(scores: Sequence[Score], best: Sequence[BestCheckpoint]) -> str:
    """Everything the table holds and how the checkpoints were selected; missing figures are null."""
    members: dict[str, Any] = {}
    for one in scores:
        member = members.setdefault(one.member, {"checkpoint": None, "benchmarks": {}, "mean": None})
        figures = {
            "role": one.role,
            "problems": one.problems,
            "responses_per_problem": one.responses or None,
            "pass@1": {
                "mean": _number(one.pass1.mean),
                "low": _number(one.pass1.low),
                "high": _number(one.pass1.high),
                "sd": _number(one.sd),
                "repeats": [_number(value) for value in one.passes],
            },
            "pass@k": {str(k): value.mean for k, value in one.pass_at.items()},
            "maj@k": {str(k): value.mean for k, value in one.majority_at.items()},
        }
        if one.benchmarks > 1:
            member["mean"] = figures
        else:
            member["benchmarks"][one.benchmark] = figures
    for chosen in best:
        members[chosen.member]["checkpoint"] = {
            "step": chosen.step,
            "rule": chosen.rule,
            "selected_on": chosen.selected_on,
            "benchmarks": list(chosen.benchmarks),
            "score": _number(chosen.score),
        }
    return json.dumps({"members": members, "notes": selection_notes(best)}, indent=1)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
