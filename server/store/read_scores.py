"""Queries for the figures of an evaluation: pass@1, pass@k and maj@k of members, and what members score together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Float, cast, func, select

from server.store import schema
from server.store.read_evaluations import records
from server.store.read_runs import RunKey
from server.store.records import EvaluationRecord
from server.store.scores import MeanInterval, Score, combined, moments_interval, score


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


def joint_scores(
    connection: Connection, key: RunKey, members: Sequence[str], benchmarks: Sequence[str], steps: Sequence[int]
) -> dict[int, MeanInterval]:
    """{step: mean over members of the mean over benchmarks}, of the steps at which all of them were measured.

    Members answer the same problems, which are hard or easy for all of them, so a problem's share is its mean over
    members and the interval is over problems.
    """
    table = schema.evaluation_problems
    chosen = (
        table.c.run == key.id,
        table.c.step.in_(steps),
        table.c.benchmark.in_(benchmarks),
        table.c.member.in_([key.slot(name) for name in members]),
        table.c.repeat == 0,
    )
    place = (table.c.step, table.c.benchmark, table.c.prompt)
    responses = func.sum(table.c.responses)
    share = cast(func.sum(table.c.correct), Float) / responses
    own = select(*place, share.label("share"), responses.label("n")).where(*chosen).group_by(*place, table.c.member)
    single = own.subquery()
    by_place = (single.c.step, single.c.benchmark, single.c.prompt)
    mean = func.avg(single.c.share)
    joint = select(*by_place, mean.label("share"), func.sum(single.c.n).label("n"), func.count().label("members"))
    problem = joint.group_by(*by_place).subquery()
    by_step = (problem.c.step, problem.c.benchmark)
    moments = select(
        *by_step, func.count().label("problems"), func.sum(problem.c.share).label("sum"),
        func.sum(problem.c.share * problem.c.share).label("squares"), func.sum(problem.c.n).label("n"),
        func.min(problem.c.members).label("members"),
    )  # fmt: skip
    found: dict[int, list[MeanInterval]] = {}
    for row in connection.execute(moments.group_by(*by_step).order_by(*by_step)):
        if row.members == len(members):
            average = float(row.sum) / row.problems
            spread = max(float(row.squares) / row.problems - average**2, 0.0) / max(row.problems - 1, 1)
            interval = moments_interval(average, spread, row.problems, float(row.n))
            found.setdefault(row.step, []).append(interval)
    return {step: combined(parts) for step, parts in found.items() if len(parts) == len(benchmarks)}
