"""The range of single steps within buckets. Unlike the sums of `read_windows` it reads every step of the window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import Connection, select

from server.store import schema
from server.store.counts import Floats
from server.store.read_runs import RunKey
from server.store.read_windows import matrix


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
