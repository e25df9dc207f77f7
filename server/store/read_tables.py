"""Whole tables of one run, in pieces: what the store holds as it holds it, for files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from sqlalchemy import BigInteger, Boolean, Connection, Double, Integer, LargeBinary, Select, Text, select

from server.store import schema
from server.store.read_runs import RunKey
from server.store.schema import ORDINAL_BITS, STEP_BITS

# Rows that are held at once.
CHUNK = 20_000
# By name; the run itself is left out: its configuration may hold keys and passwords.
TABLES = {
    table.name: table
    for table in (schema.members, schema.prompts, *schema.STEP_TABLES, schema.responses)
}  # fmt: skip


def arrow_schema(name: str) -> pa.Schema:
    """The table's columns; a metric's name is its text."""
    return pa.schema([pa.field(column.name, _type(column.type)) for column in _columns(name)])


def _columns(name: str) -> list[Any]:
    table = TABLES[name]
    if name == schema.metrics.name:
        return [schema.metric_names.c.name.label("name") if c.name == "name" else c for c in table.c]
    return list(table.c)


def _type(kind: Any) -> pa.DataType:
    for sql, arrow in (
        (Boolean, pa.bool_()), ((Integer, BigInteger), pa.int64()), (Double, pa.float64()), (Text, pa.string()),
        (LargeBinary, pa.binary()),
    ):  # fmt: skip
        if isinstance(kind, sql):
            return arrow
    raise TypeError(f"no Arrow type for {kind!r}")


def rows(connection: Connection, key: RunKey, name: str, chunk: int = CHUNK) -> Iterator[pa.RecordBatch]:
    """The run's rows of a table in the order of its key, at most `chunk` at a time, whatever their number."""
    wanted = arrow_schema(name)
    result = connection.execution_options(yield_per=chunk).execute(_select(key, name))
    for part in result.partitions():
        columns = zip(*part, strict=True)
        yield pa.record_batch(
            [pa.array(values, field.type) for values, field in zip(columns, wanted, strict=True)], schema=wanted
        )


def _select(key: RunKey, name: str) -> Select[Any]:
    table = TABLES[name]
    query = select(*_columns(name))
    if name == schema.metrics.name:
        query = query.join(schema.metric_names, schema.metric_names.c.id == table.c.name)
    if name == schema.prompts.name:
        asked = select(schema.outcomes.c.prompt).where(schema.outcomes.c.run == key.id)
        evaluated = select(schema.evaluation_problems.c.prompt).where(schema.evaluation_problems.c.run == key.id)
        query = query.where(table.c.key.in_(asked.union(evaluated)))
    elif name == schema.responses.name:
        # A group's id begins with its run.
        bits = STEP_BITS + ORDINAL_BITS
        query = query.where(table.c.group_id >= key.id << bits, table.c.group_id < (key.id + 1) << bits)
    else:
        query = query.where(table.c.run == key.id)
    return query.order_by(*table.primary_key.columns)
