"""Queries for evaluations: in the course of training, and the repeats of the best checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
from sqlalchemy import Connection, func, select

from server.store import read_runs, schema
from server.store.best import best_checkpoints
from server.store.counts import Ints
from server.store.evaluations import votes_of
from server.store.read_runs import RunKey, or_nan
from server.store.records import EvaluationRecord
from server.store.views import BestCheckpoint, EvaluationMark, EvaluationSummary


def evaluations(connection: Connection, key: RunKey) -> list[EvaluationSummary]:
    """Every evaluation in the course of a run, by benchmark, step and member slot."""
    table = schema.evaluations
    columns = [table.c[one.name] for one in fields(EvaluationSummary)]
    order = (table.c.benchmark, table.c.step, table.c.member)
    rows = connection.execute(select(*columns).where(table.c.run == key.id, table.c.repeat == 0).order_by(*order))
    return [
        EvaluationSummary(key.members[member], benchmark, step, or_nan(mean), or_nan(low), or_nan(high), *rest)
        for member, benchmark, step, mean, low, high, *rest in rows
    ]


def mark(connection: Connection, key: RunKey, *, repeats: bool) -> EvaluationMark:
    """The mark of a run's evaluations in the course of training, or of the repeats."""
    table, runs = schema.evaluations, schema.runs
    wanted = table.c.repeat > 0 if repeats else table.c.repeat == 0
    sums = [func.coalesce(func.sum(table.c[name]), 0.0) for name in ("mean", "low", "high")]
    count, responses, mean, low, high = connection.execute(
        select(func.count(), func.coalesce(func.sum(table.c.responses), 0), *sums).where(table.c.run == key.id, wanted)
    ).one()
    epoch = connection.scalar(select(runs.c.lease_epoch).where(runs.c.id == key.id))
    return EvaluationMark(int(count), int(responses), float(mean), float(low), float(high), int(epoch or 0))


def evaluation_problems(
    connection: Connection, key: RunKey, benchmark: str, step: int, member: str
) -> tuple[Ints, Ints, Ints]:
    """(prompt keys, right, responses), [P] each, keys ascending, seeds summed; empty where nothing was recorded."""
    table = schema.evaluation_problems
    rows = connection.execute(
        select(table.c.prompt, func.sum(table.c.correct), func.sum(table.c.responses))
        .where(
            table.c.run == key.id,
            table.c.step == step,
            table.c.benchmark == benchmark,
            table.c.member == key.slot(member),
            table.c.repeat == 0,
        )
        .group_by(table.c.prompt)
        .order_by(table.c.prompt)
    ).all()
    table_of_rows = np.array([tuple(row) for row in rows], np.int64).reshape(-1, 3)
    return table_of_rows[:, 0], table_of_rows[:, 1], table_of_rows[:, 2]


def best(connection: Connection, key: RunKey) -> list[BestCheckpoint]:
    """The best checkpoint of every member that has one, by the run's own rule."""
    config = read_runs.run_info(connection, key.uid).config
    return best_checkpoints(config, key.members, evaluations(connection, key))


def records(connection: Connection, key: RunKey, steps: Mapping[str, int], *, repeats: bool) -> list[EvaluationRecord]:
    """What was recorded of each member in `steps` at its step, by member, benchmark, repeat and seed.

    `repeats`: those of the best checkpoint, else the evaluation in the course of training.
    """
    summary, table = schema.evaluations, schema.evaluation_problems
    found = []
    for member, step in steps.items():
        place = {"run": key.id, "step": step, "member": key.slot(member)}
        wanted = summary.c.repeat > 0 if repeats else summary.c.repeat == 0
        heads = connection.execute(
            select(summary)
            .where(*(summary.c[name] == value for name, value in place.items()), wanted)
            .order_by(summary.c.benchmark, summary.c.repeat)
        ).all()
        for head in heads:
            rows = connection.execute(
                select(table)
                .where(
                    *(table.c[name] == value for name, value in place.items()),
                    table.c.benchmark == head.benchmark,
                    table.c.repeat == head.repeat,
                )
                .order_by(table.c.seed, table.c.prompt)
            ).all()
            for seed in dict.fromkeys(row.seed for row in rows):
                own = [row for row in rows if row.seed == seed]
                found.append(
                    EvaluationRecord(
                        member,
                        head.benchmark,
                        step,
                        tuple((row.prompt, row.correct, row.responses) for row in own),
                        head.temperature,
                        seed,
                        head.role,
                        head.repeat,
                        {row.prompt: votes_of(row.votes) for row in own if row.votes is not None},
                    )
                )
    return found
