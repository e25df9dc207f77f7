"""Find a store by its URL, and tell whether its tables are those of this program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text

from server.store.location import Location, parse_url, readable_errors, without_password
from server.store.postgresql import PostgresLocation
from server.store.records import SchemaError, StoreError
from server.store.schema import VERSION_TABLE, VERSIONS
from server.store.sqlite import SqliteLocation

__all__ = ["Location", "check_version", "has_store", "locate", "readable_errors", "schema_version", "without_password"]


def locate(url: str) -> Location:
    """The location of sqlite:///PATH, of a plain path, or of postgresql+psycopg://USER@HOST/DATABASE.

    StoreError for anything else. A PostgreSQL URL may end in ?trajectories=FOLDER.
    """
    if "://" not in url:
        return SqliteLocation(Path(url).expanduser().absolute())
    parsed = parse_url(url)
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return PostgresLocation.parse(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        raise StoreError(
            f"store: {without_password(url)!r} cannot hold a run; give a database file as sqlite:///PATH, "
            "or postgresql+psycopg://USER@HOST/DATABASE"
        )
    if "?" in url:
        raise StoreError(
            f"store: {url!r} has options after '?', which a SQLite store does not take; leave them out, or give a path"
        )
    return SqliteLocation(Path(parsed.database).expanduser().absolute())


def schema_version(connection: Connection) -> str | None:
    """The version a database says it has, None for an empty one; SchemaError when it is no store at all."""
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE in tables:
        version: Any = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
        return None if version is None else str(version)
    if tables:
        raise SchemaError(
            f"store: the database holds other tables ({tables[0]}, ...) and is no store; give another path or database"
        )
    return None


def has_store(location: Location) -> bool:
    """Whether a store is there. An empty database is none: the process that began it was killed, or is making it at
    this moment. SchemaError when the database is something else.
    """
    if not location.exists():
        return False
    engine = location.reader_engine()
    try:
        with readable_errors("opening", location), engine.connect() as connection:
            return schema_version(connection) is not None
    finally:
        engine.dispose()


def check_version(version: str | None, location: Location) -> None:
    """SchemaError unless the database has exactly this program's schema; nothing is changed."""
    current = VERSIONS[-1]
    if version == current:
        return
    if version is None:
        raise SchemaError(f"store: {location.shown} is empty; start a run first, or check the path")
    if version in VERSIONS:
        raise SchemaError(
            f"store: {location.shown} has schema {version}, this program needs {current}; "
            f"run: graft db upgrade {location.url}"
        )
    raise SchemaError(
        f"store: {location.shown} has schema {version}, newer than this program's {current}; "
        "update graft (graft db upgrade cannot go back)"
    )
