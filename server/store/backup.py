"""A copy of a store's database, made while its writers wait. Trajectory shards never change and are not copied."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL, Connection

from server.store.location import Location
from server.store.postgresql import PostgresLocation
from server.store.records import StoreError
from server.store.sqlite import SqliteLocation

DUMP_S = 6 * 3600
_LIBPQ = {"sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT", "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY"}


def back_up(location: Location, connection: Connection, version: str, folder: Path | None) -> Path:
    """Copy the database as it is before the open transaction of `connection`, and return the copy's path.

    SQLite: a database file beside the store. PostgreSQL: a `pg_dump` archive in `folder` (default: the working
    directory), for pg_restore. A copy that fails is removed. StoreError when pg_dump is missing or fails.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    if isinstance(location, SqliteLocation):
        copy = location.database.with_name(f"{location.database.name}.schema-{version}.{stamp}.backup")
        return _copy(location.database, copy)
    assert isinstance(location, PostgresLocation)
    name = f"{location.target.database}.schema-{version}.{stamp}.dump"
    return _dump(location, connection, (folder or Path.cwd()) / name)


def _copy(database: Path, copy: Path) -> Path:
    try:
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        _sync(copy)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


def _dump(location: PostgresLocation, connection: Connection, copy: Path) -> Path:
    major = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one()) // 10_000
    program = find_program("pg_dump", major)
    by_hand = "make a backup yourself and upgrade with --no-backup"
    if program is None:
        raise StoreError(
            f"store: {location.shown}: no pg_dump of version {major} or newer is here; "
            f"install postgresql-client-{major}, or {by_hand}"
        )
    command = [program, "--format=custom", f"--file={copy}", "--lock-wait-timeout=60s"]
    try:
        done = subprocess.run(
            command, env=client_environment(location.target), capture_output=True, text=True, timeout=DUMP_S
        )
        if done.returncode:
            said = " ".join(done.stderr.split())
            raise StoreError(f"store: {location.shown}: pg_dump failed ({said}); mend that, or {by_hand}")
        _sync(copy)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


def find_program(name: str, at_least: int) -> str | None:
    """A program of PostgreSQL's of some major version or newer, in PATH or where Debian keeps them; None without."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: -int(path.parts[4]))
    for found in (shutil.which(name), *map(str, debian)):
        if found is not None:
            said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
            version = said.partition(") ")[2].partition(".")[0].strip()
            if version.isdigit() and int(version) >= at_least:
                return found
    return None


def client_environment(target: URL) -> dict[str, str]:
    """The environment in which PostgreSQL's own programs find a database; a password on a command line is public."""
    query = {key: value for key, value in target.query.items() if isinstance(value, str)}
    wanted = {
        "PGHOST": target.host or query.get("host"),
        "PGPORT": query.get("port") if target.port is None else str(target.port),
        "PGUSER": target.username,
        "PGPASSWORD": target.password or query.get("password"),
        "PGDATABASE": target.database,
        "PGCONNECT_TIMEOUT": "10",
        **{variable: query.get(key) for key, variable in _LIBPQ.items()},
    }
    return {**os.environ, **{name: str(value) for name, value in wanted.items() if value is not None}}


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
