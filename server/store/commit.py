"""The one transaction of a step, and the shards before it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, select, update
from sqlalchemy.dialects import postgresql, sqlite

from server.store import rows, schema
from server.store.connections import Location
from server.store.counts import count_step, group_facts, transfer_facts
from server.store.records import (
    EventRecord,
    GroupRecord,
    MetricRecord,
    PromptRecord,
    StepConflict,
    StepRecord,
    StoreError,
)
from server.store.run_state import HeldRun
from server.store.trajectories import Shard, remove_shards, sync_folder, write_shard

# Bound on the values of one IN (...) list.
_CHUNK = 500


def already_committed(connection: Connection, held: HeldRun, last_step: int, step: int, digest: bytes) -> bool:
    """Whether the step is stored with this content; StepConflict if with another, StoreError if it leaves a gap."""
    table = schema.steps
    stored = connection.scalar(select(table.c.digest).where(table.c.run == held.id, table.c.step == step))
    if stored == digest:
        return True
    if stored is not None:
        raise StepConflict(
            f"store: step {step} of run {held.uid} is already recorded with other content, which is kept; "
            f"resume the run from step {step - 1} to record it anew"
        )
    if last_step and step != last_step + 1:
        raise StoreError(
            f"store: step {step} of run {held.uid} cannot follow step {last_step}; commit step {last_step + 1}"
        )
    return False


def write_shards(root: Path, held: HeldRun, step: StepRecord) -> dict[int, Shard]:
    """One shard for each member that has groups, by slot. On a failure none is left behind."""
    written: dict[int, Shard] = {}
    try:
        for slot, groups in groups_by_slot(held, step).items():
            member = held.members[slot]
            written[slot] = write_shard(root, held.uid, step.step, member.name, member.tokenizer_sha, groups)
        if written:
            sync_folder(root / held.uid)
    except BaseException:
        remove_shards(root, (shard.path for shard in written.values()))
        raise
    return written


def groups_by_slot(held: HeldRun, step: StepRecord) -> dict[int, list[GroupRecord]]:
    """The step's groups by member, in the order their record batches have."""
    slots = held.slots
    parts: dict[int, list[GroupRecord]] = {}
    for group in step.groups:
        parts.setdefault(slots[group.member], []).append(group)
    return parts


def insert_step(
    connection: Connection,
    location: Location,
    held: HeldRun,
    step: StepRecord,
    digest: bytes,
    shards: Mapping[int, Shard],
    metrics: Mapping[tuple[int, int], MetricRecord],
) -> rows.Sums:
    """Insert every row of a step but its prompts; the run's new running sums. `metrics` by (name id, slot)."""
    slots = held.slots
    groups, transfers = [group_facts(one) for one in step.groups], [transfer_facts(one) for one in step.transfers]
    counts = count_step(step, slots, groups, transfers)
    sums = held.sums.add(counts, metrics)
    batches = _batch_numbers(step)
    group_rows, response_rows = rows.group_rows(held.id, step, slots, groups, batches)
    outcome_rows, pattern_rows = rows.outcome_rows(held.id, step.step, counts)
    transfer_rows, grafted_rows = rows.transfer_rows(held.id, step, slots, transfers)
    member_rows, pair_rows = rows.count_rows(held.id, step.step, sums)
    for table, values in (
        (schema.shards, rows.shard_rows(held.id, step.step, shards)),
        (schema.groups, group_rows),
        (schema.responses, response_rows),
        (schema.outcomes, outcome_rows),
        (schema.patterns, pattern_rows),
        (schema.transfers, transfer_rows),
        (schema.grafted, grafted_rows),
        (schema.member_counts, member_rows),
        (schema.pair_counts, pair_rows),
        (schema.metrics, rows.metric_rows(held.id, step.step, metrics, sums)),
        (schema.events, [event_row(held.id, event, step.step) for event in step.events]),
        (schema.steps, [_step_row(held, step.step, digest)]),
    ):
        # Without rows the statement would insert a row of defaults.
        if values:
            location.insert(connection, table, values)
    runs = schema.runs
    first = {} if held.last_step else {"first_step": step.step}
    connection.execute(update(runs).where(runs.c.id == held.id).values(last_step=step.step, **first))
    return sums


def _batch_numbers(step: StepRecord) -> list[int]:
    """Which record batch of its member's shard each group is."""
    written: dict[str, int] = {}
    numbers = []
    for group in step.groups:
        numbers.append(written.get(group.member, 0))
        written[group.member] = numbers[-1] + 1
    return numbers


def _step_row(held: HeldRun, step: int, digest: bytes) -> dict[str, Any]:
    return {"run": held.id, "step": step, "digest": digest, "lease_epoch": held.epoch, "committed": time.time()}


def event_row(run: int, event: EventRecord, step: int | None) -> dict[str, Any]:
    """An event's row; one without a step belongs to `step`."""
    return {
        "run": run, "created": time.time(), "level": event.level, "message": storable(event.message),
        "member": event.member, "step": step if event.step is None else event.step,
    }  # fmt: skip


def metric_ids(connection: Connection, names: Iterable[str], known: Mapping[str, int]) -> dict[str, int]:
    """Ids of metric names, new ones inserted; `known` saves the look-up of those already seen."""
    wanted = sorted(set(names))
    found = {name: known[name] for name in wanted if name in known}
    table = schema.metric_names
    new = [name for name in wanted if name not in found]
    if new:
        stored = {name: identity for name, identity in connection.execute(select(table.c.name, table.c.id))}
        if missing := [{"name": name} for name in new if name not in stored]:
            _insert_missing(connection, table, missing)
            stored = {name: identity for name, identity in connection.execute(select(table.c.name, table.c.id))}
        found.update({name: stored[name] for name in new})
    return found


def _insert_missing(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert the rows whose key is not there yet. In the order of their keys, or two writers wait for each other."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(dialect.insert(table).on_conflict_do_nothing(), rows)


def insert_prompts(connection: Connection, prompts: Iterable[PromptRecord], known: set[int]) -> None:
    """Insert the prompts the store lacks; `known` saves the look-up of those already seen.

    StoreError when a key is stored with another text or answer: the two data sets cannot share a store.
    """
    table = schema.prompts
    fresh = {prompt.key: prompt for prompt in prompts if prompt.key not in known}
    keys = sorted(fresh)
    if keys:
        _insert_missing(connection, table, [_prompt_row(fresh[key]) for key in keys])
    for start in range(0, len(keys), _CHUNK):
        part = keys[start : start + _CHUNK]
        for row in connection.execute(select(table.c.key, table.c.text, table.c.answer).where(table.c.key.in_(part))):
            prompt = fresh[row.key]
            if (row.text, row.answer) != (storable(prompt.text), storable(prompt.answer)):
                raise StoreError(
                    f"store: prompt key {row.key} is stored as {row.text[:60]!r}, not {prompt.text[:60]!r}; "
                    "use another store"
                )


def _prompt_row(prompt: PromptRecord) -> dict[str, Any]:
    return {
        "key": prompt.key, "text": storable(prompt.text), "answer": storable(prompt.answer),
        "dataset": prompt.dataset, "subject": prompt.subject, "level": prompt.level,
    }  # fmt: skip


def storable(text: str) -> str:
    """Without what no database takes as text: the zero character and lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
