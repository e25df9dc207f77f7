"""The rows of a run against each other: what follows from groups, transfers and responses, recomputed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, Table, and_, case, func, select

from server.store import rows, schema
from server.store.counts import (
    MEMBER_COUNTS,
    PAIR_COUNTS,
    PAIR_SUMS,
    GroupFacts,
    GroupPlace,
    StepCounts,
    TransferFacts,
    TransferPlace,
    count_places,
)
from server.store.records import REFUSED_BY_FLOOR, TRUNCATED, UNGRADED_VERDICTS, MetricRecord, StoreError
from server.store.rows import MetricSums, Sums
from server.store.run_state import load_members

# Beyond so many the reader knows enough.
MOST_FAULTS = 100
_FACTS = ("n", "successes", "errors", "tokens", "truncated")
_GATE = ("responses", "admitted", "refused_floor", "refused_other", "n_s", "sum_s", "sum_w")
# What a step leaves behind besides remarks, which may be about no step.
_RECORDED = (
    schema.groups, schema.shards, schema.outcomes, schema.patterns, schema.transfers, schema.grafted,
    schema.member_counts, schema.pair_counts, schema.metrics,
)  # fmt: skip
_DERIVED = (schema.outcomes, schema.patterns, schema.member_counts, schema.pair_counts)


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A named shard of a committed step."""

    step: int
    path: str
    sha256: bytes
    bytes: int


@dataclass(slots=True)
class Seen:
    """How much was looked at."""

    steps: int = 0
    pruned_steps: int = 0
    groups: int = 0
    responses: int = 0
    shards: int = 0
    shard_bytes: int = 0

    def add(self, other: Seen) -> None:
        """What another run had comes on top."""
        for one in fields(Seen):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True)
class RunCheck:
    """One run, checked in chunks of steps in ascending order; `faults` without the run's name."""

    id: int
    uid: str = ""
    first: int = 1
    last: int = 0
    epoch: int = 0
    sums: Sums = field(default_factory=lambda: Sums.zero(0))
    seen: Seen = field(default_factory=Seen)
    faults: list[str] = field(default_factory=list)

    def begin(self, connection: Connection) -> Row[Any]:
        """Take the run as it is now; its row."""
        state = self._state(connection)
        if state is None:
            raise StoreError(f"store: run number {self.id} was removed meanwhile; verify again")
        self.uid, self.epoch = state.uid, state.lease_epoch
        self.first, self.last = state.first_step or 1, state.last_step or 0
        self.sums = Sums.zero(len(load_members(connection, self.id)))
        steps = schema.steps
        count, low, high = connection.execute(
            select(func.count(), func.min(steps.c.step), func.max(steps.c.step)).where(steps.c.run == self.id)
        ).one()
        expected = self.last - self.first + 1
        if count != expected or (count and (low, high) != (self.first, self.last)):
            self._fault(f"{count} steps from {low} to {high} are recorded, and {self.first} to {self.last} announced")
        for table in _RECORDED:
            beyond = (table.c.run == self.id, table.c.step > self.last)
            stray = connection.scalar(select(func.min(table.c.step)).where(*beyond))
            if stray is not None:
                self._fault(f"{table.name} has rows of step {stray}, which is not committed")
        self._check_evaluations(connection)
        return state

    def unchanged(self, connection: Connection) -> bool:
        """Whether nobody resumed the run since `begin`."""
        state = self._state(connection)
        return state is not None and state.lease_epoch == self.epoch

    def _state(self, connection: Connection) -> Row[Any] | None:
        return connection.execute(select(schema.runs).where(schema.runs.c.id == self.id)).one_or_none()

    def steps(self, connection: Connection, low: int, high: int) -> list[ShardRow]:
        """Check steps low .. high, and return the shards they name."""
        groups = _by_step(self._rows(connection, schema.groups, low, high, schema.groups.c.id))
        moved = _by_step(self._rows(connection, schema.transfers, low, high))
        stored = {table: _by_step(self._rows(connection, table, low, high)) for table in _DERIVED}
        metrics = _by_step(self._rows(connection, schema.metrics, low, high))
        shards = _by_step(self._rows(connection, schema.shards, low, high))
        answered = self._responses(connection, low, high)
        self._check_grafted(connection, low, high)
        self._check_prompts(connection, low, high)
        for step in range(low, high + 1):
            own = groups.get(step, [])
            self._check_shards(step, own, shards.get(step, []), answered)
            derived = {table: parts.get(step, []) for table, parts in stored.items()}
            self._check_counts(step, own, moved.get(step, []), derived, metrics.get(step, []))
        self.seen.steps += high - low + 1
        self.seen.groups += sum(map(len, groups.values()))
        named = [ShardRow(row.step, row.path, row.sha256, row.bytes) for part in shards.values() for row in part]
        self.seen.shards += len(named)
        self.seen.shard_bytes += sum(shard.bytes for shard in named)
        return named

    def _rows(self, connection: Connection, table: Table, low: int, high: int, *order: Any) -> Sequence[Row[Any]]:
        here = (table.c.run == self.id, table.c.step.between(low, high))
        return connection.execute(select(table).where(*here).order_by(*(order or table.primary_key))).all()

    def _responses(self, connection: Connection, low: int, high: int) -> dict[int, tuple[int, ...]]:
        """{group: (n, successes, errors, tokens, truncated)} of the response rows; none where they were pruned."""
        table = schema.responses
        # A reward that is no number is missing, and its response counts as ungraded.
        ungraded = table.c.reward.is_(None) | table.c.verdict.in_(sorted(UNGRADED_VERDICTS))
        found = connection.execute(
            select(
                table.c.group_id,
                func.count(),
                _sum(table.c.reward > 0),
                _sum(ungraded),
                func.sum(table.c.tokens),
                _sum(table.c.finish == TRUNCATED),
            )
            .where(table.c.group_id >= schema.group_id(self.id, low, 0))
            .where(table.c.group_id < schema.group_id(self.id, high + 1, 0))
            .group_by(table.c.group_id)
        )
        return {int(group): tuple(int(count) for count in counts) for group, *counts in found}

    def _check_shards(
        self, step: int, groups: Sequence[Row[Any]], shards: Sequence[Row[Any]], answered: dict[int, tuple[int, ...]]
    ) -> None:
        """Groups, response rows and shards of a step agree; or the step was pruned, and has the first alone."""
        own = [answered.pop(group.id, None) for group in groups]
        if groups and not shards and not any(own):
            self.seen.pruned_steps += 1
            return
        for group, counted in zip(groups, own, strict=True):
            facts = tuple(getattr(group, name) for name in _FACTS)
            if counted != facts:
                what = f"{facts} (n, right, ungraded, tokens, cut), its responses {counted}"
                self._fault(f"step {step}: group {group.id} has {what}")
        self.seen.responses += sum(counted[0] for counted in own if counted)
        expected: dict[int, list[int]] = {}
        for group in groups:
            size = expected.setdefault(group.member, [0, 0])
            size[0] += 1
            size[1] += group.n
        if {shard.member: [shard.groups, shard.responses] for shard in shards} != expected:
            self._fault(f"step {step}: its shards do not hold what its groups are")

    def _check_counts(
        self,
        step: int,
        groups: Sequence[Row[Any]],
        moved: Sequence[Row[Any]],
        stored: dict[Table, list[Row[Any]]],
        metrics: Sequence[Row[Any]],
    ) -> None:
        """The cumulative counts and what else was derived, from the step's groups and transfers."""
        places: list[GroupPlace] = [
            (row.member, row.prompt, GroupFacts(*(getattr(row, name) for name in _FACTS))) for row in groups
        ]
        attempted = {(slot, prompt) for slot, prompt, _ in places}
        for row in moved:
            if (row.receiver, row.prompt) not in attempted:
                self._fault(f"step {step}: a transfer to member {row.receiver} on prompt {row.prompt}: no such group")
                return
        gates: list[TransferPlace] = [
            (row.receiver, row.source, row.prompt, row.held_out, TransferFacts(*(getattr(row, name) for name in _GATE)))
            for row in moved
        ]
        counts = count_places(len(self.sums.member), places, gates)
        values = {(row.name, row.member): _metric(row) for row in metrics}
        self.sums = self.sums.add(counts, values)
        self._compare_sums(step, stored[schema.member_counts], stored[schema.pair_counts], metrics)
        self._compare_outcomes(step, counts, stored[schema.outcomes], stored[schema.patterns])

    def _compare_sums(
        self, step: int, member: Iterable[Row[Any]], pair: Iterable[Row[Any]], metrics: Iterable[Row[Any]]
    ) -> None:
        size = len(self.sums.member)
        found = np.zeros_like(self.sums.member)
        of_pairs, of_sums = np.zeros_like(self.sums.pair), np.zeros_like(self.sums.pair_sums)
        for row in member:
            found[row.member] = [getattr(row, name) for name in MEMBER_COUNTS]
        for row in pair:
            of_pairs[row.receiver, row.source] = [getattr(row, name) for name in PAIR_COUNTS]
            of_sums[row.receiver, row.source] = [getattr(row, name) for name in PAIR_SUMS]
        whole = np.array_equal(found, self.sums.member) and np.array_equal(of_pairs, self.sums.pair)
        if not whole or not np.allclose(of_sums, self.sums.pair_sums, rtol=1e-9, atol=1e-9):
            self._fault(f"step {step}: the cumulative counts of {size} members are not the sums of the raw rows")
            # Told once: every later step would repeat it.
            self.sums = Sums(found, of_pairs, of_sums, self.sums.metrics)
        for row in metrics:
            kept = MetricSums(
                row.sum_numerator, row.sum_numerator_low, row.sum_denominator, row.count_finite, row.count_not_finite
            )
            if not _same(kept, self.sums.metrics[row.name, row.member]):
                self._fault(f"step {step}: the running sum of metric {row.name} of member {row.member} is wrong")
                self.sums = Sums(found, of_pairs, of_sums, {**self.sums.metrics, (row.name, row.member): kept})

    def _compare_outcomes(
        self, step: int, counts: StepCounts, outcomes: Iterable[Row[Any]], patterns: Iterable[Row[Any]]
    ) -> None:
        wanted, shapes = rows.outcome_rows(self.id, step, counts)
        if [dict(row._mapping) for row in outcomes] != sorted(wanted, key=lambda row: int(row["prompt"])):
            self._fault(f"step {step}: who failed and who solved its prompts is not what its groups say")
        if [dict(row._mapping) for row in patterns] != sorted(shapes, key=lambda row: int(row["solved"])):
            self._fault(f"step {step}: its patterns are not what its groups say")

    def _check_grafted(self, connection: Connection, low: int, high: int) -> None:
        """Transfers against the responses they moved."""
        whole, part = schema.transfers, schema.grafted
        key = ("run", "step", "receiver", "prompt", "source")
        admitted = part.c.refusal.is_(None)
        by_floor = part.c.refusal == REFUSED_BY_FLOOR
        counted = (
            select(
                *(part.c[name] for name in key),
                func.count().label("responses"),
                _sum(admitted).label("admitted"),
                _sum(by_floor).label("refused_floor"),
                _sum(part.c.s.is_not(None)).label("n_s"),
                func.sum(part.c.s).label("sum_s"),
                func.sum(case((admitted, part.c.weight))).label("sum_w"),
            )
            .where(part.c.run == self.id, part.c.step.between(low, high))
            .group_by(*(part.c[name] for name in key))
            .subquery()
        )
        names = ("responses", "admitted", "refused_floor", "n_s", "sum_s", "sum_w")
        joined = whole.outerjoin(counted, and_(*(whole.c[name] == counted.c[name] for name in key)))
        found = connection.execute(
            select(
                *(whole.c[name] for name in key),
                *(whole.c[name].label(f"kept_{name}") for name in names),
                *(func.coalesce(counted.c[name], 0).label(name) for name in names),
            )
            .select_from(joined)
            .where(whole.c.run == self.id, whole.c.step.between(low, high))
        ).all()
        moved = connection.scalar(select(func.count()).select_from(counted))
        if moved != sum(row.responses > 0 for row in found):
            self._fault(f"steps {low} to {high}: responses were moved that belong to no transfer")
        for row in found:
            pairs = [(getattr(row, f"kept_{name}"), getattr(row, name)) for name in names]
            if not all(math.isclose(kept, count, rel_tol=1e-9, abs_tol=1e-9) for kept, count in pairs):
                place = f"to member {row.receiver} on prompt {row.prompt}"
                self._fault(f"step {row.step}: the transfer {place} is not what its responses are")

    def _check_prompts(self, connection: Connection, low: int, high: int) -> None:
        groups, prompts = schema.groups, schema.prompts
        missing = connection.scalar(
            select(func.count(groups.c.prompt.distinct()))
            .select_from(groups.outerjoin(prompts, prompts.c.key == groups.c.prompt))
            .where(groups.c.run == self.id, groups.c.step.between(low, high), prompts.c.key.is_(None))
        )
        if missing:
            self._fault(f"steps {low} to {high}: {missing} prompts have no text")

    def _check_evaluations(self, connection: Connection) -> None:
        """Summaries against the counts of their problems."""
        summary, part = schema.evaluations, schema.evaluation_problems
        key = ("run", "step", "benchmark", "member", "repeat")
        found = connection.execute(
            select(
                *(summary.c[name] for name in key), summary.c.problems, summary.c.responses,
                func.count(part.c.prompt.distinct()).label("counted"),
                func.coalesce(func.sum(part.c.responses), 0).label("answered"),
            )
            .select_from(summary.outerjoin(part, and_(*(summary.c[name] == part.c[name] for name in key))))
            .where(summary.c.run == self.id)
            .group_by(*(summary.c[name] for name in key), summary.c.problems, summary.c.responses)
        )  # fmt: skip
        for row in found:
            if (row.problems, row.responses) != (row.counted, row.answered):
                place = f"of member {row.member} on {row.benchmark}"
                self._fault(f"step {row.step}: the evaluation {place} is not what its problems are")

    def _fault(self, text: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)


def database_faults(connection: Connection) -> list[str]:
    """What the database itself finds wrong. PostgreSQL has no such question for plain readers."""
    if connection.dialect.name != "sqlite":
        return []
    faults = []
    for check in ("quick_check", "foreign_key_check"):
        found = [tuple(row) for row in connection.exec_driver_sql(f"PRAGMA {check}")]
        if found not in ([], [("ok",)]):
            faults.append(f"the database is damaged ({check}: {found[0]}, {len(found)} in all); restore a backup")
    return faults


def _by_step(found: Iterable[Row[Any]]) -> dict[int, list[Row[Any]]]:
    parts: dict[int, list[Row[Any]]] = {}
    for row in found:
        parts.setdefault(row.step, []).append(row)
    return parts


def _sum(condition: Any) -> Any:
    return func.sum(case((condition, 1), else_=0))


def _metric(row: Row[Any]) -> MetricRecord:
    parts = (row.numerator, row.denominator) if row.finite else (math.nan, math.nan)
    return MetricRecord(None, str(row.name), *parts)


def _same(kept: MetricSums, counted: MetricSums) -> bool:
    parts = (
        (kept.numerator + kept.numerator_low, counted.numerator + counted.numerator_low),
        (kept.denominator, counted.denominator),
    )
    exact = (kept.finite, kept.not_finite) == (counted.finite, counted.not_finite)
    return exact and all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) or (a != a and b != b) for a, b in parts)
