"""Engines on the store's database, with the settings that keep one writer and many readers out of each other's way."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool

from server.store.records import SchemaError, StoreError
from server.store.schema import VERSION_TABLE, VERSIONS

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
WRITER_WAIT_MS = 30_000
READER_WAIT_MS = 5_000
# WAL needs shared memory between processes, which these do not give (and their locks are not to be trusted).
NETWORK_FILESYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "glusterfs"}
NETWORK_FILESYSTEMS |= {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse"}


@dataclass(frozen=True, slots=True)
class Location:
    """Where a store lies: its database file and the folder of its trajectory shards."""

    database: Path

    @property
    def trajectories(self) -> Path:
        return self.database.with_name(f"{self.database.stem}_trajectories")

    @property
    def url(self) -> str:
        escaped = str(self.database).replace("%", "%25").replace("?", "%3F")
        return f"sqlite:///{escaped}"


def locate(url: str) -> Location:
    """The location of "sqlite:///path/store.db" or of a plain path; StoreError for anything else."""
    if "://" not in url:
        return Location(Path(url).expanduser().absolute())
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError(f"store: {url!r} is not a URL; write sqlite:///PATH") from None
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        shown = parsed.render_as_string(hide_password=True)
        raise StoreError(f"store: {shown!r} cannot hold a run; give a database file as sqlite:///PATH")
    if "?" in url:
        raise StoreError(
            f"store: {url!r} has options after '?', which a store does not take; leave them out, or give a path"
        )
    return Location(Path(parsed.database).expanduser().absolute())


def writer_engine(location: Location, *, references: bool = True) -> Engine:
    """One connection; every transaction takes the write lock at its start.

    A transaction that reads first and writes later fails at once with "database is locked" when another process wrote
    in between, whatever the timeout; hence BEGIN IMMEDIATE. Commits are synced to the disk: one sync a step.
    Without `references` foreign keys are not enforced, as a migration that copies a table needs.
    """
    kind = _filesystem(location.database.parent)
    if kind in NETWORK_FILESYSTEMS:
        raise StoreError(
            f"store: {location.database.parent} is on a {kind} file system, where SQLite loses data; "
            "put the store on a local disk"
        )

    def connect() -> sqlite3.Connection:
        connection = _connect(f"file:{quote(str(location.database))}", WRITER_WAIT_MS)
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA foreign_keys = {'ON' if references else 'OFF'}")
        return connection

    return _engine(connect, "BEGIN IMMEDIATE", connections=1)


def reader_engine(location: Location) -> Engine:
    """Connections that cannot write, not even by mistake; a transaction is one consistent state."""
    if not location.database.is_file():
        raise StoreError(f"store: {location.database} does not exist; start a run first, or check the path")

    def connect() -> sqlite3.Connection:
        connection = _connect(f"file:{quote(str(location.database))}?{_read_mode(location.database)}", READER_WAIT_MS)
        connection.execute("PRAGMA query_only = ON")
        return connection

    return _engine(connect, "BEGIN DEFERRED", connections=8)


def _connect(uri: str, wait_ms: int) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    # First of all: switching to WAL may itself have to wait for another process.
    connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
    return connection


def _engine(connect: Callable[[], sqlite3.Connection], begin: str, *, connections: int) -> Engine:
    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=connections, max_overflow=0)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _read_mode(database: Path) -> str:
    """An archived store in a folder nobody may write has no room for SQLite's shared memory, and needs none."""
    unwritten = not database.with_name(database.name + "-wal").exists()
    return "immutable=1" if unwritten and not os.access(database.parent, os.W_OK) else "mode=ro"


def _filesystem(folder: Path) -> str:
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


def schema_version(connection: Connection) -> str | None:
    """The version a database says it has, None for an empty one; SchemaError when it is no store at all."""
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE in tables:
        version: Any = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
        return None if version is None else str(version)
    if tables:
        raise SchemaError(
            f"store: the database holds other tables ({tables[0]}, ...) and is no store; give another path"
        )
    return None


def is_empty(location: Location) -> bool:
    """Whether a database holds nothing: the process that began it was killed, or is making it at this moment."""
    engine = reader_engine(location)
    try:
        with readable_errors("opening", location), engine.connect() as connection:
            return schema_version(connection) is None
    finally:
        engine.dispose()


def check_version(version: str | None, location: Location) -> None:
    """SchemaError unless the database has exactly this program's schema; nothing is changed."""
    current = VERSIONS[-1]
    if version == current:
        return
    if version is None:
        raise SchemaError(f"store: {location.database} is empty; start a run first, or check the path")
    if version in VERSIONS:
        raise SchemaError(
            f"store: {location.database} has schema {version}, this program needs {current}; "
            f"run: graft db upgrade {location.url}"
        )
    raise SchemaError(
        f"store: {location.database} has schema {version}, newer than this program's {current}; "
        "update graft (graft db upgrade cannot go back)"
    )


@contextmanager
def readable_errors(action: str, location: Location) -> Iterator[None]:
    """Turn the faults of disk and database into one line that says what to do."""
    try:
        yield
    except (DBAPIError, OSError, sqlite3.Error) as fault:
        raise StoreError(f"store: {action}: {_explain(fault, location)}") from fault


def _explain(fault: Exception, location: Location) -> str:
    what = str(getattr(fault, "orig", fault))
    folder = location.database.parent
    if "disk is full" in what or getattr(fault, "errno", None) in _FULL:
        return f"the disk that holds {folder} is full, nothing was stored; free some space there and repeat"
    if "disk I/O error" in what:
        return (
            f"the disk that holds {folder} refused to write, nothing was stored; check its space and health and repeat"
        )
    if "locked" in what:
        return f"another process kept {location.database} locked; close what writes to it and repeat"
    if "readonly" in what or "unable to open" in what:
        return f"cannot open {location.database} for this ({what}); check that its folder exists and may be written"
    if "malformed" in what or "not a database" in what:
        return f"{location.database} is damaged or no SQLite database ({what}); restore it from a backup"
    return what
