"""Bring an older store to this program's schema, after a backup."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from server.store.connections import Location, check_version, locate, readable_errors, schema_version, writer_engine
from server.store.records import StoreError
from server.store.run_state import refuse_living_writer
from server.store.schema import VERSIONS

MIGRATIONS = Path(__file__).with_name("migrations")


def upgrade(url: str) -> Path | None:
    """Migrate a store to the current schema; the path of the backup made first, or None when it is current already.

    All or nothing: the migration is one transaction. StoreError when there is no store, a run is being written, or no
    space for the backup; SchemaError when it is newer than this program.
    """
    location = locate(url)
    if not location.database.is_file():
        raise StoreError(f"store: {location.database} does not exist; check the path")
    with readable_errors("upgrading", location):
        engine = writer_engine(location, references=False)
        try:
            with engine.begin() as connection:
                version = schema_version(connection)
                if version == VERSIONS[-1]:
                    return None
                if version not in VERSIONS:
                    check_version(version, location)
                _refuse_living_writers(connection)
                backup = _back_up(location, str(version))
                command.upgrade(migration_config(connection), VERSIONS[-1])
        finally:
            engine.dispose()
    return backup


def migration_config(connection: Connection) -> Config:
    """Alembic's configuration, without any ini file, on an open connection."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _refuse_living_writers(connection: Connection) -> None:
    for uid, writer, lease_until in connection.execute(text("SELECT uid, writer, lease_until FROM runs")):
        refuse_living_writer(uid, writer, lease_until)


def _back_up(location: Location, version: str) -> Path:
    """Copy the database as it is before the open transaction; a copy that fails is removed."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    backup = location.database.with_name(f"{location.database.name}.schema-{version}.{stamp}.backup")
    try:
        with closing(sqlite3.connect(location.database)) as source, closing(sqlite3.connect(backup)) as target:
            source.backup(target)
        descriptor = os.open(backup, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        backup.unlink(missing_ok=True)
        raise
    return backup
