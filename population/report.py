"""The closing summary of a run, read back from the store: what people see is what was recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from graft.complementarity import wilson_interval
from population.evaluation_report import print_best
from server.store.reader import EvaluationSummary, Reader, RunInfo

ABSENT = "–"
SILENT_S = 60.0


@dataclass(frozen=True)
class MemberSummary:
    """One member of a finished run; counts over all steps. Rates are (numerator, denominator)."""

    name: str
    before: EvaluationSummary | None
    after: EvaluationSummary | None
    all_fail: tuple[int, int]
    rescued: tuple[int, int]
    admitted: tuple[int, int]


def summarise(reader: Reader, run: RunInfo, benchmark: str | None = None) -> list[MemberSummary]:
    """Per member: accuracy on a benchmark (default: the first) at its first and last evaluation, and the exchange
    rates.
    """
    first, last = run.first_step or 1, run.last_step or 0
    counts = reader.member_counts(run.uid, first, last)
    pairs = reader.pair_counts(run.uid, first, last)
    evaluations = reader.evaluations(run.uid)
    name = benchmark or (evaluations[0].benchmark if evaluations else None)
    summaries = []
    for i, member in enumerate(run.members):
        own = sorted((e for e in evaluations if e.member == member.name and e.benchmark == name), key=lambda e: e.step)
        summaries.append(
            MemberSummary(
                member.name,
                own[0] if own else None,
                own[-1] if len(own) > 1 else None,
                (int(counts["all_fail"][i]), int(counts["groups"][i])),
                (int(counts["received"][i]), int(counts["all_fail"][i])),
                (int(pairs["admitted"][i].sum()), int(pairs["responses"][i].sum())),
            )
        )
    return summaries


def rate(k: int, n: int) -> str:
    """A rate and its counts, its 95 % Wilson interval on a second line; a dash where n is 0."""
    if n == 0:
        return ABSENT
    low, high = wilson_interval(k, n)
    return f"{k / n:.1%}\n{k:,} of {n:,}\n[{100 * low:.1f}, {100 * high:.1f}]"


def accuracy(evaluation: EvaluationSummary | None) -> str:
    """Mean over problems, its 95 % interval on a second line; a dash where nothing was measured."""
    if evaluation is None:
        return ABSENT
    interval = f"[{100 * evaluation.low:.1f}, {100 * evaluation.high:.1f}]"
    return f"{evaluation.mean:.1%}\n{interval}"


def status(run: RunInfo) -> str:
    """The run's status; one that says running but has not been heard of is said to be silent."""
    silent = time.time() - (run.heartbeat or run.created)
    if run.status == "running" and silent > SILENT_S:
        return f"running, but silent for {silent:.0f} s: probably killed, go on with --resume"
    return f"{run.status}: {run.message}" if run.message else run.status


def print_summary(console: Console, reader: Reader, run: RunInfo, hints: Sequence[str] = ()) -> None:
    """Print the closing summary, one column per member, and what to try next."""
    summaries = summarise(reader, run)
    measured = next((s.before for s in summaries if s.before), None)
    table = Table(
        title=f"{run.uid}: {run.method}, {run.last_step or 0} of {run.total_steps} steps, {status(run)}",
        title_justify="left",
        show_lines=True,
    )
    table.add_column("")
    for s in summaries:
        table.add_column(s.name, justify="right")
    if measured is not None:
        table.add_row("held-out before", *(accuracy(s.before) for s in summaries))
        table.add_row("held-out after", *(accuracy(s.after) for s in summaries))
    table.add_row("all-fail groups", *(rate(*s.all_fail) for s in summaries))
    if any(s.admitted[1] for s in summaries):
        table.add_row("rescued by a peer", *(rate(*s.rescued) for s in summaries))
        table.add_row("responses admitted", *(rate(*s.admitted) for s in summaries))
    console.print(table)
    notes = "Rates with 95 % intervals in percent: Wilson over groups or responses"
    if measured is not None:
        per_problem = measured.responses // measured.problems
        notes += f"; held-out ({measured.benchmark}): {measured.problems} problems x {per_problem} responses"
    console.print(notes + ".", highlight=False)
    print_best(console, reader, run)
    for hint in hints:
        console.print(hint, highlight=False, soft_wrap=True)
