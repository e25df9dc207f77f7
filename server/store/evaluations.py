"""Evaluations: per-problem counts, and their mean with an interval, worked out once when they are recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, delete, func, insert, select

from server.store import schema
from server.store.records import EvaluationRecord, StoreError

_Z = 1.959963984540054


class MeanInterval(NamedTuple):
    """A mean over problems with its 95 % interval."""

    mean: float
    low: float
    high: float


def mean_interval(correct: Sequence[int], responses: Sequence[int]) -> MeanInterval:
    """Mean over problems of correct / responses, with the Wilson interval at the effective number of problems.

    The responses to one problem are alike, so the problem is the unit: the effective number is p (1 - p) over the
    variance of the mean, between the number of problems less one and the number of responses. NaN without problems.
    """
    if not responses:
        return MeanInterval(math.nan, math.nan, math.nan)
    shares = np.asarray(correct, np.float64) / np.asarray(responses, np.float64)
    size, mean = len(shares), float(shares.mean())
    variance = float(shares.var(ddof=1)) / size if size > 1 else 0.0
    effective = mean * (1 - mean) / variance if variance > 0 else float(size)
    effective = min(max(effective, 1.0), float(sum(responses)))
    # Wilson, written for a share and a real number of trials.
    shrink = 1 + _Z**2 / effective
    centre = (mean + _Z**2 / (2 * effective)) / shrink
    half = _Z * math.sqrt(mean * (1 - mean) / effective + _Z**2 / (4 * effective**2)) / shrink
    return MeanInterval(mean, max(0.0, centre - half), min(1.0, centre + half))


def insert_evaluation(connection: Connection, run: int, slot: int, record: EvaluationRecord) -> None:
    """Record one seed of an evaluation, in place of an earlier record of the same seed, and its summary over all seeds.

    StoreError when another seed was recorded at another temperature: their mean would mean nothing.
    """
    summary, problems = schema.evaluations, schema.evaluation_problems
    place = {"run": run, "step": record.step, "benchmark": record.benchmark, "member": slot}
    this_summary = [summary.c[name] == value for name, value in place.items()]
    these_problems = [problems.c[name] == value for name, value in place.items()]
    connection.execute(delete(problems).where(*these_problems, problems.c.seed == record.seed))
    seeds = connection.scalar(select(func.count(problems.c.seed.distinct())).where(*these_problems)) or 0
    temperature = connection.scalar(select(summary.c.temperature).where(*this_summary))
    if seeds and temperature != record.temperature:
        raise StoreError(
            f"store: {record.benchmark} of {record.member} at step {record.step} was recorded at temperature "
            f"{temperature}, this seed at {record.temperature}; name the benchmark differently"
        )
    if record.problems:
        connection.execute(
            insert(problems),
            [
                {**place, "seed": record.seed, "prompt": key, "correct": correct, "responses": responses}
                for key, correct, responses in record.problems
            ],
        )
    pooled = connection.execute(
        select(func.sum(problems.c.correct), func.sum(problems.c.responses))
        .where(*these_problems)
        .group_by(problems.c.prompt)
    ).all()
    correct, responses = [int(row[0]) for row in pooled], [int(row[1]) for row in pooled]
    interval = mean_interval(correct, responses)
    connection.execute(delete(summary).where(*this_summary))
    connection.execute(
        insert(summary).values(
            **place, mean=_number(interval.mean), low=_number(interval.low), high=_number(interval.high),
            problems=len(pooled), responses=sum(responses), temperature=record.temperature, seeds=seeds + 1,
        )
    )  # fmt: skip


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
