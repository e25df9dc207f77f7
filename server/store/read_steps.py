"""Queries for whole steps: who solved what, what moved, what was said. Replay and recorded peers read these."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from sqlalchemy import Connection, and_, select

from server.store import schema
from server.store.read_runs import RunKey, or_nan
from server.store.records import GraftedRecord, GroupRecord, StoreError, TransferRecord
from server.store.trajectories import read_groups
from server.store.views import GroupCounts


def group_counts(connection: Connection, key: RunKey, step: int) -> dict[str, dict[int, GroupCounts]]:
    """{member: {prompt: counts}} of a step in recorded order; a member without groups has none."""
    table = schema.groups
    found: dict[str, dict[int, GroupCounts]] = {name: {} for name in key.members}
    columns = (table.c.member, table.c.prompt, table.c.n, table.c.successes, table.c.errors)
    here = (table.c.run == key.id, table.c.step == step)
    for member, prompt, *counts in connection.execute(select(*columns).where(*here).order_by(table.c.id)):
        found[key.members[member]][prompt] = GroupCounts(*counts)
    return found


def transfers(
    connection: Connection, key: RunKey, step: int, *, prompt: int | None = None, receiver: int | None = None
) -> list[TransferRecord]:
    """A step's transfers with their responses, by receiver slot, prompt and source slot; or those of one place."""
    table, part = schema.transfers, schema.grafted
    place = {"run": key.id, "step": step, "prompt": prompt, "receiver": receiver}
    place = {name: value for name, value in place.items() if value is not None}
    here = [select(one).where(*(one.c[name] == value for name, value in place.items())) for one in (table, part)]
    responses: dict[tuple[int, int, int], list[GraftedRecord]] = {}
    for one in connection.execute(here[1].order_by(part.c.index)).mappings():
        responses.setdefault((one["receiver"], one["prompt"], one["source"]), []).append(
            GraftedRecord(
                index=one["index"],
                s=one["s"],
                weight=or_nan(one["weight"]),
                refusal=one["refusal"],
                receiver_tokens=one["receiver_tokens"],
                receiver_logprob=one["receiver_logprob"],
                source_tokens=one["source_tokens"],
                source_logprob=one["source_logprob"],
            )
        )
    return [
        TransferRecord(
            receiver=key.members[row.receiver],
            source=key.members[row.source],
            prompt=row.prompt,
            value=or_nan(row.value),
            tie=bool(row.tie),
            held_out=bool(row.held_out),
            responses=tuple(responses.get((row.receiver, row.prompt, row.source), ())),
        )
        for row in connection.execute(here[0].order_by(table.c.receiver, table.c.prompt, table.c.source))
    ]


def groups(
    connection: Connection, key: RunKey, root: Path, step: int, member: int, prompts: Collection[int] | None
) -> list[GroupRecord]:
    """A member's groups of a step, in recorded order; `prompts` keeps these alone. StoreError for a missing shard."""
    table, shards = schema.groups, schema.shards
    rows = connection.execute(
        select(table.c.prompt, table.c.shard_row, shards.c.path)
        .outerjoin(
            shards,
            and_(shards.c.run == table.c.run, shards.c.step == table.c.step, shards.c.member == table.c.member),
        )
        .where(table.c.run == key.id, table.c.step == step, table.c.member == member)
        .order_by(table.c.shard_row)
    ).all()
    wanted = [row for row in rows if prompts is None or row.prompt in prompts]
    if not wanted:
        return []
    if wanted[0].path is None:
        raise pruned(key, step)
    return read_groups(root, wanted[0].path, [row.shard_row for row in wanted], key.members[member])


def pruned(key: RunKey, step: int) -> StoreError:
    """What a reader is told who asks what was said in a step whose shards were given up."""
    return StoreError(f"store: what was said in step {step} of run {key.uid} was pruned; only its counts are left")


def visits(connection: Connection, key: RunKey, member: int) -> dict[int, dict[int, int]]:
    """{step: {prompt: number of responses}} of everything a member was asked, in recorded order."""
    table = schema.groups
    here = (table.c.run == key.id, table.c.member == member)
    found: dict[int, dict[int, int]] = {}
    for step, prompt, n in connection.execute(
        select(table.c.step, table.c.prompt, table.c.n).where(*here).order_by(table.c.id)
    ):
        found.setdefault(step, {})[prompt] = n
    return found


def check_shards(connection: Connection, key: RunKey, root: Path, member: int, steps: Collection[int]) -> None:
    """StoreError unless the shards of these steps were kept and have the length they were written with."""
    table = schema.shards
    here = (table.c.run == key.id, table.c.member == member)
    rows = connection.execute(select(table.c.step, table.c.path, table.c.bytes).where(*here)).all()
    if absent := set(steps) - {row.step for row in rows}:
        groups = schema.groups
        recorded = select(groups.c.step).where(groups.c.run == key.id, groups.c.member == member)
        if lost := absent & set(connection.scalars(recorded.distinct())):
            raise pruned(key, min(lost))
    for row in rows:
        path = root / row.path
        size = path.stat().st_size if path.is_file() else None
        if row.step in steps and size != row.bytes:
            fault = "is missing" if size is None else f"has {size} bytes of {row.bytes}"
            raise StoreError(f"store: trajectory shard {path} {fault}; restore it beside the database")
