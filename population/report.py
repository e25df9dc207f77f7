"""The closing summary of a run, read back from the store: what people see is what was recorded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from graft.complementarity import uptake, wilson_interval
from population.evaluation_report import print_best
from population.recorded import PREFIX
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
                # A recorded member never receives: that is not a rate of 0.
                (0, 0) if member.model.startswith(PREFIX) else (int(counts["received"][i]), int(counts["all_fail"][i])),
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
    print_uptake(console, reader, run)
    print_best(console, reader, run)
    for hint in hints:
        console.print(hint, highlight=False, soft_wrap=True)


def print_uptake(console: Console, reader: Reader, run: RunInfo) -> None:
    """Did the grafts take: solved at the receiver's next visit after a graft, against after a withheld one."""
    edges, total = reader.uptake(run.uid, run.first_step or 1, run.last_step or 0)
    if not total["grafted"]:
        return
    if not total["held_out"]:
        console.print("Uptake unknown: no group was held out as a control (exchange.holdout).", highlight=False)
        return
    if not (total["grafted_seen"] and total["held_out_seen"]):
        console.print("Uptake unknown so far: no receiver has met such a prompt again.", highlight=False)
        return
    table = Table("receiver ← source", title="Solved at the receiver's next visit of the prompt", title_justify="left")
    for column in ("after a graft", "after a withheld one", "uptake, points"):
        table.add_column(column, justify="right")
    names = [member.name for member in run.members]
    for i, receiver in enumerate(names):
        for j, source in enumerate(names):
            counts = {name: int(values[i, j]) for name, values in edges.items()}
            if counts["grafted_seen"] or counts["held_out_seen"]:
                table.add_row(f"{receiver} ← {source}", *uptake_cells(counts))
    table.add_row("all", *uptake_cells(total))
    console.print(table)


def uptake_cells(counts: Mapping[str, int]) -> tuple[str, str, str]:
    """Both shares with their counts, and the difference with its 95 % interval (normal) in percentage points."""
    k, n, held_k, held_n = (
        counts[name] for name in ("grafted_solved", "grafted_seen", "held_out_solved", "held_out_seen")
    )
    shares = [
        f"{hits / tries:.1%} ({hits:,} of {tries:,})" if tries else ABSENT for hits, tries in ((k, n), (held_k, held_n))
    ]
    change = uptake(k, n, held_k, held_n)
    if not (n and held_n):
        return shares[0], shares[1], ABSENT
    middle, half = 100 * change.difference, 196 * change.standard_error
    return shares[0], shares[1], f"{middle:+.1f} [{middle - half:+.1f}, {middle + half:+.1f}]"
