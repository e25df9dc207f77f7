"""Bring an older store to this program's schema, after a backup."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from server.store.backup import back_up
from server.store.connections import check_version, locate, readable_errors, schema_version
from server.store.run_state import clock, refuse_living_writer
from server.store.schema import VERSIONS

MIGRATIONS = Path(__file__).with_name("migrations")


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What was done: nothing when `before` is the current version. `backup` is None when none was made."""

    before: str
    backup: Path | None

    def __str__(self) -> str:
        if self.before == VERSIONS[-1]:
            return f"already of this program's schema ({self.before})"
        done = f"upgraded from schema {self.before} to {VERSIONS[-1]}"
        if self.backup is None:
            return f"{done}, without a backup"
        how = (
            "pg_restore --clean --if-exists brings it back" if self.backup.suffix == ".dump" else "it is a whole store"
        )
        return f"{done}; the former database is kept as {self.backup} ({how})"


def upgrade(url: str, *, backup: bool = True, folder: Path | None = None) -> Upgrade:
    """Migrate a store to the current schema, after a backup unless none is wanted.

    `folder` takes the backup of a PostgreSQL store (default: the working directory); that of a SQLite file lies beside
    it. All or nothing: the migration is one transaction. StoreError when there is no store, a run is being written, or
    the backup fails; SchemaError when it is newer than this program.
    """
    location = locate(url)
    with readable_errors("upgrading", location):
        engine = location.writer_engine(references=False, create=False)
        try:
            with engine.begin() as connection:
                location.take_turns(connection)
                version = schema_version(connection)
                if version == VERSIONS[-1]:
                    return Upgrade(version, None)
                if version not in VERSIONS:
                    check_version(version, location)
                _refuse_living_writers(connection)
                kept = back_up(location, connection, str(version), folder) if backup else None
                command.upgrade(migration_config(connection), VERSIONS[-1])
        finally:
            engine.dispose()
    return Upgrade(str(version), kept)


def migration_config(connection: Connection) -> Config:
    """Alembic's configuration, without any ini file, on an open connection."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _refuse_living_writers(connection: Connection) -> None:
    """LeaseError while a run is being written; on a server, none can begin before the transaction ends."""
    if connection.dialect.name != "sqlite":
        # A writer changes its run's row first of all; readers and a backup are let through.
        connection.execute(text("LOCK TABLE runs IN SHARE ROW EXCLUSIVE MODE"))
    now = clock(connection)
    for uid, writer, lease_until in connection.execute(text("SELECT uid, writer, lease_until FROM runs")):
        refuse_living_writer(uid, writer, lease_until, now)
