"""Queries for runs as a whole: their list, events and the store's size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, func, select

from server.store import schema
from server.store.connections import Location
from server.store.records import MemberRecord, StoreError
from server.store.run_state import load_members
from server.store.views import EventInfo, RunInfo, StepMark


@dataclass(frozen=True, slots=True)
class RunKey:
    """A run as the queries need it; `first` and `last` are 1 and 0 while nothing is committed."""

    id: int
    uid: str
    members: tuple[str, ...]
    first: int
    last: int
    trajectories: str

    def slot(self, member: str) -> int:
        if member not in self.members:
            raise StoreError(f"store: run {self.uid} has no member {member!r}; it has {', '.join(self.members)}")
        return self.members.index(member)


def resolve(connection: Connection, run: str) -> RunKey:
    """The run with this uid, or the one created last for "latest"."""
    runs, members = schema.runs, schema.members
    columns = (runs.c.id, runs.c.uid, runs.c.first_step, runs.c.last_step, runs.c.trajectories, members.c.name)
    # Every question begins with this one.
    rows = connection.execute(
        select(*columns).join(members, members.c.run == runs.c.id).where(_is(run)).order_by(members.c.slot)
    ).all()
    if not rows:
        raise _unknown(connection, run)
    row = rows[0]
    names = tuple(one.name for one in rows)
    return RunKey(row.id, row.uid, names, row.first_step or 1, row.last_step or 0, row.trajectories)


def _is(run: str) -> ColumnElement[bool]:
    table = schema.runs
    if run != "latest":
        return table.c.uid == run
    newest = select(table.c.id).order_by(table.c.created.desc(), table.c.id.desc()).limit(1)
    return table.c.id == newest.scalar_subquery()


def _unknown(connection: Connection, run: str) -> StoreError:
    table = schema.runs
    known = ", ".join(connection.scalars(select(table.c.uid).order_by(table.c.id.desc()).limit(5)))
    return StoreError(f"store: no run {run!r}; the newest are: {known}" if known else "store: no run yet")


def _run_row(connection: Connection, run: str) -> Row[Any]:
    row = connection.execute(select(schema.runs).where(_is(run))).one_or_none()
    if row is None:
        raise _unknown(connection, run)
    return row


def revision(connection: Connection, run: str) -> int:
    return int(_run_row(connection, run).revision)


def newest_step(connection: Connection, key: RunKey, last_step: int) -> StepMark | None:
    """The mark of the newest committed step up to `last_step`."""
    table = schema.steps
    row = connection.execute(
        select(table.c.step, table.c.committed, table.c.lease_epoch)
        .where(table.c.run == key.id, table.c.step <= last_step)
        .order_by(table.c.step.desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else StepMark(row.step, row.committed, row.lease_epoch)


def run_infos(connection: Connection) -> list[RunInfo]:
    table = schema.runs
    rows = connection.execute(select(table).order_by(table.c.created.desc(), table.c.id.desc())).all()
    return [_info(row, load_members(connection, row.id)) for row in rows]


def run_info(connection: Connection, run: str) -> RunInfo:
    row = _run_row(connection, run)
    return _info(row, load_members(connection, row.id))


def _info(row: Row[Any], members: tuple[MemberRecord, ...]) -> RunInfo:
    return RunInfo(
        uid=row.uid,
        name=row.name,
        method=row.method,
        status=row.status,
        message=row.message,
        created=row.created,
        heartbeat=row.heartbeat,
        total_steps=row.total_steps,
        first_step=row.first_step,
        last_step=row.last_step,
        config=json.loads(row.config),
        members=members,
        seed=row.seed,
    )


def events(connection: Connection, key: RunKey, limit: int) -> list[EventInfo]:
    table = schema.events
    rows = connection.execute(select(table).where(table.c.run == key.id).order_by(table.c.id.desc()).limit(limit))
    return [EventInfo(row.id, row.created, row.level, row.message, row.member, row.step) for row in rows]


def or_nan(value: float | None) -> float:
    """A stored number; what was not finite is stored as missing."""
    return float("nan") if value is None else value


def size(connection: Connection, location: Location) -> dict[str, int]:
    """Bytes and counts of the whole store; the bytes of trajectories are those its rows name."""
    shards = schema.shards
    totals = connection.execute(
        select(func.count(), func.sum(shards.c.bytes), func.sum(shards.c.groups), func.sum(shards.c.responses))
    ).one()
    return {
        "database_bytes": location.database_bytes(connection),
        "trajectory_bytes": int(totals[1] or 0),
        "runs": _count(connection, schema.runs),
        "steps": _count(connection, schema.steps),
        "groups": int(totals[2] or 0),
        "responses": int(totals[3] or 0),
        "shards": int(totals[0]),
        "prompts": _count(connection, schema.prompts),
    }


def _count(connection: Connection, table: Table) -> int:
    """Of rows, whatever they hold: to count a column SQLite would read every row."""
    return int(connection.scalar(select(func.count()).select_from(table)) or 0)
