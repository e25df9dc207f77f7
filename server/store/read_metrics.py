"""Queries for metrics: windows and buckets from running sums; their range and their values, which read every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Integer, Select, column, func, select, true, values

from server.store import schema
from server.store.counts import Floats, Ints
from server.store.read_runs import RunKey
from server.store.read_windows import matrix

# Columns of a metric's cumulative state.
_SUMS = tuple(
    schema.metrics.c[name]
    for name in ("sum_numerator", "sum_numerator_low", "sum_denominator", "count_finite", "count_not_finite")
)
_NUMERATOR, _LOW, _DENOMINATOR, _FINITE, _NOT_FINITE = range(5)


class Buckets(NamedTuple):
    """A metric between edges, [B, slots] each: numerator and denominator, 0 over 0 where nothing finite was recorded;
    how many finite values, and how many that were not finite and enter no sum."""

    numerator: Floats
    denominator: Floats
    finite: Ints
    not_finite: Ints


def metric_names(connection: Connection, key: RunKey) -> list[str]:
    names, metrics = schema.metric_names, schema.metrics
    recorded = select(metrics.c.step).where(metrics.c.run == key.id, metrics.c.name == names.c.id).exists()
    return sorted(connection.scalars(select(names.c.name).where(recorded)))


def metric_change(
    connection: Connection, key: RunKey, names: Sequence[str], slots: Sequence[int], edges: Sequence[int]
) -> dict[str, Buckets]:
    """Each of these metrics between edges; `slots` ascend.

    The rows of the edges are read at once for all metrics. One need not be recorded in every step: where an edge has no
    row, the newest before it counts.
    """
    distinct, place = np.unique(edges, return_inverse=True)
    columns = np.asarray(slots)
    table = schema.metric_names
    stored = connection.execute(select(table.c.id, table.c.name).where(table.c.name.in_(names))).all()
    at = np.zeros((len(stored), len(distinct), len(columns), len(_SUMS)), np.float64)
    known = np.zeros(at.shape[:3], bool)
    # Before the first step there is nothing to look for.
    known[:, distinct < key.first] = True
    ids = np.array(sorted(row.id for row in stored), np.int64)
    _fill(at, known, ids, distinct, columns, matrix(connection, _sums(key.id, ids, columns, distinct), 3 + len(_SUMS)))
    for which in np.flatnonzero(~known.all(axis=(1, 2))).tolist():
        own = ids[which : which + 1]
        rows, cells = (np.flatnonzero(~known[which].all(axis=axis)) for axis in (1, 0))
        newest = matrix(connection, _newest_steps(key.id, int(own[0]), columns[cells], distinct[rows]), 3)
        steps = np.unique(newest[:, 2])
        found = matrix(connection, _sums(key.id, own, columns[cells], steps), 3 + len(_SUMS))
        before = {(int(row[1]), int(row[2])): row[3:] for row in found}
        for edge, slot, step in newest.astype(np.int64).tolist():
            if step:
                at[which, np.searchsorted(distinct, edge), np.searchsorted(columns, slot)] = before[slot, step]
    change = np.diff(at[:, place], axis=1)
    nothing = np.zeros((len(edges) - 1, len(columns), len(_SUMS)))
    which_of = {row.name: int(np.searchsorted(ids, row.id)) for row in stored}
    return {name: _buckets(change[which_of[name]] if name in which_of else nothing) for name in names}


def _fill(
    at: Floats, known: NDArray[np.bool_], ids: Ints, edges: Ints, slots: NDArray[np.integer], rows: Floats
) -> None:
    """Put rows of `_sums` where they belong: at [ids, edges, slots, sums], and note that they are there."""
    cell = tuple(np.searchsorted(axis, rows[:, place]) for place, axis in enumerate((ids, slots, edges)))
    cell = cell[0], cell[2], cell[1]
    at[cell], known[cell] = rows[:, 3:], True


def _buckets(change: Floats) -> Buckets:
    counted = change[..., [_FINITE, _NOT_FINITE]].astype(np.int64)
    numerator = change[..., _NUMERATOR] + change[..., _LOW]
    return Buckets(numerator, change[..., _DENOMINATOR], counted[..., 0], counted[..., 1])


def _sums(run: int, names: Ints, slots: NDArray[np.integer], steps: NDArray[Any]) -> Select[Any]:
    """(metric, slot, step, running sums) at these steps."""
    table = schema.metrics
    return select(table.c.name, table.c.member, table.c.step, *_SUMS).where(
        table.c.run == run,
        table.c.name.in_(names.tolist()),
        table.c.member.in_(slots.tolist()),
        table.c.step.in_(steps.astype(np.int64).tolist()),
    )


def _newest_steps(run: int, name: int, slots: NDArray[np.integer], edges: Ints) -> Select[Any]:
    """(edge, slot, newest step at or before the edge that recorded the metric, or 0)."""
    metrics = schema.metrics
    edge = values(column("edge", Integer), name="edges").data([(edge,) for edge in edges.tolist()]).cte("edges")
    slot = values(column("slot", Integer), name="slots").data([(slot,) for slot in slots.tolist()]).cte("slots")
    newest = (
        select(func.coalesce(func.max(metrics.c.step), 0))
        .where(metrics.c.run == run, metrics.c.name == name, metrics.c.member == slot.c.slot)
        .where(metrics.c.step <= edge.c.edge)
        .scalar_subquery()
    )
    return select(edge.c.edge, slot.c.slot, newest).select_from(edge.join(slot, true()))


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


def metric_range(connection: Connection, key: RunKey, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
    """(smallest [B, N], largest [B, N]) of the steps' own values; NaN where nothing finite was recorded.

    Rows read: steps of the window x members.
    """
    shape = len(edges) - 1, len(key.members)
    low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
    metrics = schema.metrics
    identity = connection.scalar(select(schema.metric_names.c.id).where(schema.metric_names.c.name == name))
    if identity is not None:
        here = (
            select(metrics.c.step, metrics.c.member, metrics.c.numerator, metrics.c.denominator)
            # Members by number, so that the key's order serves: a window is then one range of it for each.
            .where(metrics.c.run == key.id, metrics.c.name == identity, metrics.c.member.in_(range(len(key.members))))
            .where(metrics.c.step > edges[0], metrics.c.step <= edges[-1])
            .where(metrics.c.finite, metrics.c.denominator != 0)
        )
        steps, slots, numerator, denominator = matrix(connection, here, 4).T
        place = np.searchsorted(np.asarray(edges), steps) - 1, slots.astype(np.int64)
        value = numerator / denominator
        np.minimum.at(low, place, value)
        np.maximum.at(high, place, value)
    return np.where(np.isinf(low), np.nan, low), np.where(np.isinf(high), np.nan, high)
