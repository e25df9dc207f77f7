"""Queries for counts and metrics of step windows: differences of cumulative rows, never a sum over steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Integer, Select, Table, column, func, select, true, values

from server.store import schema
from server.store.counts import MEMBER_COUNTS, PAIR_COUNTS, PAIR_SUMS, Floats, Ints
from server.store.read_runs import RunKey
from server.store.records import StoreError

Counts = dict[str, Ints | Floats]
# Columns of a metric's cumulative state.
_NUMERATOR, _LOW, _DENOMINATOR, _FINITE, _NOT_FINITE = range(5)


def window(key: RunKey, first_step: int, last_step: int) -> tuple[int, int]:
    """The two edges of an inclusive window, clipped to what is committed: steps low + 1 .. high."""
    low = min(max(first_step - 1, key.first - 1), key.last)
    return low, min(max(last_step, low), key.last)


def clip_edges(key: RunKey, edges: Sequence[int]) -> list[int]:
    """Bucket edges clipped to what is committed; StoreError unless there are two or more and they never fall."""
    if len(edges) < 2 or any(later < earlier for earlier, later in pairwise(edges)):
        raise StoreError(f"store: bucket edges must be two or more steps in ascending order, got {list(edges)[:10]}")
    return [min(max(int(edge), key.first - 1), key.last) for edge in edges]


def member_at(connection: Connection, key: RunKey, edges: Sequence[int]) -> Ints:
    """Cumulative member counts [E, N, names] at each edge."""
    table = schema.member_counts
    names = [table.c[name] for name in MEMBER_COUNTS]
    rows = _table_rows(connection, table, key, edges, [table.c.step, table.c.member, *names])
    at = np.zeros((len(edges), len(key.members), len(MEMBER_COUNTS)), np.int64)
    _place(at, edges, rows[:, 0], (rows[:, 1],), rows[:, 2:])
    return at


def pair_at(connection: Connection, key: RunKey, edges: Sequence[int], names: Sequence[str]) -> Floats:
    """Cumulative pair counts [E, N, N, names] at each edge, as float64 (counts are exact up to 2^53)."""
    table = schema.pair_counts
    chosen = [table.c[name] for name in names]
    rows = _table_rows(connection, table, key, edges, [table.c.step, table.c.receiver, table.c.source, *chosen])
    size = len(key.members)
    at = np.zeros((len(edges), size, size, len(names)), np.float64)
    _place(at, edges, rows[:, 0], (rows[:, 1], rows[:, 2]), rows[:, 3:])
    return at


def _table_rows(connection: Connection, table: Table, key: RunKey, edges: Sequence[int], columns: list[Any]) -> Floats:
    statement = select(*columns).where(table.c.run == key.id, table.c.step.in_(sorted(set(edges))))
    return matrix(connection, statement, len(columns))


def matrix(connection: Connection, statement: Select[Any], width: int) -> Floats:
    """A result of numbers as float64 [rows, width]; several times faster than one object a row."""
    flat = np.fromiter(chain.from_iterable(connection.execute(statement)), np.float64)
    return flat.reshape(-1, width)


def _place(
    at: NDArray[Any], edges: Sequence[int], steps: Floats, cells: tuple[Floats, ...], values_of_rows: Floats
) -> None:
    """Put each row at every edge of its step; edges repeat when buckets are empty or clipped."""
    index = tuple(cell.astype(np.int64) for cell in cells)
    for place, edge in enumerate(edges):
        chosen = steps == edge
        at[(place, *(cell[chosen] for cell in index))] = values_of_rows[chosen]


def member_counts(connection: Connection, key: RunKey, edges: Sequence[int]) -> dict[str, Ints]:
    """Differences between edges, [B, N] each."""
    change = np.diff(member_at(connection, key, edges), axis=0)
    return {name: np.ascontiguousarray(change[..., place]) for place, name in enumerate(MEMBER_COUNTS)}


def pair_counts(connection: Connection, key: RunKey, edges: Sequence[int]) -> Counts:
    """Differences between edges, [B, N, N] each."""
    names = (*PAIR_COUNTS, *PAIR_SUMS)
    change = np.diff(pair_at(connection, key, edges, names), axis=0)
    counts: Counts = {name: change[..., place].astype(np.int64) for place, name in enumerate(PAIR_COUNTS)}
    counts.update({name: np.ascontiguousarray(change[..., names.index(name)]) for name in PAIR_SUMS})
    return counts


def complementarity(connection: Connection, key: RunKey, low: int, high: int) -> tuple[Floats, Ints]:
    change = np.diff(pair_at(connection, key, [low, high], ("solved", "both_attempted_fail")), axis=0)[0]
    solved, support = change[..., 0], change[..., 1].astype(np.int64)
    share = np.divide(solved, support, out=np.full(solved.shape, np.nan), where=support > 0)
    np.fill_diagonal(share, np.nan)
    return share, support


def metric_names(connection: Connection, key: RunKey) -> list[str]:
    names, metrics = schema.metric_names, schema.metrics
    recorded = select(metrics.c.step).where(metrics.c.run == key.id, metrics.c.name == names.c.id).exists()
    return sorted(connection.scalars(select(names.c.name).where(recorded)))


def metric_change(
    connection: Connection, key: RunKey, name: str, slots: Sequence[int], edges: Sequence[int]
) -> tuple[Floats, Floats, Ints, Ints]:
    """(numerator, denominator, finite values, not-finite values), [B, slots] each, between edges.

    A metric need not be recorded in every step, so the row of an edge is the newest at or before it.
    """
    distinct, place = np.unique(edges, return_inverse=True)
    at = np.zeros((len(distinct), len(slots), 5), np.float64)
    identity = connection.scalar(select(schema.metric_names.c.id).where(schema.metric_names.c.name == name))
    if identity is not None:
        newest = matrix(connection, _newest_steps(key.id, identity, slots, distinct.tolist()), 3).astype(np.int64)
        rows = matrix(connection, _metric_sums(key.id, identity, slots, np.unique(newest[:, 2]).tolist()), 7)
        sums = {(int(slot), int(step)): state for slot, step, *state in rows.tolist()}
        row_of = {int(edge): row for row, edge in enumerate(distinct)}
        column_of = {slot: column for column, slot in enumerate(slots)}
        for edge, slot, step in newest.tolist():
            if step:
                at[row_of[edge], column_of[slot]] = sums[slot, step]
    change = np.diff(at[place], axis=0)
    numerator = change[..., _NUMERATOR] + change[..., _LOW]
    counted = change[..., [_FINITE, _NOT_FINITE]].astype(np.int64)
    return numerator, change[..., _DENOMINATOR], counted[..., 0], counted[..., 1]


def _newest_steps(run: int, name: int, slots: Sequence[int], edges: Sequence[int]) -> Select[Any]:
    """(edge, slot, newest step at or before the edge that recorded the metric, or 0)."""
    metrics = schema.metrics
    edge = values(column("edge", Integer), name="edges").data([(edge,) for edge in edges]).cte("edges")
    slot = values(column("slot", Integer), name="slots").data([(slot,) for slot in slots]).cte("slots")
    newest = (
        select(func.coalesce(func.max(metrics.c.step), 0))
        .where(metrics.c.run == run, metrics.c.name == name, metrics.c.member == slot.c.slot)
        .where(metrics.c.step <= edge.c.edge)
        .scalar_subquery()
    )
    return select(edge.c.edge, slot.c.slot, newest).select_from(edge.join(slot, true()))


def _metric_sums(run: int, name: int, slots: Sequence[int], steps: Sequence[int]) -> Select[Any]:
    """(slot, step, running sums) at these steps."""
    metrics = schema.metrics
    return select(
        metrics.c.member,
        metrics.c.step,
        metrics.c.sum_numerator,
        metrics.c.sum_numerator_low,
        metrics.c.sum_denominator,
        metrics.c.count_finite,
        metrics.c.count_not_finite,
    ).where(
        metrics.c.run == run, metrics.c.name == name, metrics.c.member.in_(list(slots)), metrics.c.step.in_(list(steps))
    )


def metric_series(connection: Connection, key: RunKey, name: str, low: int, high: int) -> tuple[Ints, Floats, Floats]:
    """Every recorded step of low + 1 .. high: (steps [K], numerator [K, N], denominator [K, N])."""
    metrics, names = schema.metrics, schema.metric_names
    rows = connection.execute(
        select(metrics.c.step, metrics.c.member, metrics.c.numerator, metrics.c.denominator)
        .join(names, names.c.id == metrics.c.name)
        .where(
            metrics.c.run == key.id,
            names.c.name == name,
            metrics.c.member.between(0, len(key.members) - 1),
            metrics.c.step.between(low + 1, high),
        )
    ).all()
    steps = sorted({row.step for row in rows})
    place = {step: index for index, step in enumerate(steps)}
    parts = np.full((2, len(steps), len(key.members)), np.nan)
    for step, member, numerator, denominator in rows:
        if numerator is not None and denominator is not None:
            parts[:, place[step], member] = numerator, denominator
    return np.array(steps, np.int64), parts[0], parts[1]


def metric_values(
    connection: Connection, key: RunKey, low: int, high: int
) -> list[tuple[int, str | None, str, float, float]]:
    """As `Reader.metric_values`, steps low + 1 .. high."""
    metrics, names = schema.metrics, schema.metric_names
    rows = connection.execute(
        select(metrics.c.step, metrics.c.member, names.c.name, metrics.c.numerator, metrics.c.denominator)
        .join(names, names.c.id == metrics.c.name)
        .where(metrics.c.run == key.id, metrics.c.finite, metrics.c.step.between(low + 1, high))
        # The key goes by name and member before it comes to the step.
        .where(metrics.c.member.in_(range(schema.WHOLE_RUN, len(key.members))))
        .order_by(metrics.c.step, metrics.c.member, names.c.name)
    )
    return [
        (step, None if member == schema.WHOLE_RUN else key.members[member], name, numerator, denominator)
        for step, member, name, numerator, denominator in rows
    ]
