"""Give up what was said in old steps: trajectory shards and response rows go, every count and curve stays.

Rows go first and files after them, so a shard that is named exists at every moment; a kill in between leaves files that
no row names, which the next prune or resume removes. The run may be written meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, func, select, update

from server.store import schema
from server.store.connections import Location, check_version, locate, readable_errors, schema_version
from server.store.records import StoreError
from server.store.run_state import clock, living
from server.store.trajectories import remove_shards, sweep

# So few at a time that a run that is being written hardly waits.
CHUNK_STEPS = 5


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """What one run gives up: its steps up to and including `until`, as far as they have shards."""

    uid: str
    until: int
    steps: int
    shards: int
    responses: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """By run, newest first; `orphans` are removed files that no row named, `notes` what was left and why."""

    runs: list[PrunedRun]
    orphans: int = 0
    notes: list[str] = field(default_factory=list)


def prune(
    url: str,
    *,
    keep_steps: int | None = None,
    keep_runs: int | None = None,
    run: str | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Keep the trajectories of every run's last `keep_steps` steps, and those of the `keep_runs` newest runs alone.

    `run` (a uid) confines it to one run. `dry_run` changes nothing. A run that is being written is cut by `keep_steps`
    and never given up whole. StoreError when neither bound is given, or there is no such store or run.
    """
    if keep_steps is None and (keep_runs is None or run is not None):
        raise StoreError("store: say what to keep: --keep-steps N, --keep-runs N, or both (one run: --keep-steps N)")
    location = locate(url)
    with readable_errors("pruning", location):
        engine = location.reader_engine() if dry_run else location.writer_engine(create=False)
        try:
            with engine.connect() as connection:
                check_version(schema_version(connection), location)
                chosen, notes = _choose(connection, keep_steps, keep_runs, run)
                plan = [_count(connection, row, until) for row, until in chosen]
            pruned = Pruned([one for one in plan if one.shards], notes=notes)
            if dry_run:
                return pruned
            orphans = 0
            for row, until in chosen:
                _prune_run(engine, location, row, until)
                orphans += _sweep(engine, location, row.id)
        finally:
            engine.dispose()
    return Pruned(pruned.runs, orphans, notes)


def _choose(
    connection: Connection, keep_steps: int | None, keep_runs: int | None, run: str | None
) -> tuple[list[tuple[Row[Any], int]], list[str]]:
    """([(run's row, last step that is given up)], notes)."""
    table, now = schema.runs, clock(connection)
    rows = connection.execute(select(table).order_by(table.c.created.desc(), table.c.id.desc())).all()
    if run is not None and run not in {row.uid for row in rows}:
        raise StoreError(f"store: no run {run!r}; graft store info lists them")
    chosen, notes = [], []
    for place, row in enumerate(rows):
        last = row.last_step or 0
        until = 0 if keep_steps is None else max(0, last - keep_steps)
        if keep_runs is not None and place >= keep_runs:
            if living(row.writer, row.lease_until, now):
                notes.append(f"{row.uid}: is being written, so it is not given up")
            else:
                until = last
        if run in (None, row.uid):
            chosen.append((row, until))
    return chosen, notes


def _count(connection: Connection, row: Row[Any], until: int) -> PrunedRun:
    shards = schema.shards
    steps, files, responses, size = connection.execute(
        select(
            func.count(shards.c.step.distinct()),
            func.count(),
            func.coalesce(func.sum(shards.c.responses), 0),
            func.coalesce(func.sum(shards.c.bytes), 0),
        ).where(shards.c.run == row.id, shards.c.step <= until)
    ).one()
    return PrunedRun(row.uid, until, int(steps), int(files), int(responses), int(size))


def _prune_run(engine: Engine, location: Location, row: Row[Any], until: int) -> None:
    shards = schema.shards
    root = location.folder(row.trajectories)
    while True:
        with engine.begin() as connection:
            epoch = _lock(connection, row.id)
            oldest = connection.scalar(
                select(func.min(shards.c.step)).where(shards.c.run == row.id, shards.c.step <= until)
            )
            if oldest is None:
                return
            paths = _delete_rows(connection, row.id, oldest, min(oldest + CHUNK_STEPS - 1, until))
        _delete_files(engine, root, row.id, epoch, paths)


def _lock(connection: Connection, run: int) -> int:
    """Keep the run's row from others until the transaction ends; its lease epoch, which every resume changes."""
    runs = schema.runs
    connection.execute(update(runs).where(runs.c.id == run).values(revision=runs.c.revision + 1))
    return int(connection.execute(select(runs.c.lease_epoch).where(runs.c.id == run)).scalar_one())


def _delete_rows(connection: Connection, run: int, low: int, high: int) -> list[str]:
    """Delete the shard and response rows of steps low .. high; the paths of the shards."""
    shards, responses = schema.shards, schema.responses
    here = (shards.c.run == run, shards.c.step.between(low, high))
    paths = list(connection.scalars(select(shards.c.path).where(*here)))
    connection.execute(delete(shards).where(*here))
    first, end = schema.group_id(run, low, 0), schema.group_id(run, high + 1, 0)
    connection.execute(delete(responses).where(responses.c.group_id >= first, responses.c.group_id < end))
    return paths


def _delete_files(engine: Engine, root: Path, run: int, epoch: int, paths: list[str]) -> None:
    """Remove files whose rows are gone, unless the run was resumed since: it may be writing files of these names."""
    with engine.begin() as connection:
        if _lock(connection, run) == epoch:
            remove_shards(root, paths)


def _sweep(engine: Engine, location: Location, run: int) -> int:
    """Remove the files of an ended run that no row names; how many. Nobody can resume it meanwhile."""
    runs, shards = schema.runs, schema.shards
    with engine.begin() as connection:
        _lock(connection, run)
        row = connection.execute(select(runs).where(runs.c.id == run)).one()
        if row.status == "running":
            # Its process may only be asleep, between writing its files and naming them.
            return 0
        named = set(connection.scalars(select(shards.c.path).where(shards.c.run == run)))
        return sweep(location.folder(row.trajectories), row.uid, named)
