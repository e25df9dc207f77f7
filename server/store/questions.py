"""What every part of the reader stands on: a read-only connection, and the run that a question is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine

from server.store import read_runs
from server.store.connections import Location, readable_errors
from server.store.read_runs import RunKey


class Questions:
    """One consistent state of the database for every question; usable from several threads."""

    def __init__(self, engine: Engine, location: Location) -> None:
        self._engine = engine
        self._location = location

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with readable_errors("reading", self._location), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _run(self, run: str) -> Iterator[tuple[Connection, RunKey]]:
        with self._connection() as connection:
            yield connection, read_runs.resolve(connection, run)
