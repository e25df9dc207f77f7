"""Evaluations: per-problem counts, and their mean with an interval, worked out once when they are recorded."""

from __future__ import annotations

import math

from sqlalchemy import Connection, delete, func, insert, select

from server.store import schema
from server.store.records import EvaluationRecord, StoreError
from server.store.scores import mean_interval


def insert_evaluation(connection: Connection, run: int, slot: int, record: EvaluationRecord) -> None:
    """Record one seed of an evaluation, in place of an earlier record of the same seed, and its summary over all seeds.

    StoreError when another seed was recorded at another temperature: their mean would mean nothing.
    """
    summary, problems = schema.evaluations, schema.evaluation_problems
    place = {
        "run": run, "step": record.step, "benchmark": record.benchmark, "member": slot, "repeat": record.repeat
    }  # fmt: skip
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
                {
                    **place, "seed": record.seed, "prompt": key, "correct": correct, "responses": responses,
                    "votes": votes_text(record, key),
                }
                for key, correct, responses in record.problems
            ],
        )  # fmt: skip
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
            role=record.role,
        )
    )  # fmt: skip


def votes_text(record: EvaluationRecord, key: int) -> str | None:
    """The sizes of a problem's wrong answers as the store keeps them ("3 1 1"), None where they are not known."""
    votes = record.votes.get(key)
    return None if votes is None else " ".join(map(str, votes))


def votes_of(text: str) -> tuple[int, ...]:
    """The inverse of :func:`votes_text`."""
    return tuple(map(int, text.split()))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
