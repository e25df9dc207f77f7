"""Queries for the figures of an evaluation: pass@1, pass@k and maj@k of members at one step each."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from server.store.read_evaluations import records
from server.store.read_runs import RunKey
from server.store.records import EvaluationRecord
from server.store.scores import Score, score


def scores(connection: Connection, key: RunKey, steps: Mapping[str, int], *, repeats: bool) -> list[Score]:
    """The figures of each member in `steps` at its step, by member and benchmark, for k = 1, 2, 4, ... responses.

    `repeats`: of the repeated evaluations of the best checkpoint, else in the course of training. An evaluation
    without problems has none.
    """
    found: dict[tuple[str, str], list[EvaluationRecord]] = {}
    for record in records(connection, key, steps, repeats=repeats):
        if record.problems:
            found.setdefault((record.member, record.benchmark), []).append(record)
    return [score(passes, _powers(passes)) for passes in found.values()]


def _powers(passes: list[EvaluationRecord]) -> list[int]:
    """Powers of two up to the fewest responses of a problem."""
    fewest = min(responses for record in passes for _, _, responses in record.problems)
    return [1 << power for power in range(fewest.bit_length())]
