"""Where a store lies, and what is done differently on each kind of database; SQLite and PostgreSQL implement it."""

from __future__ import annotations

import errno
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from server.store.records import StoreError, UnreachableError

WRITER_WAIT_MS = 30_000
READER_WAIT_MS = 5_000
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SECRET = {"password", "sslpassword"}


class Location(ABC):
    """One store: a database, and the folder of the trajectory shards its runs name."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The database URL without any password."""

    @property
    @abstractmethod
    def shown(self) -> str:
        """What messages call the database: a path, or a URL without any password."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a database, be it empty. StoreError when its server cannot be asked."""

    @abstractmethod
    def folder(self, recorded: str) -> Path:
        """The trajectory folder of a run that recorded it as `recorded`."""

    @abstractmethod
    def new_folder(self, default: Path | None) -> str:
        """What a new run records as its trajectory folder; `default` is taken where the database has none of its own.

        StoreError when there is neither.
        """

    @abstractmethod
    def writer_engine(self, *, references: bool = True, create: bool = True) -> Engine:
        """One connection whose transactions write. Without `references` foreign keys are not enforced, as a migration
        that copies a table needs; without `create` an absent database is a StoreError.
        """

    @abstractmethod
    def reader_engine(self) -> Engine:
        """Connections that cannot write; a transaction is one consistent state. StoreError for an absent database."""

    @abstractmethod
    def take_turns(self, connection: Connection) -> None:
        """Keep other processes from making tables and numbering runs until the transaction ends."""

    @abstractmethod
    def insert(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert many rows that have the same keys, the fast way of the database."""

    @abstractmethod
    def table_bytes(self, connection: Connection) -> dict[str, int]:
        """{table: bytes with its indexes}; {} where the database does not tell."""

    @abstractmethod
    def database_bytes(self, connection: Connection) -> int:
        """Bytes of the whole database."""

    @abstractmethod
    def explain(self, fault: Exception) -> str:
        """A fault of the database in one line that says what to do."""

    @abstractmethod
    def away(self, fault: Exception) -> bool:
        """Whether a fault means that the database's server does not answer at this moment."""


@contextmanager
def readable_errors(action: str, location: Location) -> Iterator[None]:
    """Turn the faults of disk and database into one line that says what to do."""
    try:
        yield
    except OSError as fault:
        raise StoreError(f"store: {action}: {_explain_disk(fault)}") from fault
    except (DBAPIError, PoolTimeout, sqlite3.Error) as fault:
        kind = UnreachableError if location.away(fault) else StoreError
        raise kind(f"store: {action}: {location.explain(fault)}") from fault


def _explain_disk(fault: OSError) -> str:
    if fault.errno not in _FULL:
        return str(fault)
    where = f"that holds {Path(fault.filename).parent} " if fault.filename else ""
    return f"the disk {where}is full, nothing was stored; free some space there and repeat"


def parse_url(url: str) -> URL:
    """A database URL; StoreError when it is none, without repeating a password it may hold."""
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        scheme = url.partition("://")[0]
        raise StoreError(
            f"store: the URL that begins with {scheme}:// cannot be read; "
            "write sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE"
        ) from None


def without_password(url: str) -> str:
    """A store's URL as it may be printed and recorded; a path is left as it is."""
    if "://" not in url or url.startswith("sqlite:"):
        return url
    return bare(parse_url(url))


def bare(url: URL) -> str:
    """A parsed URL as text, without its secrets."""
    query = {key: value for key, value in url.query.items() if key not in _SECRET}
    kept = URL.create(url.drivername, url.username, None, url.host, url.port, url.database, query)
    return kept.render_as_string(hide_password=False)
