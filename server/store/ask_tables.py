"""Questions of the reader about whole tables of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from server.store import read_tables
from server.store.questions import Questions


class TableQuestions(Questions):
    """Rows as the store holds them, for files."""

    def tables(self) -> list[str]:
        """The tables that `rows` hands out: all but that of the runs, whose configurations may hold passwords."""
        return list(read_tables.TABLES)

    def columns(self, table: str) -> pa.Schema:
        """The columns of a table."""
        return read_tables.arrow_schema(table)

    def rows(self, run: str, table: str) -> Iterator[pa.RecordBatch]:
        """Every row of the run in a table, some thousands at a time."""
        with self._run(run) as (connection, key):
            yield from read_tables.rows(connection, key, table)
