"""A role of PostgreSQL that may read a store and nothing else, for the dashboard and for people."""

from __future__ import annotations

from sqlalchemy import text

from server.store import schema
from server.store.connections import check_version, locate, readable_errors, schema_version
from server.store.postgresql import PostgresLocation
from server.store.records import StoreError


def grant_reader(url: str, role: str) -> bool:
    """Let `role` read every table of the store, now and after later upgrades; True when the role was made for it.

    `url` is that of the tables' owner, who needs CREATEROLE where the role is not there yet. A new role may log in and
    has no password. StoreError for a SQLite file, which has no roles.
    """
    location = locate(url)
    if not isinstance(location, PostgresLocation):
        raise StoreError(f"store: {location.shown} has no roles; give readers read permission on the file")
    with readable_errors(f"granting {role} read access", location):
        engine = location.writer_engine()
        try:
            with engine.begin() as connection:
                check_version(schema_version(connection), location)
                database = str(connection.exec_driver_sql("SELECT current_database()").scalar_one())
                where = str(connection.exec_driver_sql("SELECT current_schema()").scalar_one())
                known = connection.scalar(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role})
                who, space = _quoted(role), _quoted(where)
                tables = ", ".join(_quoted(name) for name in (*schema.metadata.tables, schema.VERSION_TABLE))
                for statement in (
                    *(() if known else (f"CREATE ROLE {who} LOGIN",)),
                    f"GRANT CONNECT ON DATABASE {_quoted(database)} TO {who}",
                    f"GRANT USAGE ON SCHEMA {space} TO {who}",
                    f"GRANT SELECT ON {tables} TO {who}",
                    # A migration may copy a table, which loses the grants on it.
                    f"ALTER DEFAULT PRIVILEGES IN SCHEMA {space} GRANT SELECT ON TABLES TO {who}",
                    f"ALTER ROLE {who} IN DATABASE {_quoted(database)} SET default_transaction_read_only = on",
                ):
                    connection.exec_driver_sql(statement.replace("%", "%%"))
        finally:
            engine.dispose()
    return known is None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
