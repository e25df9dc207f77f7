"""One store on one kind of database: its URL, the folder of its shards, and raw access with nothing of server.store."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
from psycopg.rows import dict_row

Row = dict[str, Any]


@dataclass(frozen=True)
class Database:
    """Plain SQL on a store's database, the same on both kinds: ? for a value, a dictionary a row."""

    connection: Any

    def rows(self, sql: str, *values: object) -> list[Row]:
        if isinstance(self.connection, sqlite3.Connection):
            return [dict(row) for row in self.connection.execute(sql, values)]
        with self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(sql.replace("?", "%s"), values)
            return cursor.fetchall()

    def execute(self, sql: str, *values: object) -> None:
        if isinstance(self.connection, psycopg.Connection):
            sql = sql.replace("?", "%s")
        self.connection.execute(sql, values)

    def columns(self, table: str) -> list[str]:
        if isinstance(self.connection, sqlite3.Connection):
            return [row["name"] for row in self.rows(f"PRAGMA table_info({table})")]
        found = self.rows(
            "SELECT column_name FROM information_schema.columns WHERE table_name = ? ORDER BY ordinal_position", table
        )
        return [row["column_name"] for row in found]

    def tables(self) -> list[str]:
        if isinstance(self.connection, sqlite3.Connection):
            return [
                row["name"] for row in self.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            ]
        return [
            row["tablename"]
            for row in self.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        ]

    def dump(self) -> dict[str, list[str]]:
        """Every row of every table, in an order of its own."""
        return {table: sorted(map(repr, self.rows(f"SELECT * FROM {table}"))) for table in self.tables()}


@contextmanager
def raw(url: str | Path, *, read_only: bool = False) -> Iterator[Database]:
    """A plain connection to a store's database; every statement commits."""
    text = str(url)
    if text.startswith("postgresql"):
        parts = urlsplit(text)
        host = parse_qs(parts.query)["host"][0]
        with psycopg.connect(host=host, dbname=parts.path[1:], user=parts.username, autocommit=True) as connection:
            yield Database(connection)
        return
    path = file_of(text)
    with closing(
        sqlite3.connect(f"file:{path}?mode={'ro' if read_only else 'rw'}", uri=True, isolation_level=None)
    ) as found:
        found.row_factory = sqlite3.Row
        yield Database(found)


def file_of(url: str | Path) -> Path:
    """The database file of a SQLite URL or path."""
    text = str(url)
    return Path(unquote(text.removeprefix("sqlite:///"))) if text.startswith("sqlite:") else Path(text)


def shards_of(url: str | Path) -> Path:
    """The folder of a store's shards."""
    text = str(url)
    if text.startswith("postgresql"):
        return Path(re.search(r"trajectories=([^&]*)", unquote(text)).group(1))  # type: ignore[union-attr]
    path = file_of(text)
    return path.with_name(f"{path.stem}_trajectories")
