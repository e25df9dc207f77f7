"""Did the grafts take? What a receiver did when it met a prompt again, after a graft and after a withheld one."""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, and_, case, func, select, true

from server.store import schema
from server.store.counts import Ints
from server.store.read_runs import RunKey

UPTAKE_COUNTS = ("grafted", "grafted_seen", "grafted_solved", "held_out", "held_out_seen", "held_out_solved")


def uptake(
    connection: Connection, key: RunKey, low: int, high: int, until: int, every: int = 1
) -> tuple[dict[str, Ints], dict[str, int]]:
    """As `Reader.uptake`, steps low + 1 .. high. One pass: every transfer looks its receiver's next visit up, so the
    cost is that of the transfers in the steps that are read, whatever the history."""
    size = len(key.members)
    edges = np.zeros((len(UPTAKE_COUNTS), size, size), np.int64)
    visits = _visits(key, low, high, until, every).subquery()
    for receiver, source, *counts in connection.execute(_sums(visits, visits.c.receiver, visits.c.source)):
        edges[:, receiver, source] = counts
    # A place that several sources gave to is one place: grafted from all of them, or withheld from all.
    place = (visits.c.step, visits.c.receiver, visits.c.prompt, visits.c.held_out, visits.c.solved)
    total = connection.execute(_sums(select(*place).distinct().subquery())).one()
    return (
        dict(zip(UPTAKE_COUNTS, edges, strict=True)),
        {name: int(count or 0) for name, count in zip(UPTAKE_COUNTS, total, strict=True)},
    )


def _visits(key: RunKey, low: int, high: int, until: int, every: int) -> Select[Any]:
    """(step, receiver, prompt, source, held_out, solved) of every transfer; solved is missing before the next visit."""
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
    return select(
        moved.c.step, moved.c.receiver, moved.c.prompt, moved.c.source, moved.c.held_out, next_visit.label("solved")
    ).where(moved.c.run == key.id, steps)


def _sampled(low: int, high: int, every: int) -> list[int]:
    """The multiples of `every` in low + 1 .. high."""
    return list(range((low // every + 1) * every, high + 1, every))


def _sums(visits: Any, *by: Any) -> Select[Any]:
    """The columns of `by`, then UPTAKE_COUNTS."""
    held = visits.c.held_out
    counts = [
        func.sum(case((and_(side, condition), 1), else_=0))
        for side in (held.is_(False), held.is_(True))
        for condition in (true(), visits.c.solved.is_not(None), visits.c.solved == 1)
    ]
    statement = select(*by, *counts)
    return statement.group_by(*by) if by else statement
