"""Did the grafts take? What a receiver did when it met a prompt again, after a graft and after a withheld one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, case, func, select

from server.store import schema
from server.store.counts import Ints
from server.store.read_runs import RunKey
from server.store.read_windows import matrix

UPTAKE_COUNTS = ("grafted", "grafted_seen", "grafted_solved", "held_out", "held_out_seen", "held_out_solved")


def uptake(
    connection: Connection, key: RunKey, edges: Sequence[int], until: int, every: int = 1
) -> tuple[dict[str, Ints], dict[str, Ints]]:
    """As `Reader.uptake_history`. One pass: every transfer looks its receiver's next visit up, so the cost is that of
    the transfers in the steps that are read, whatever the history."""
    rows = matrix(connection, _visits(key, edges[0], edges[-1], until, every), 6).astype(np.int64)
    # A place that several sources gave to is one place: grafted from all of them, or withheld from all.
    first = np.ones(len(rows), bool)
    first[1:] = (rows[1:, :3] != rows[:-1, :3]).any(axis=1)
    size, buckets = len(key.members), len(edges) - 1
    return _counts(rows, edges, (buckets, size, size)), _counts(rows[first], edges, (buckets,))


def _counts(rows: Ints, edges: Sequence[int], shape: tuple[int, ...]) -> dict[str, Ints]:
    """UPTAKE_COUNTS of rows of `_visits`, by bucket, and where `shape` has them by receiver and source."""
    step, receiver, _, source, held_out, solved = rows.T
    cell = np.ravel_multi_index((np.searchsorted(np.asarray(edges), step) - 1, receiver, source)[: len(shape)], shape)
    found = {}
    for side, held in (("grafted", 0), ("held_out", 1)):
        for name, chosen in (("", True), ("_seen", solved >= 0), ("_solved", solved == 1)):
            counts = np.bincount(cell[(held_out == held) & chosen], minlength=math.prod(shape))
            found[side + name] = counts.reshape(shape).astype(np.int64)
    return found


def _visits(key: RunKey, low: int, high: int, until: int, every: int) -> Select[Any]:
    """(step, receiver, prompt, source, held out, solved) of every transfer, in this order; solved is -1 before the next
    visit."""
    moved, group = schema.transfers, schema.groups
    next_visit = (
        select(case((group.c.successes > 0, 1), else_=0))
        .where(
            group.c.run == key.id,
            group.c.member == moved.c.receiver,
            group.c.prompt == moved.c.prompt,
            group.c.step > moved.c.step,
            group.c.step <= until,
            # A visit that could not be graded says nothing.
            group.c.errors == 0,
        )
        .order_by(group.c.step)
        .limit(1)
        .scalar_subquery()
    )
    # A list of steps is looked up one by one; a remainder would be worked out for every transfer of the window.
    steps = moved.c.step.between(low + 1, high) if every == 1 else moved.c.step.in_(_sampled(low, high, every))
    held_out = case((moved.c.held_out, 1), else_=0)
    place = moved.c.step, moved.c.receiver, moved.c.prompt, moved.c.source
    visits = select(*place, held_out, func.coalesce(next_visit, -1))
    return visits.where(moved.c.run == key.id, steps).order_by(*place)


def _sampled(low: int, high: int, every: int) -> list[int]:
    """The multiples of `every` in low + 1 .. high."""
    return list(range((low // every + 1) * every, high + 1, every))
