"""graft store: look at a store, check it, make it smaller, and let others read it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from population.user_errors import user_errors

if TYPE_CHECKING:
    from server.store.info import StoreInfo
    from server.store.prune import Pruned
    from server.store.verify import Verification

store = typer.Typer(no_args_is_help=True, help="Look at a store, check it, make it smaller, let others read it.")

DEFAULT = "sqlite:///runs/graft.db"
Url = Annotated[str, typer.Argument(metavar="[STORE]", help="database URL or path of the store")]
OneRun = Annotated[str | None, typer.Option("--run", help="uid: this run alone")]
AsJson = Annotated[bool, typer.Option("--json", help="every number, for programs")]


@store.command("info")
def show_info(url: Url = DEFAULT, as_json: AsJson = False) -> None:
    """Schema version, sizes by table, runs, and how long ago each was heard of."""
    with user_errors():
        from server.store.info import info

        found = info(url)
        if as_json:
            print(json.dumps(dataclasses.asdict(found), indent=2))
        else:
            _print_info(Console(), found)


@store.command("verify")
def verify_store(
    url: Url = DEFAULT,
    run: OneRun = None,
    quick: Annotated[bool, typer.Option("--quick", help="sizes of shards only, not their content")] = False,
    as_json: AsJson = False,
) -> None:
    """Check every shard and every count of a store, which may be in use. Exit code 1 when something is wrong."""
    with user_errors():
        from server.store.verify import verify

        found = verify(url, run=run, quick=quick)
        if as_json:
            print(json.dumps(dataclasses.asdict(found), indent=2, default=str))
        else:
            _print_verification(Console(), found)
        raise typer.Exit(1 if found.faults else 0)


@store.command("prune")
def prune_store(
    url: Url = DEFAULT,
    keep_steps: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="keep what was said in the last N steps of every run")
    ] = None,
    keep_runs: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="keep what was said in the N newest runs, of others nothing")
    ] = None,
    run: OneRun = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would go, change nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Give up the trajectories of old steps. Counts, curves, transfers and evaluations stay."""
    with user_errors():
        from server.store.prune import prune

        found = prune(url, keep_steps=keep_steps, keep_runs=keep_runs, run=run, dry_run=dry_run)
        if as_json:
            print(json.dumps(dataclasses.asdict(found), indent=2))
        else:
            _print_pruned(Console(), found, dry_run)


@store.command("export")
def export_run(
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="tensorboard, wandb, mlflow or trackio")],
    url: Url = DEFAULT,
    run: Annotated[str, typer.Option("--run", help="uid, or latest")] = "latest",
    into: Annotated[Path, typer.Option("--into", help="folder of what the tracker keeps here")] = Path("trackers"),
    project: Annotated[str, typer.Option(help="project of W&B and Trackio, experiment of MLflow")] = "graft",
) -> None:
    """Send a recorded run to a tracker."""
    with user_errors():
        from server.trackers.exporter import export

        print(f"{to}: {export(url, run, to, into, project):,} steps")


@store.command("grant-reader")
def grant_reader(
    url: Annotated[str, typer.Argument(metavar="STORE", help="URL with the role that owns the tables")],
    role: Annotated[str, typer.Argument(help="the PostgreSQL role that may read; made when it is not there")],
) -> None:
    """Let a PostgreSQL role read a store and nothing else, for the dashboard."""
    with user_errors():
        from server.store import access

        made = access.grant_reader(url, role)
        print(f"{role} may read the store" + "; it is new and has no password (psql: \\password)" * made)


def _print_info(console: Console, found: StoreInfo) -> None:
    console.print(f"{found.store}: {found.database}, schema {found.schema}", highlight=False, soft_wrap=True)
    wal = "" if found.wal_bytes is None else f", of which write-ahead log {_size(found.wal_bytes)}"
    console.print(f"database {_size(found.database_bytes)}{wal}", highlight=False)
    tables = Table("table", "rows", "size", title="tables with rows")
    for name, count in found.rows.items():
        if count:
            tables.add_row(name, f"{count:,}", _size(found.bytes[name]) if name in found.bytes else "–")
    console.print(tables)
    place = Column("run", no_wrap=True)
    runs = Table(place, "status", "step", "shards", "size", "heard of", "last step", title="runs")
    for run in found.runs:
        status = run.status if run.status != "running" or run.alive else "running, no sign of life"
        steps = f"{run.last_step} of {run.total_steps}"
        shards = f"{run.shards:,}" + f" ({run.pruned_steps} steps pruned)" * bool(run.pruned_steps)
        ages = (_ago(run.quiet_s), _ago(run.behind_s))
        runs.add_row(run.uid, status, steps, shards, _size(run.shard_bytes), *ages)
    console.print(runs)
    for run in found.runs:
        if not run.folder_found:
            console.print(f"{run.uid}: its trajectories in {run.trajectories} are not on this machine", soft_wrap=True)


def _print_verification(console: Console, found: Verification) -> None:
    console.print(
        f"{found.runs} runs, {found.steps:,} steps, {found.groups:,} groups, {found.responses:,} responses, "
        f"{found.shards:,} shards of {_size(found.shard_bytes)}"
        + f"; {found.pruned_steps:,} steps are pruned"
        * bool(found.pruned_steps),
        highlight=False,
        soft_wrap=True,
    )
    for path in found.orphans:
        console.print(f"orphan: {path} (no row names it; graft store prune removes it)", markup=False, soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    for fault in found.faults:
        console.print(f"fault: {fault}", markup=False, soft_wrap=True)
    console.print(f"{len(found.faults)} faults" if found.faults else "nothing is wrong")


def _print_pruned(console: Console, found: Pruned, dry_run: bool) -> None:
    table = Table("run", "steps up to", "steps", "shards", "responses", "size")
    for run in found.runs:
        table.add_row(
            run.uid, str(run.until), f"{run.steps:,}", f"{run.shards:,}", f"{run.responses:,}", _size(run.bytes)
        )
    if found.runs:
        console.print(table)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    size = _size(sum(run.bytes for run in found.runs))
    steps = sum(run.steps for run in found.runs)
    if dry_run:
        console.print(f"would give up what was said in {steps:,} steps, {size}; nothing was changed")
    else:
        console.print(f"gave up what was said in {steps:,} steps, {size}; removed {found.orphans:,} orphaned files")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def _ago(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
