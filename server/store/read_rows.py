"""Queries for single things: patterns of who solved what, prompts, transfers, trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, select

from server.store import read_steps, schema
from server.store.counts import PAIR_COUNTS
from server.store.read_runs import RunKey, or_nan
from server.store.read_windows import pair_at
from server.store.records import GroupRecord, PromptRecord, StoreError
from server.store.trajectories import read_group
from server.store.views import Outcome, PeerGroup, PromptRow, Trajectory, TransferRow, TransferVerdict

_CHUNK = 500


def patterns(
    connection: Connection, key: RunKey, low: int, high: int, limit: int
) -> tuple[list[tuple[tuple[bool, ...], int]], int]:
    """As `Reader.patterns`: ([(solved by member [N], occurrences)], all occurrences), steps low + 1 .. high."""
    table = schema.patterns
    rows = connection.execute(
        select(table.c.solved, func.sum(table.c.prompts))
        .where(table.c.run == key.id, table.c.step.between(low + 1, high))
        .group_by(table.c.solved)
    ).all()
    ranked = sorted(((int(count), int(mask)) for mask, count in rows), reverse=True)
    size = range(len(key.members))
    shown = [(tuple(bool(mask >> slot & 1) for slot in size), count) for count, mask in ranked[:limit]]
    return shown, sum(count for count, _ in ranked)


def prompts(connection: Connection, keys: Sequence[int]) -> dict[int, PromptRecord]:
    """The stored ones of these prompts, by key."""
    table = schema.prompts
    found: dict[int, PromptRecord] = {}
    for start in range(0, len(keys), _CHUNK):
        part = [int(key) for key in keys[start : start + _CHUNK]]
        for row in connection.execute(select(table).where(table.c.key.in_(part))):
            found[row.key] = _prompt(row)
    return found


def _prompt(row: Row[Any]) -> PromptRecord:
    return PromptRecord(row.key, row.text, row.answer, row.dataset, row.subject, row.level)


def prompts_for(
    connection: Connection, key: RunKey, receiver: int, source: int, low: int, high: int, offset: int, limit: int
) -> tuple[list[PromptRow], int]:
    """As `Reader.prompts_for`, with slots: (rows of the page, how many prompts in all), steps low + 1 .. high."""
    page = _failed_and_solved(key, receiver, source, low, high).limit(limit).offset(offset).subquery()
    prompt, moved = schema.prompts, schema.transfers
    own, peer = schema.groups.alias("own"), schema.groups.alias("peer")

    def same_place(table: Any, *more: ColumnElement[bool]) -> ColumnElement[bool]:
        return and_(table.c.run == key.id, table.c.step == page.c.step, table.c.prompt == page.c.prompt, *more)

    rows = connection.execute(
        select(
            page.c.step, prompt, own.c.successes.label("own_k"), own.c.n.label("own_n"),
            peer.c.successes.label("peer_k"), peer.c.n.label("peer_n"), moved.c.held_out, moved.c.admitted,
        )
        .select_from(page)
        .join(prompt, prompt.c.key == page.c.prompt)
        .join(own, same_place(own, own.c.member == receiver))
        .join(peer, same_place(peer, peer.c.member == source))
        .outerjoin(moved, same_place(moved, moved.c.receiver == receiver, moved.c.source == source))
        .order_by(page.c.step.desc(), page.c.prompt.desc())
    )  # fmt: skip
    shown = [
        PromptRow(
            step=row.step,
            prompt=row.key,
            text=row.text,
            answer=row.answer,
            subject=row.subject,
            level=row.level,
            receiver_successes=row.own_k,
            receiver_n=row.own_n,
            source_successes=row.peer_k,
            source_n=row.peer_n,
            transfer=_outcome(row),
        )
        for row in rows
    ]
    at = pair_at(connection, key, [low, high], ("solved",))
    return shown, int(at[1, receiver, source, 0] - at[0, receiver, source, 0])


def _failed_and_solved(key: RunKey, receiver: int, source: int, low: int, high: int) -> Select[Any]:
    """(step, prompt) of what the receiver failed wholly and the source solved, newest first."""
    table = schema.outcomes
    return (
        select(table.c.step, table.c.prompt)
        .where(
            table.c.run == key.id,
            table.c.step.between(low + 1, high),
            table.c.all_fail.bitwise_and(1 << receiver) != 0,
            table.c.solved.bitwise_and(1 << source) != 0,
        )
        .order_by(table.c.step.desc(), table.c.prompt.desc())
    )


def _outcome(row: Row[Any]) -> Outcome:
    if row.held_out is None:
        return ""
    if row.held_out:
        return "held out"
    return "grafted" if row.admitted else "refused"


def transfers(
    connection: Connection,
    key: RunKey,
    low: int,
    high: int,
    *,
    receiver: int | None,
    source: int | None,
    verdict: TransferVerdict | None,
    offset: int,
    limit: int,
) -> tuple[list[TransferRow], int]:
    """As `Reader.transfers`, with slots: (rows of the page, newest first; how many match), steps low + 1 .. high."""
    table, prompt = schema.transfers, schema.prompts
    wanted = [table.c.run == key.id, table.c.step.between(low + 1, high)]
    wanted += [table.c.receiver == receiver] if receiver is not None else []
    wanted += [table.c.source == source] if source is not None else []
    if verdict is not None:
        wanted.append(table.c.held_out.is_(verdict == "held out"))
        wanted += (
            [] if verdict == "held out" else [table.c.admitted > 0 if verdict == "admitted" else table.c.admitted == 0]
        )
    newest_first = (table.c.step.desc(), table.c.receiver, table.c.prompt, table.c.source)
    page = select(table).where(*wanted).order_by(*newest_first).limit(limit).offset(offset).subquery()
    rows = connection.execute(
        select(page, prompt.c.text)
        .join(prompt, prompt.c.key == page.c.prompt)
        .order_by(page.c.step.desc(), page.c.receiver, page.c.prompt, page.c.source)
    )
    return [_transfer_row(key, row) for row in rows], transfer_total(
        connection, key, low, high, receiver, source, verdict
    )


def _transfer_row(key: RunKey, row: Row[Any]) -> TransferRow:
    verdict: TransferVerdict = "held out" if row.held_out else "admitted" if row.admitted else "refused"
    return TransferRow(
        step=row.step,
        prompt=row.prompt,
        text=row.text,
        receiver=key.members[row.receiver],
        source=key.members[row.source],
        value=or_nan(row.value),
        tie=bool(row.tie),
        held_out=bool(row.held_out),
        responses=row.responses,
        admitted=row.admitted,
        refused_floor=row.refused_floor,
        refused_other=row.refused_other,
        mean_s=row.sum_s / row.n_s if row.n_s else None,
        mean_weight=row.sum_w / row.admitted if row.admitted else None,
        verdict=verdict,
    )


def transfer_total(
    connection: Connection,
    key: RunKey,
    low: int,
    high: int,
    receiver: int | None,
    source: int | None,
    verdict: TransferVerdict | None,
) -> int:
    """How many transfers match, from the cumulative counts."""
    at = pair_at(connection, key, [low, high], PAIR_COUNTS)
    change = (at[1] - at[0])[receiver if receiver is not None else slice(None)]
    change = change[..., source if source is not None else slice(None), :]
    total = {name: int(change[..., place].sum()) for place, name in enumerate(PAIR_COUNTS)}
    return {
        None: total["routed"] + total["held_out"],
        "admitted": total["grafted"],
        "refused": total["routed"] - total["grafted"],
        "held out": total["held_out"],
    }[verdict]


def trajectory(connection: Connection, key: RunKey, root: Path, step: int, prompt: int, receiver: int) -> Trajectory:
    """As `Reader.trajectory`, with the receiver's slot and the shards' folder. StoreError when it is not stored."""
    own = _group(connection, key, root, step, prompt, receiver)
    described = prompts(connection, [prompt]).get(prompt)
    if own is None or described is None:
        raise StoreError(
            f"store: run {key.uid} has no group of {key.members[receiver]} on prompt {prompt} in step {step}"
        )
    peers = (
        PeerGroup(transfer, _group(connection, key, root, step, prompt, key.slot(transfer.source)))
        for transfer in read_steps.transfers(connection, key, step, prompt=prompt, receiver=receiver)
    )
    return Trajectory(described, own, tuple(peers))


def _group(connection: Connection, key: RunKey, root: Path, step: int, prompt: int, member: int) -> GroupRecord | None:
    groups, shards = schema.groups, schema.shards
    row = connection.execute(
        select(groups.c.shard_row, shards.c.path)
        .outerjoin(
            shards,
            and_(shards.c.run == groups.c.run, shards.c.step == groups.c.step, shards.c.member == groups.c.member),
        )
        .where(groups.c.run == key.id, groups.c.step == step, groups.c.prompt == prompt, groups.c.member == member)
    ).one_or_none()
    if row is None:
        return None
    if row.path is None:
        raise read_steps.pruned(key, step)
    return read_group(root, row.path, row.shard_row, key.members[member])
