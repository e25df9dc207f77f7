"""A store in a SQLite file: one writer at a time, many readers, on a local disk."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, Table, create_engine, event, insert
from sqlalchemy.pool import QueuePool

from server.store import location
from server.store.location import Location
from server.store.records import StoreError

# WAL needs shared memory between processes, which these do not give (and their locks are not to be trusted).
NETWORK_FILESYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "glusterfs"}
NETWORK_FILESYSTEMS |= {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse"}

# SQLite begins its write-ahead log anew only when nobody reads from it, which readers that overlap never let happen.
# Above this size a writer waits for those that are reading now; who begins meanwhile reads from the file.
LOG_BYTES = 64 << 20
LOG_WAIT_MS = 1_000


@dataclass(frozen=True, slots=True)
class SqliteLocation(Location):
    """The shards lie beside the file, so that both can be moved together; runs record no folder."""

    database: Path

    @property
    def url(self) -> str:
        escaped = str(self.database).replace("%", "%25").replace("?", "%3F")
        return f"sqlite:///{escaped}"

    @property
    def shown(self) -> str:
        return str(self.database)

    @property
    def trajectories(self) -> Path:
        return self.database.with_name(f"{self.database.stem}_trajectories")

    @property
    def wal(self) -> Path:
        """The write-ahead log, which is there while the store is open or after a kill."""
        return self.database.with_name(self.database.name + "-wal")

    def exists(self) -> bool:
        return self.database.is_file()

    def folder(self, recorded: str) -> Path:
        return Path(recorded) if recorded else self.trajectories

    def new_folder(self, default: Path | None) -> str:
        return ""

    def writer_engine(self, *, references: bool = True, create: bool = True) -> Engine:
        """Every transaction takes the write lock at its start.

        A transaction that reads first and writes later fails at once with "database is locked" when another process
        wrote in between, whatever the timeout; hence BEGIN IMMEDIATE. Commits are synced to the disk: one sync a step.
        """
        if not create and not self.exists():
            raise StoreError(f"store: {self.database} does not exist; check the path")
        kind = filesystem(self.database.parent)
        if kind in NETWORK_FILESYSTEMS:
            raise StoreError(
                f"store: {self.database.parent} is on a {kind} file system, where SQLite loses data; "
                "put the store on a local disk, or use PostgreSQL"
            )
        self.database.parent.mkdir(parents=True, exist_ok=True)

        def connect() -> sqlite3.Connection:
            connection = _connect(f"file:{quote(str(self.database))}", location.WRITER_WAIT_MS)
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA foreign_keys = {'ON' if references else 'OFF'}")
            return connection

        return _engine(connect, "BEGIN IMMEDIATE", connections=1, first=_BoundLog(self.wal))

    def reader_engine(self) -> Engine:
        if not self.exists():
            raise StoreError(f"store: {self.database} does not exist; start a run first, or check the path")

        def connect() -> sqlite3.Connection:
            uri = f"file:{quote(str(self.database))}?{self._read_mode()}"
            connection = _connect(uri, location.READER_WAIT_MS)
            connection.execute("PRAGMA query_only = ON")
            return connection

        return _engine(connect, "BEGIN DEFERRED", connections=8)

    def _read_mode(self) -> str:
        """An archived store in a folder nobody may write has no room for SQLite's shared memory, and needs none."""
        unwritten = not self.wal.exists()
        return "immutable=1" if unwritten and not os.access(self.database.parent, os.W_OK) else "mode=ro"

    def take_turns(self, connection: Connection) -> None:
        """Nothing to do: a writing transaction has the file to itself from its start."""

    def insert(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        connection.execute(insert(table), rows)

    def table_bytes(self, connection: Connection) -> dict[str, int]:
        compiled = {row[0] for row in connection.exec_driver_sql("PRAGMA compile_options")}
        if "ENABLE_DBSTAT_VTAB" not in compiled:
            return {}
        rows = connection.exec_driver_sql(
            "SELECT m.tbl_name, SUM(s.pgsize) FROM dbstat AS s JOIN sqlite_master AS m ON m.name = s.name "
            "WHERE s.aggregate GROUP BY m.tbl_name"
        )
        return {str(name): int(size) for name, size in rows}

    def database_bytes(self, connection: Connection) -> int:
        return sum(file.stat().st_size for file in (self.database, self.wal) if file.exists())

    def away(self, fault: Exception) -> bool:
        return False

    def explain(self, fault: Exception) -> str:
        """What a fault of the database means and what to do, in one line."""
        what, folder = str(getattr(fault, "orig", fault)), self.database.parent
        if "disk is full" in what:
            return f"the disk that holds {folder} is full, nothing was stored; free some space there and repeat"
        if "disk I/O error" in what:
            return (
                f"the disk that holds {folder} refused to write, nothing was stored; "
                "check its space and health and repeat"
            )
        if "locked" in what:
            return f"another process kept {self.database} locked; close what writes to it and repeat"
        if "readonly" in what or "unable to open" in what:
            return f"cannot open {self.database} for this ({what}); check that its folder exists and may be written"
        if "malformed" in what or "not a database" in what:
            return f"{self.database} is damaged or no SQLite database ({what}); restore it from a backup"
        return what


def _connect(uri: str, wait_ms: int) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    # First of all: switching to WAL may itself have to wait for another process.
    connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
    return connection


def _engine(
    connect: Callable[[], sqlite3.Connection],
    begin: str,
    *,
    connections: int,
    first: Callable[[Connection], None] = lambda connection: None,
) -> Engine:
    """`first` is done on a transaction's connection before it begins."""
    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=connections, max_overflow=0)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        first(connection)
        connection.exec_driver_sql(begin)

    return engine


class _BoundLog:
    """Shortens a log that has grown too long, between two transactions of its writer.

    A reader that stays in one transaction, such as a stopped process, costs one wait for each quarter of the limit.
    """

    def __init__(self, wal: Path) -> None:
        self._wal, self._longest = wal, LOG_BYTES

    def __call__(self, connection: Connection) -> None:
        size = self._wal.stat().st_size if self._wal.exists() else 0
        if size <= self._longest:
            return
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {LOG_WAIT_MS}")
        busy, _, _ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {location.WRITER_WAIT_MS}")
        self._longest = size + LOG_BYTES // 4 if busy else LOG_BYTES


def filesystem(folder: Path) -> str:
    """The type of the file system that holds a folder, "" where the system does not tell (then nothing is refused)."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = before.split()[4].replace("\\040", " ")
        if folder.resolve().is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind
