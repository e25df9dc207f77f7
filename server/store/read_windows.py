"""Queries for counts of step windows: differences of cumulative rows, never a sum over steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, Table, select

from server.store import schema
from server.store.counts import MEMBER_COUNTS, PAIR_COUNTS, PAIR_SUMS, Floats, Ints
from server.store.read_runs import RunKey
from server.store.records import StoreError

Counts = dict[str, Ints | Floats]


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
    """A result of numbers below 2^53 as float64 [rows, width]; several times faster than one object a row."""
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
