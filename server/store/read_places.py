"""Queries for places a reader may look at: transfers or groups that pass filters, and text within them.

A place is a member's group on a prompt in a step; a transfer's place also names the source. Every query is bounded: it
looks at the newest candidates of the steps, and says at how many of how many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Subquery, and_, exists, func, select

from server.store import read_rows, read_windows, schema
from server.store.read_runs import RunKey
from server.store.trajectories import read_texts
from server.store.views import Found, Place, PlaceFilter

# Candidates that filters without an index look at, and places whose text a search reads.
MOST_CANDIDATES = 5_000
MOST_READ = 500
# Occurrences of prompts whose subjects are offered.
_SUBJECT_OCCURRENCES = 5_000
_GROUP_COUNTS = {None: "groups", "all fail": "all_fail", "mixed": "mixed", "all solved": "all_solved"}


def find(connection: Connection, key: RunKey, root: Path, low: int, high: int, wanted: PlaceFilter) -> Found:
    """As `Reader.places`, steps low + 1 .. high."""
    candidates = _transfers(key, low, high, wanted) if wanted.transfers else _groups(key, low, high, wanted)
    page = candidates.limit(MOST_CANDIDATES).subquery()
    rows = connection.execute(_narrowed(page, key, wanted)).all()
    places = [
        Place(row.step, row.prompt, key.members[row.receiver], key.members[row.source] if wanted.transfers else None)
        for row in (rows[:MOST_READ] if wanted.text else rows)
    ]
    if wanted.text:
        return Found(_with_text(connection, key, root, places, wanted.text), len(places), len(rows))
    looked_at = int(connection.scalar(select(func.count()).select_from(page)) or 0)
    total = looked_at if looked_at < MOST_CANDIDATES else _total(connection, key, low, high, wanted)
    return Found(tuple(places), looked_at, total)


def _transfers(key: RunKey, low: int, high: int, wanted: PlaceFilter) -> Select[Any]:
    table = schema.transfers
    conditions: list[ColumnElement[bool]] = [table.c.run == key.id, table.c.step.between(low + 1, high)]
    if wanted.member is not None:
        conditions.append(table.c.receiver == key.slot(wanted.member))
    if wanted.source is not None:
        conditions.append(table.c.source == key.slot(wanted.source))
    if wanted.outcome is not None:
        conditions.append(table.c.held_out.is_(wanted.outcome == "held out"))
    if wanted.outcome in ("admitted", "refused"):
        conditions.append(table.c.admitted > 0 if wanted.outcome == "admitted" else table.c.admitted == 0)
    columns = table.c.step, table.c.receiver, table.c.prompt, table.c.source
    return select(*columns).where(*conditions).order_by(columns[0].desc(), *columns[1:])


def _groups(key: RunKey, low: int, high: int, wanted: PlaceFilter) -> Select[Any]:
    table = schema.groups
    conditions: list[ColumnElement[bool]] = [table.c.run == key.id, table.c.step.between(low + 1, high)]
    if wanted.member is not None:
        conditions.append(table.c.member == key.slot(wanted.member))
    graded = table.c.errors == 0
    conditions += {
        None: [],
        "all fail": [graded, table.c.successes == 0],
        "mixed": [graded, table.c.successes > 0, table.c.successes < table.c.n],
        "all solved": [table.c.successes == table.c.n],
        "ungraded": [table.c.errors > 0],
    }[wanted.outcome]
    columns = table.c.id, table.c.step, table.c.member.label("receiver"), table.c.prompt
    return select(*columns).where(*conditions).order_by(table.c.step.desc(), table.c.prompt, table.c.member)


def _narrowed(page: Subquery, key: RunKey, wanted: PlaceFilter) -> Select[Any]:
    """The candidates that also pass what no index knows, in their order."""
    query = select(page)
    if wanted.subject is not None:
        prompt = schema.prompts
        query = query.join(prompt, prompt.c.key == page.c.prompt).where(prompt.c.subject == wanted.subject)
    if wanted.refusal is not None and wanted.transfers:
        gate = schema.grafted
        same = [gate.c[name] == page.c[name] for name in ("step", "receiver", "prompt", "source")]
        query = query.where(exists().where(gate.c.run == key.id, *same, gate.c.refusal == wanted.refusal))
    if wanted.verdict is not None and not wanted.transfers:
        response = schema.responses
        query = query.where(exists().where(response.c.group_id == page.c.id, response.c.verdict == wanted.verdict))
    last = (page.c.receiver, page.c.prompt, page.c.source) if wanted.transfers else (page.c.prompt, page.c.receiver)
    return query.order_by(page.c.step.desc(), *last)


def _total(connection: Connection, key: RunKey, low: int, high: int, wanted: PlaceFilter) -> int | None:
    """How many candidates there are, from the cumulative counts; None where these do not tell."""
    member = None if wanted.member is None else key.slot(wanted.member)
    if wanted.transfers:
        source = None if wanted.source is None else key.slot(wanted.source)
        assert wanted.outcome in (None, "admitted", "refused", "held out")
        return read_rows.transfer_total(connection, key, low, high, member, source, wanted.outcome)
    if wanted.outcome not in _GROUP_COUNTS:
        return None
    counts = read_windows.member_counts(connection, key, [low, high])[_GROUP_COUNTS[wanted.outcome]][0]
    return int(counts.sum() if member is None else counts[member])


def _with_text(
    connection: Connection, key: RunKey, root: Path, places: Sequence[Place], text: str
) -> tuple[Place, ...]:
    """The places whose prompt, or a response of whose groups, contains the text; capitals do not matter."""
    needle = text.casefold()
    prompts = read_rows.prompts(connection, sorted({place.prompt for place in places}))
    in_prompt = {number for number, prompt in prompts.items() if needle in prompt.text.casefold()}
    asked = {
        (place.step, place.prompt, name)
        for place in places
        if place.prompt not in in_prompt
        for name in (place.receiver, place.source)
        if name is not None
    }
    said = _saying(connection, key, root, asked, needle)
    return tuple(
        place
        for place in places
        if place.prompt in in_prompt
        or any((place.step, place.prompt, name) in said for name in (place.receiver, place.source))
    )


def _saying(
    connection: Connection, key: RunKey, root: Path, asked: set[tuple[int, int, str]], needle: str
) -> set[tuple[int, int, str]]:
    """Which of these groups have a response that contains the text. StoreError for a missing shard."""
    wanted: dict[int, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for step, prompt, member in asked:
        wanted[step][prompt].add(member)
    groups, shards, found = schema.groups, schema.shards, set()
    for step, prompts in wanted.items():
        rows = connection.execute(
            select(groups.c.prompt, groups.c.member, groups.c.shard_row, shards.c.path)
            .join(
                shards,
                and_(shards.c.run == groups.c.run, shards.c.step == groups.c.step, shards.c.member == groups.c.member),
            )
            .where(groups.c.run == key.id, groups.c.step == step, groups.c.prompt.in_(sorted(prompts)))
        ).all()
        by_shard: dict[str, list[Any]] = defaultdict(list)
        for row in rows:
            if key.members[row.member] in prompts[row.prompt]:
                by_shard[row.path].append(row)
        for path, own in by_shard.items():
            texts = read_texts(root, path, [row.shard_row for row in own])
            found |= {
                (step, row.prompt, key.members[row.member])
                for row, said in zip(own, texts, strict=True)
                if any(needle in one.casefold() for one in said)
            }
    return found


def subjects(connection: Connection, key: RunKey, low: int, high: int) -> list[str]:
    """The subjects of the newest prompts of steps low + 1 .. high, sorted."""
    table, prompt = schema.outcomes, schema.prompts
    newest = (
        select(table.c.prompt)
        .where(table.c.run == key.id, table.c.step.between(low + 1, high))
        .order_by(table.c.step.desc(), table.c.prompt.desc())
        .limit(_SUBJECT_OCCURRENCES)
        .subquery()
    )
    found = connection.scalars(
        select(prompt.c.subject).distinct().join(newest, newest.c.prompt == prompt.c.key).where(prompt.c.subject != "")
    )
    return sorted(str(subject) for subject in found)
