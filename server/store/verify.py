"""Is a store whole? Every shard that is named exists as it was written, and every count follows from the raw rows.

A store may be written meanwhile: steps are read in chunks, each in one consistent state, up to the step that was last
when the run's turn came; nothing is locked and nothing is changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, Engine, select

from server.store import schema, verify_rows
from server.store.connections import Location, check_version, locate, readable_errors, schema_version
from server.store.records import StoreError
from server.store.run_state import clock, living
from server.store.sqlite import SqliteLocation
from server.store.verify_rows import RunCheck, Seen, ShardRow

CHUNK_STEPS = 50
_BLOCK = 1 << 20


@dataclass(slots=True)
class Verification(Seen):
    """What was looked at, and what is wrong (`faults`) or merely worth knowing (`notes`). Orphans harm nothing."""

    runs: int = 0
    orphans: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def verify(url: str, *, run: str | None = None, quick: bool = False) -> Verification:
    """Check a store, or one run of it (a uid, or "latest").

    `quick` looks at the sizes of shards and not at their content. StoreError when there is no such store or run.
    """
    location, found = locate(url), Verification()
    with readable_errors("verifying", location):
        engine = location.reader_engine()
        try:
            with engine.connect() as connection:
                check_version(schema_version(connection), location)
                known = _runs(connection, run)
                found.faults += verify_rows.database_faults(connection)
            for identity in known:
                _verify_run(engine, location, identity, found, quick=quick)
            if run is None and isinstance(location, SqliteLocation):
                _strange_folders(engine, location, found)
        finally:
            engine.dispose()
    return found


def _runs(connection: Connection, run: str | None) -> list[int]:
    table = schema.runs
    newest = select(table.c.id).order_by(table.c.created.desc(), table.c.id.desc())
    found = list(connection.scalars(newest if run in (None, "latest") else newest.where(table.c.uid == run)))
    if run is not None and not found:
        raise StoreError(f"store: no run {run!r}; graft store info lists them")
    return found[:1] if run == "latest" else found


def _verify_run(engine: Engine, location: Location, identity: int, found: Verification, *, quick: bool) -> None:
    check = RunCheck(identity)
    with engine.connect() as connection:
        state = check.begin(connection)
        root = location.folder(state.trajectories)
        held = living(state.writer, state.lease_until, clock(connection))
    # Listed before the rows are read: a file that comes later belongs to a step that comes later.
    files = {f"{check.uid}/{file.name}" for file in _shard_files(root / check.uid)}
    if check.last and not root.is_dir():
        found.faults.append(f"{check.uid}: its trajectory folder {root} is not on this machine")
    named: set[str] = set()
    for low in range(check.first, check.last + 1, CHUNK_STEPS):
        with engine.connect() as connection:
            if not check.unchanged(connection):
                found.notes.append(f"{check.uid}: was resumed from an earlier step meanwhile; verify it again")
                break
            shards = check.steps(connection, low, min(low + CHUNK_STEPS - 1, check.last))
        named |= {shard.path for shard in shards}
        if root.is_dir():
            for shard in shards:
                fault = _shard_fault(root, shard, quick=quick)
                if fault and _still_named(engine, shard):
                    check.faults.append(f"step {shard.step}: {fault}")
    else:
        orphans = [root / name for name in sorted(files - named) if (root / name).exists()]
        # What a living writer has written and not yet committed is no orphan.
        found.orphans += [] if held else orphans
    found.runs += 1
    found.add(check.seen)
    found.faults += [f"{check.uid}: {fault}" for fault in check.faults]


def _shard_files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (file for file in folder.iterdir() if file.suffix in {".arrow", ".tmp"})


def _shard_fault(root: Path, shard: ShardRow, *, quick: bool) -> str:
    """What is wrong with a shard's file; "" when it is what was written."""
    path = root / shard.path
    try:
        size = path.stat().st_size
        if size != shard.bytes:
            return f"shard {path} has {size} bytes of {shard.bytes}"
        if quick:
            return ""
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except FileNotFoundError:
        return f"shard {path} is missing"
    except OSError as error:
        return f"shard {path} cannot be read ({error.strerror})"
    return "" if digest.digest() == shard.sha256 else f"shard {path} is not what was written"


def _still_named(engine: Engine, shard: ShardRow) -> bool:
    """Whether the row is still there: it may have been pruned, or its step recorded anew, since it was read."""
    table = schema.shards
    with engine.connect() as connection:
        return connection.scalar(select(table.c.sha256).where(table.c.path == shard.path)) == shard.sha256


def _strange_folders(engine: Engine, location: SqliteLocation, found: Verification) -> None:
    """Folders of shards beside the database that belong to none of its runs."""
    if not location.trajectories.is_dir():
        return
    folders = {folder.name: folder for folder in location.trajectories.iterdir() if folder.is_dir()}
    with engine.connect() as connection:
        known = set(connection.scalars(select(schema.runs.c.uid)))
    strange = [folder for name, folder in sorted(folders.items()) if name not in known]
    found.notes += [f"{folder} belongs to no run of the store" for folder in strange]
