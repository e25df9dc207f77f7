"""The run a writer holds: who its members are, and where its running sums stand."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, delete, extract, func, select, update

from server.store import schema
from server.store.connections import locate, readable_errors
from server.store.counts import MEMBER_COUNTS, PAIR_COUNTS, PAIR_SUMS
from server.store.lease import Holder
from server.store.records import LeaseError, MemberRecord
from server.store.rows import MetricSums, Sums


@dataclass(slots=True)
class HeldRun:
    """`last_step` (0: none) and `sums` are as of the last commit this writer knows of; `root` holds the shards."""

    id: int
    uid: str
    members: tuple[MemberRecord, ...]
    epoch: int
    last_step: int
    sums: Sums
    root: Path

    @property
    def slots(self) -> dict[str, int]:
        return {member.name: slot for slot, member in enumerate(self.members)}


def load_members(connection: Connection, run: int) -> tuple[MemberRecord, ...]:
    """A run's members in slot order."""
    table = schema.members
    found = connection.execute(select(table).where(table.c.run == run).order_by(table.c.slot))
    return tuple(MemberRecord(row.name, row.model, row.family, row.tokenizer_sha, row.parameters) for row in found)


def clock(connection: Connection) -> float:
    """Seconds since 1970 by one clock for all who share the store: machines differ by more than a lease may last."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.scalar(select(extract("epoch", func.clock_timestamp()))) or 0.0)


def living(writer: str, lease_until: float, now: float) -> bool:
    """Whether a run's lease runs and its holder may live."""
    holder = Holder.parse(writer)
    return lease_until > now and not (holder is not None and holder.certainly_dead())


def refuse_living_writer(uid: str, writer: str, lease_until: float, now: float) -> None:
    """LeaseError while the lease runs and its holder may live; `now` is the store's clock."""
    if not living(writer, lease_until, now):
        return
    left, holder = lease_until - now, Holder.parse(writer)
    who = f"process {holder.pid} on {holder.host}" if holder else "another process"
    raise LeaseError(
        f"store: run {uid} is being written by {who}; stop it, or wait {left:.0f} s if it is gone, then repeat"
    )


def refuse_held(url: str, uid: str) -> None:
    """LeaseError when a living process writes this run; to be asked before long work that ends in taking the run
    over.
    """
    location = locate(url)
    engine = location.reader_engine()
    try:
        with readable_errors("opening", location), engine.connect() as connection:
            runs, now = schema.runs, clock(connection)
            row = connection.execute(select(runs.c.writer, runs.c.lease_until).where(runs.c.uid == uid)).one_or_none()
    finally:
        engine.dispose()
    if row is not None:
        refuse_living_writer(uid, row.writer, row.lease_until, now)


def check_lease(connection: Connection, held: HeldRun) -> int:
    """The step the run is recorded up to (0: none); LeaseError when another writer took the run over.

    Nobody can take it over before the transaction ends: the run's row is locked (SQLite locks the whole file anyway).
    """
    runs = schema.runs
    row = connection.execute(
        select(runs.c.lease_epoch, runs.c.last_step, runs.c.writer).where(runs.c.id == held.id).with_for_update()
    ).one()
    if row.lease_epoch != held.epoch:
        holder = Holder.parse(row.writer)
        who = f"process {holder.pid} on {holder.host}" if holder else "another process"
        raise LeaseError(f"store: run {held.uid} was taken over by {who}; this process must stop writing it")
    return row.last_step or 0


def touch(connection: Connection, held: HeldRun, lease_seconds: float, *, changed: bool) -> None:
    """Renew the lease; `changed` also tells readers that there is something new. LeaseError when it was taken over."""
    check_lease(connection, held)
    runs, now = schema.runs, clock(connection)
    values = {"heartbeat": now, "lease_until": now + lease_seconds}
    connection.execute(
        update(runs).where(runs.c.id == held.id).values(**values, revision=runs.c.revision + int(changed))
    )


def load_sums(connection: Connection, run: int, step: int, members: int) -> Sums:
    """The running sums of a run up to and including a step."""
    sums = Sums.zero(members)
    member, pair = schema.member_counts, schema.pair_counts
    for row in connection.execute(select(member).where(member.c.run == run, member.c.step == step)).mappings():
        sums.member[row["member"]] = [row[name] for name in MEMBER_COUNTS]
    for row in connection.execute(select(pair).where(pair.c.run == run, pair.c.step == step)).mappings():
        sums.pair[row["receiver"], row["source"]] = [row[name] for name in PAIR_COUNTS]
        sums.pair_sums[row["receiver"], row["source"]] = [row[name] for name in PAIR_SUMS]
    table = schema.metrics
    newest = (
        select(table.c.name, table.c.member, func.max(table.c.step).label("step"))
        .where(table.c.run == run, table.c.step <= step)
        .group_by(table.c.name, table.c.member)
        .subquery()
    )
    found = connection.execute(
        select(table).join(
            newest,
            (table.c.name == newest.c.name) & (table.c.member == newest.c.member) & (table.c.step == newest.c.step),
        ).where(table.c.run == run)
    )  # fmt: skip
    metrics = {
        (row.name, row.member): MetricSums(
            row.sum_numerator, row.sum_numerator_low, row.sum_denominator, row.count_finite, row.count_not_finite
        )
        for row in found
    }
    return Sums(sums.member, sums.pair, sums.pair_sums, metrics)


def truncate(connection: Connection, run: int, step: int) -> None:
    """Remove everything a run recorded after a step: rows, evaluations, events. Its shards are swept later."""
    first, end = schema.group_id(run, step + 1, 0), schema.group_id(run + 1, 0, 0)
    connection.execute(
        delete(schema.responses).where(schema.responses.c.group_id >= first, schema.responses.c.group_id < end)
    )
    for table in schema.STEP_TABLES:
        connection.execute(delete(table).where(table.c.run == run, table.c.step > step))
