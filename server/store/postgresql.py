"""A store on a PostgreSQL server: runs of several machines at a time, with the shards in a folder that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, insert, text
from sqlalchemy.exc import DBAPIError

from server.store import location
from server.store.location import Location, bare, parse_url, without_password
from server.store.records import StoreError

FOLDER = "trajectories"
CONNECT_S = 10
# A statement that takes longer is stuck: a step's insert takes milliseconds, removing a long run's tail minutes.
WRITER_STATEMENT_MS = 1_800_000
READER_STATEMENT_MS = 60_000
IDLE_MS = 300_000
# A dead network is noticed in about a minute, instead of the system's two hours.
KEEPALIVE = {"keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 4, "tcp_user_timeout": 60_000}
# From so many rows on COPY is worth its set-up.
COPY_ROWS = 32
# Any number, the same for all programs that make a store's tables and number its runs.
_TURN = 0x67_72_61_66_74


@dataclass(frozen=True, slots=True)
class PostgresLocation(Location):
    """`target` keeps the password; `mounted` is where this machine has every run's shards, if the URL says so."""

    target: URL
    mounted: Path | None

    @classmethod
    def parse(cls, url: str) -> PostgresLocation:
        """From postgresql+psycopg://USER@HOST/DATABASE?trajectories=FOLDER&..., the rest being libpq's own options."""
        target = parse_url(url)
        if not target.database:
            raise StoreError(f"store: {without_password(url)!r} names no database; write .../DATABASE at its end")
        mounted = target.query.get(FOLDER)
        if isinstance(mounted, tuple):
            raise StoreError(f"store: {without_password(url)!r} names {FOLDER} twice; keep one")
        target = target.set(drivername="postgresql+psycopg").difference_update_query([FOLDER])
        return cls(target, None if mounted is None else Path(mounted).expanduser().absolute())

    @property
    def url(self) -> str:
        whole = self.target if self.mounted is None else self.target.update_query_dict({FOLDER: str(self.mounted)})
        return bare(whole)

    @property
    def shown(self) -> str:
        return bare(self.target)

    def exists(self) -> bool:
        engine = self.reader_engine()
        try:
            with location.readable_errors("opening", self), engine.connect():
                return True
        finally:
            engine.dispose()

    def folder(self, recorded: str) -> Path:
        return self.mounted or Path(recorded)

    def new_folder(self, default: Path | None) -> str:
        chosen = self.mounted or default
        if chosen is None:
            raise StoreError(
                f"store: {self.shown} does not say where trajectories go; add ?{FOLDER}=FOLDER to the URL, "
                "a folder that every machine has which writes or reads its runs"
            )
        return str(chosen.expanduser().absolute())

    def writer_engine(self, *, references: bool = True, create: bool = True) -> Engine:
        settings = {
            "lock_timeout": location.WRITER_WAIT_MS,
            "statement_timeout": WRITER_STATEMENT_MS,
            "idle_in_transaction_session_timeout": IDLE_MS,
        }
        return self._engine("graft writer", settings, connections=1)

    def reader_engine(self) -> Engine:
        settings = {
            "default_transaction_read_only": "on",
            "default_transaction_isolation": "repeatable\\ read",
            "lock_timeout": location.READER_WAIT_MS,
            "statement_timeout": READER_STATEMENT_MS,
            "idle_in_transaction_session_timeout": IDLE_MS,
        }
        return self._engine("graft reader", settings, connections=8)

    def _engine(self, program: str, settings: Mapping[str, object], *, connections: int) -> Engine:
        given = dict(self.target.query)
        flags = " ".join(f"-c {name}={value}" for name, value in settings.items())
        wanted: dict[str, object] = {"connect_timeout": CONNECT_S, "application_name": program, **KEEPALIVE}
        arguments = {key: value for key, value in wanted.items() if key not in given}
        arguments["options"] = f"{given.get('options', '')} {flags}".strip()
        try:
            return create_engine(
                self.target,
                connect_args=arguments,
                pool_size=connections,
                max_overflow=0,
                # A server that was restarted since the last step costs a reconnection, not the run.
                pool_pre_ping=True,
            )
        except ImportError as fault:
            raise StoreError(f"store: PostgreSQL needs psycopg ({fault}); pip install 'psycopg[binary]'") from None

    def take_turns(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _TURN})

    def insert(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows with the same columns, many of them by COPY."""
        if len(rows) < COPY_ROWS:
            connection.execute(insert(table), rows)
            return
        names = list(rows[0])
        quote = connection.dialect.identifier_preparer.quote
        columns = ", ".join(quote(name) for name in names)
        driver: Any = connection.connection.driver_connection
        statement = f"COPY {quote(table.name)} ({columns}) FROM STDIN"
        try:
            with driver.cursor() as cursor, cursor.copy(statement) as copy:
                for row in rows:
                    copy.write_row([row[name] for name in names])
        except connection.dialect.loaded_dbapi.Error as fault:
            raise DBAPIError(statement, None, fault) from fault

    def table_bytes(self, connection: Connection) -> dict[str, int]:
        rows = connection.exec_driver_sql(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
        )
        return {str(name): int(size) for name, size in rows}

    def database_bytes(self, connection: Connection) -> int:
        return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())

    def away(self, fault: Exception) -> bool:
        return _kind(fault) == "away"

    def explain(self, fault: Exception) -> str:
        what = _said(fault)
        return {
            "refused": f"{self.shown} refuses this user ({what}); check the name, and give the password in ~/.pgpass "
            "or PGPASSWORD",
            "absent": f"{self.shown} is not on the server ({what}); create it: createdb {self.target.database}",
            "full": f"the server of {self.shown} is out of space or connections ({what}), nothing was stored; "
            "mend that and repeat",
            "forbidden": f"{self.shown} does not allow this user to do this ({what}); use the writer's role",
            "busy": f"{self.shown} is busy ({what}), nothing was stored; look for what holds its locks and repeat",
            "away": f"{self.shown} cannot be reached ({what}); check that the server runs, and the host and port",
        }.get(_kind(fault), what)


def _said(fault: Exception) -> str:
    return " ".join(str(getattr(fault, "orig", fault)).split())


def _kind(fault: Exception) -> str:
    """What sort of fault it is, by its SQLSTATE; a refused connection has none, and only words."""
    code, what = getattr(getattr(fault, "orig", fault), "sqlstate", None) or "", _said(fault)
    if code.startswith("28") or "authentication failed" in what or "no password supplied" in what:
        return "refused"
    if code == "3D000" or ("database" in what and "does not exist" in what and not code):
        return "absent"
    if code.startswith("53") or "No space left" in what or "too many clients" in what:
        return "full"
    if code in {"42501", "25006"}:
        return "forbidden"
    if code in {"55P03", "40P01", "57014", "25P03"}:
        return "busy"
    if code.startswith("08") or code in {"57P01", "57P02", "57P03"} or (not code and "connection" in what):
        return "away"
    return "other"
