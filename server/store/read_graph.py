"""The success graph as it is in the store, and what intervals by prompt or group are made of: the newest rows first.

Every question reads a bounded number of rows along a key, so it costs the same after a hundred steps and after twenty
thousand; what it leaves out is in the answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select

from server.store import schema
from server.store.counts import Bools, Ints
from server.store.read_runs import RunKey
from server.store.read_windows import matrix
from server.store.views import NewestGroups, NewestPlaces, NewestTransfers, PromptVisits

# Visits of one prompt by one member that are read, newest first.
MOST_VISITS = 200


def newest_places(connection: Connection, key: RunKey, low: int, high: int, limit: int) -> NewestPlaces:
    """As `Reader.newest_places`, steps low + 1 .. high. O(limit): the end of one range of the primary key."""
    table = schema.outcomes
    newest = (
        select(table.c.step, table.c.prompt, table.c.attempted, table.c.all_fail, table.c.solved)
        .where(table.c.run == key.id, table.c.step.between(low + 1, high))
        .order_by(table.c.step.desc(), table.c.prompt.desc())
        .limit(limit)
    )
    rows = matrix(connection, newest, 5).astype(np.int64)
    first, kept = _whole_steps(rows[:, 0], low, limit)
    step, prompt, *masks = (np.ascontiguousarray(rows[kept, place]) for place in range(5))
    attempted, all_fail, solved = (_flags(mask, len(key.members)) for mask in masks)
    return NewestPlaces(first, step, prompt, attempted, all_fail, solved)


def newest_transfers(connection: Connection, key: RunKey, low: int, high: int, limit: int) -> NewestTransfers:
    """As `Reader.newest_transfers`, steps low + 1 .. high. O(limit): the end of one range of the primary key."""
    table = schema.transfers
    newest = (
        select(
            table.c.step, table.c.prompt, table.c.receiver, table.c.source, table.c.responses, table.c.admitted,
            table.c.n_s, table.c.sum_s, table.c.sum_w,
        )
        .where(table.c.run == key.id, table.c.step.between(low + 1, high))
        .order_by(table.c.step.desc(), table.c.receiver.desc(), table.c.prompt.desc(), table.c.source.desc())
        .limit(limit)
    )  # fmt: skip
    found = matrix(connection, newest, 9)
    whole, sums = found[:, :7].astype(np.int64), found[:, 7:]
    first, kept = _whole_steps(whole[:, 0], low, limit)
    step, prompt, receiver, source, responses, admitted, n_s = (
        np.ascontiguousarray(whole[kept, place]) for place in range(7)
    )
    sum_s, sum_w = (np.ascontiguousarray(sums[kept, place]) for place in range(2))
    return NewestTransfers(first, step, prompt, receiver, source, responses, admitted, n_s, sum_s, sum_w)


def newest_groups(connection: Connection, key: RunKey, low: int, high: int, limit: int) -> NewestGroups:
    """As `Reader.newest_groups`, steps low + 1 .. high. O(limit): ids hold run, step and place in this order."""
    table = schema.groups
    start, stop = schema.group_id(key.id, low + 1, 0), schema.group_id(key.id, high + 1, 0)
    newest = (
        select(table.c.step, table.c.prompt, table.c.member, table.c.n, table.c.successes, table.c.errors)
        .where(table.c.id >= start, table.c.id < stop)
        .order_by(table.c.id.desc())
        .limit(limit)
    )
    rows = matrix(connection, newest, 6).astype(np.int64)
    first, kept = _whole_steps(rows[:, 0], low, limit)
    return NewestGroups(first, *(np.ascontiguousarray(rows[kept, place]) for place in range(6)))


def prompt_visits(connection: Connection, key: RunKey, prompt: int, low: int, high: int) -> PromptVisits:
    """As `Reader.prompt_visits`, steps low + 1 .. high. At most MOST_VISITS rows a member, each by the index on
    (run, member, prompt, step)."""
    table = schema.groups
    rows: list[tuple[int, ...]] = []
    for slot in range(len(key.members)):
        newest = (
            select(table.c.step, table.c.member, table.c.successes, table.c.n, table.c.errors)
            .where(table.c.run == key.id, table.c.member == slot, table.c.prompt == prompt)
            .where(table.c.step.between(low + 1, high))
            .order_by(table.c.step.desc())
            .limit(MOST_VISITS)
        )
        rows += [tuple(row) for row in connection.execute(newest)]
    found = np.array(sorted(rows), np.int64).reshape(-1, 5)
    step, member, successes, n, errors = (np.ascontiguousarray(found[:, place]) for place in range(5))
    return PromptVisits(step, member, successes, n, errors)


def patterns_from(connection: Connection, key: RunKey, low: int, high: int, rows: int) -> int:
    """As `Reader.patterns_from`, steps low + 1 .. high. O(rows): the end of one range of the primary key."""
    table = schema.patterns
    newest = (
        select(table.c.step)
        .where(table.c.run == key.id, table.c.step.between(low + 1, high))
        .order_by(table.c.step.desc())
        .limit(rows)
        .subquery()
    )
    oldest, count = connection.execute(select(func.min(newest.c.step), func.count()).select_from(newest)).one()
    return low + 1 if count < rows else min(int(oldest) + 1, high)


def _whole_steps(steps: NDArray[np.int64], low: int, limit: int) -> tuple[int, NDArray[np.bool_]]:
    """(first step whose rows are all there, which rows to keep) of newest-first rows that a limit may have cut."""
    first = low + 1 if len(steps) < limit else int(steps[-1]) + 1
    kept = steps >= first
    if kept.any() or not len(steps):
        return first, kept
    # One step alone fills the limit: a part of it is better than nothing.
    return int(steps[-1]), np.ones(len(steps), bool)


def _flags(masks: Ints, size: int) -> Bools:
    """[R] bit masks as [R, N] flags."""
    flags: Bools = (masks[:, None] >> np.arange(size, dtype=np.int64)[None, :] & 1).astype(bool)
    return flags
