"""What a store holds and how it does: version, sizes, runs, and how far behind their writers are."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from server.store import schema
from server.store.connections import Location, check_version, locate, readable_errors, schema_version
from server.store.run_state import clock, living
from server.store.sqlite import SqliteLocation


@dataclass(frozen=True, slots=True)
class RunState:
    """One run. `quiet_s`: seconds since its writer last said that it lives; `behind_s`: since its last step."""

    uid: str
    status: str
    alive: bool
    last_step: int
    total_steps: int
    groups: int
    shards: int
    shard_bytes: int
    pruned_steps: int
    quiet_s: float | None
    behind_s: float | None
    trajectories: str
    folder_found: bool


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The store as a whole. `rows` and `bytes` by table; `bytes` is empty where the database does not tell."""

    store: str
    database: str
    schema: str
    database_bytes: int
    wal_bytes: int | None
    rows: dict[str, int]
    bytes: dict[str, int]
    runs: list[RunState]


def info(url: str) -> StoreInfo:
    """Look at a store, live or not. StoreError when there is none, SchemaError when it is of another version."""
    location = locate(url)
    with readable_errors("reading", location):
        engine = location.reader_engine()
        try:
            with engine.connect() as connection:
                version = schema_version(connection)
                check_version(version, location)
                return StoreInfo(
                    store=location.shown,
                    database=_database(connection),
                    schema=str(version),
                    database_bytes=location.database_bytes(connection),
                    wal_bytes=_wal(location),
                    rows={table.name: _count(connection, table.name) for table in schema.metadata.sorted_tables},
                    bytes=location.table_bytes(connection),
                    runs=_runs(connection, location),
                )
        finally:
            engine.dispose()


def _database(connection: Connection) -> str:
    if connection.dialect.name == "sqlite":
        return f"SQLite {connection.exec_driver_sql('SELECT sqlite_version()').scalar_one()}"
    return f"PostgreSQL {connection.exec_driver_sql('SHOW server_version').scalar_one()}"


def _wal(location: Location) -> int | None:
    """Bytes of SQLite's write-ahead log, which grows while a reader stays in one transaction; None for a server."""
    if not isinstance(location, SqliteLocation):
        return None
    return location.wal.stat().st_size if location.wal.exists() else 0


def _count(connection: Connection, table: str) -> int:
    return int(connection.scalar(select(func.count()).select_from(schema.metadata.tables[table])) or 0)


def _runs(connection: Connection, location: Location) -> list[RunState]:
    runs, now = schema.runs, clock(connection)
    found = []
    for row in connection.execute(select(runs).order_by(runs.c.created.desc(), runs.c.id.desc())):
        groups, shards, steps = schema.groups, schema.shards, schema.steps
        files, size, kept = connection.execute(
            select(
                func.count(), func.coalesce(func.sum(shards.c.bytes), 0), func.count(shards.c.step.distinct())
            ).where(shards.c.run == row.id)
        ).one()
        asked, visited = connection.execute(
            select(func.count(), func.count(groups.c.step.distinct())).where(groups.c.run == row.id)
        ).one()
        committed = connection.scalar(select(func.max(steps.c.committed)).where(steps.c.run == row.id))
        folder = location.folder(row.trajectories)
        found.append(
            RunState(
                uid=row.uid,
                status=row.status,
                alive=living(row.writer, row.lease_until, now),
                last_step=row.last_step or 0,
                total_steps=row.total_steps,
                groups=int(asked),
                shards=int(files),
                shard_bytes=int(size),
                pruned_steps=int(visited) - int(kept),
                quiet_s=None if row.heartbeat is None else max(0.0, now - row.heartbeat),
                behind_s=None if committed is None else max(0.0, now - committed),
                trajectories=str(folder),
                folder_found=folder.is_dir() or not files,
            )
        )
    return found
