"""Recompute a store from its raw rows and shards, with nothing of server.store, and say what does not fit."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.store.backends import Database, Row, raw, shards_of

UNGRADED = {-2, -3, -4, -5}
STEP_TABLES = (
    "groups", "shards", "outcomes", "patterns", "transfers", "grafted", "member_counts", "pair_counts", "metrics",
)  # fmt: skip
Group = list[dict[str, Any]]


def audit(store: Path | str) -> list[str]:
    """Every inconsistency found in the store of a URL or path, in words; [] for a sound store."""
    faults: list[str] = []
    with raw(store, read_only=True) as database:
        for check in ("quick_check", "foreign_key_check") if not str(store).startswith("postgresql") else ():
            found = [tuple(row.values()) for row in database.rows(f"PRAGMA {check}")]
            if found not in ([], [("ok",)]):
                faults.append(f"{check}: {found}")
        for run in database.rows("SELECT * FROM runs"):
            faults += _audit_run(database, shards_of(store), run)
    return faults


def _audit_run(database: Database, root: Path, run: Row) -> list[str]:
    faults: list[str] = []
    steps = [row["step"] for row in database.rows("SELECT step FROM steps WHERE run = ? ORDER BY step", run["id"])]
    if steps != list(range(run["first_step"] or 1, (run["last_step"] or 0) + 1)):
        faults.append(f"{run['uid']}: steps {steps}, but first {run['first_step']} and last {run['last_step']}")
    for table in STEP_TABLES:
        stray = {row["step"] for row in database.rows(f"SELECT step FROM {table} WHERE run = ?", run["id"])} - set(
            steps
        )
        if stray:
            faults.append(f"{run['uid']}: {table} has rows of steps {sorted(stray)}, which are not committed")
    size = len(database.rows("SELECT slot FROM members WHERE run = ?", run["id"]))
    member: dict[int, dict[str, float]] = {slot: defaultdict(int) for slot in range(size)}
    pair: dict[tuple[int, int], dict[str, float]] = {
        (i, j): defaultdict(int) for i in range(size) for j in range(size) if i != j
    }
    for step in steps:
        groups, more = _read_groups(database, root, run["id"], step)
        faults += more
        _count_members(member, groups)
        _count_pairs(pair, groups)
        faults += _count_transfers(database, run["id"], step, member, pair, groups)
        faults += _compare_counts(database, run["id"], step, member, pair)
        faults += _compare_outcomes(database, run["id"], step, groups)
    return faults + _compare_metrics(database, run["id"])


def _read_groups(database: Database, root: Path, run: int, step: int) -> tuple[dict[tuple[int, int], Group], list[str]]:
    """(every response of the step by (member, prompt), read from the shards; faults)."""
    faults: list[str] = []
    groups: dict[tuple[int, int], Group] = {}
    for shard in database.rows("SELECT * FROM shards WHERE run = ? AND step = ?", run, step):
        file = root / shard["path"]
        if not file.is_file():
            faults.append(f"shard {file} is missing")
            continue
        content = file.read_bytes()
        if hashlib.sha256(content).digest() != shard["sha256"] or len(content) != shard["bytes"]:
            faults.append(f"shard {file} is not what was written")
        reader = pa.ipc.open_file(pa.py_buffer(content))
        for place in range(reader.num_record_batches):
            rows = reader.get_batch(place).to_pylist()
            groups[shard["member"], rows[0]["prompt"]] = rows
            faults += _compare_group(database, run, step, shard["member"], place, rows)
    stored = len(database.rows("SELECT id FROM groups WHERE run = ? AND step = ?", run, step))
    if stored != len(groups):
        faults.append(f"step {step}: {stored} group rows, {len(groups)} groups in shards")
    return groups, faults


def _compare_group(database: Database, run: int, step: int, member: int, place: int, rows: Group) -> list[str]:
    where = (run, step, member, rows[0]["prompt"])
    found_rows = database.rows("SELECT * FROM groups WHERE run = ? AND step = ? AND member = ? AND prompt = ?", *where)
    if not found_rows:
        return [f"step {step}: member {member} has no row for prompt {rows[0]['prompt']}"]
    row = found_rows[0]
    expected = (
        place, len(rows), sum(one["reward"] > 0 for one in rows), sum(one["verdict"] in UNGRADED for one in rows),
        sum(len(one["token_ids"]) for one in rows), sum(one["finish"] == "length" for one in rows),
    )  # fmt: skip
    found = tuple(row[name] for name in ("shard_row", "n", "successes", "errors", "tokens", "truncated"))
    faults = [] if found == expected else [f"group {row['id']}: row {found}, shard {expected}"]
    names = ("reward", "advantage", "verdict", "finish", "weight_version")
    responses = database.rows('SELECT * FROM responses WHERE group_id = ? ORDER BY "index"', row["id"])
    if [tuple(one[name] for name in names) for one in responses] != [
        tuple(one[name] for name in names) for one in rows
    ]:
        faults.append(f"group {row['id']}: response rows differ from the shard")
    return faults


def _graded(rows: Group) -> bool:
    return not any(one["verdict"] in UNGRADED for one in rows)


def _kind(rows: Group) -> str:
    right = sum(one["reward"] > 0 for one in rows)
    if right == len(rows):
        return "all_solved"
    if any(one["verdict"] in UNGRADED for one in rows):
        return "ungraded"
    return "mixed" if right else "all_fail"


def _count_members(member: dict[int, dict[str, float]], groups: dict[tuple[int, int], Group]) -> None:
    for (slot, prompt), rows in groups.items():
        counts = member[slot]
        kind = _kind(rows)
        peers = [other for (peer, same), other in groups.items() if peer != slot and same == prompt]
        counts["groups"] += 1
        counts[kind] += 1
        counts["errors"] += sum(one["verdict"] in UNGRADED for one in rows)
        counts["rollouts"] += len(rows)
        counts["successes"] += sum(one["reward"] > 0 for one in rows)
        counts["response_tokens"] += sum(len(one["token_ids"]) for one in rows)
        counts["truncated"] += sum(one["finish"] == "length" for one in rows)
        counts["rescuable"] += kind == "all_fail" and any(_kind(other) == "mixed" for other in peers)
        counts["any_peer"] += kind == "all_fail" and any(one["reward"] > 0 for other in peers for one in other)


def _count_pairs(pair: dict[tuple[int, int], dict[str, float]], groups: dict[tuple[int, int], Group]) -> None:
    for (receiver, source), counts in pair.items():
        for (slot, prompt), rows in groups.items():
            if slot == receiver and _kind(rows) == "all_fail" and (source, prompt) in groups:
                counts["both_attempted_fail"] += 1
                counts["solved"] += any(one["reward"] > 0 for one in groups[source, prompt])
            peer = groups.get((source, prompt))
            if slot == receiver and peer is not None and all(_graded(one) for one in (rows, peer)):
                failed = _kind(rows) == "all_fail"
                counts["both_graded"] += 1
                counts["failed_beside"] += failed
                counts["failed_together"] += failed and _kind(peer) == "all_fail"


def _count_transfers(
    database: Database, run: int, step: int, member: dict[int, dict[str, float]],
    pair: dict[tuple[int, int], dict[str, float]], groups: dict[tuple[int, int], Group],
) -> list[str]:  # fmt: skip
    faults: list[str] = []
    received: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: {"held_out": 0, "received": 0})
    for row in database.rows("SELECT * FROM transfers WHERE run = ? AND step = ?", run, step):
        parts = database.rows(
            "SELECT * FROM grafted WHERE run = ? AND step = ? AND receiver = ? AND prompt = ? AND source = ?",
            run, step, row["receiver"], row["prompt"], row["source"],
        )  # fmt: skip
        admitted = [one for one in parts if one["refusal"] is None]
        scored = [one["s"] for one in parts if one["s"] is not None]
        own = {
            "responses": len(parts),
            "admitted": len(admitted),
            "refused_floor": sum(one["refusal"] == "floor" for one in parts),
            "refused_other": sum(one["refusal"] not in (None, "floor") for one in parts),
            "n_s": len(scored),
            "sum_s": math.fsum(scored),
            "sum_w": math.fsum(one["weight"] for one in admitted),
        }
        if any(not math.isclose(row[name], value, abs_tol=1e-9) for name, value in own.items()):
            faults.append(f"step {step}: transfer to {row['receiver']} on {row['prompt']} differs from its responses")
        counts = pair[row["receiver"], row["source"]]
        for name, value in own.items():
            counts[name] += value
        counts["held_out" if row["held_out"] else "routed"] += 1
        counts["grafted"] += bool(admitted)
        given = received[row["receiver"], row["prompt"]]
        given["held_out"] = max(given["held_out"], row["held_out"])
        given["received"] = max(given["received"], bool(admitted))
    for (receiver, prompt), given in received.items():
        for name, value in given.items():
            member[receiver][name] += value and _kind(groups[receiver, prompt]) == "all_fail"
    return faults


def _compare_counts(
    database: Database, run: int, step: int, member: dict[int, dict[str, float]],
    pair: dict[tuple[int, int], dict[str, float]],
) -> list[str]:  # fmt: skip
    faults: list[str] = []
    expected: dict[tuple[int, ...], dict[str, float]] = {(slot,): counts for slot, counts in member.items()}
    for table, key, totals in (
        ("member_counts", ("member",), expected),
        ("pair_counts", ("receiver", "source"), pair),
    ):
        rows = database.rows(f"SELECT * FROM {table} WHERE run = ? AND step = ?", run, step)
        if sorted(tuple(row[name] for name in key) for row in rows) != sorted(totals):
            faults.append(f"step {step}: {table} lacks rows or has too many")
        for row in rows:
            counts = totals[tuple(row[name] for name in key)]  # type: ignore[index]
            for name in set(row.keys()) - {"run", "step", *key}:
                if not math.isclose(row[name], counts.get(name, 0), rel_tol=1e-12, abs_tol=1e-9):
                    faults.append(f"step {step}: {table} {name} is {row[name]}, recomputed {counts.get(name, 0)}")
    return faults


def _compare_outcomes(database: Database, run: int, step: int, groups: dict[tuple[int, int], Group]) -> list[str]:
    masks: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for (slot, prompt), rows in groups.items():
        masks[prompt][0] |= 1 << slot
        masks[prompt][1] |= (_kind(rows) == "all_fail") << slot
        masks[prompt][2] |= any(one["reward"] > 0 for one in rows) << slot
    rows_found = database.rows("SELECT * FROM outcomes WHERE run = ? AND step = ?", run, step)
    found = {row["prompt"]: [row["attempted"], row["all_fail"], row["solved"]] for row in rows_found}
    faults = [] if found == dict(masks) else [f"step {step}: outcomes differ from the shards"]
    counted: dict[int, int] = defaultdict(int)
    for mask in masks.values():
        counted[mask[2]] += 1
    pattern_rows = database.rows("SELECT solved, prompts FROM patterns WHERE run = ? AND step = ?", run, step)
    patterns = {row["solved"]: row["prompts"] for row in pattern_rows}
    return faults if patterns == dict(counted) else [*faults, f"step {step}: patterns differ from the shards"]


def _compare_metrics(database: Database, run: int) -> list[str]:
    faults: list[str] = []
    seen: dict[tuple[int, int], list[tuple[float | None, float | None]]] = defaultdict(list)
    for row in database.rows("SELECT * FROM metrics WHERE run = ? ORDER BY step", run):
        values = seen[row["name"], row["member"]]
        values.append((row["numerator"], row["denominator"]))
        good = [(a, b) for a, b in values if a is not None and b is not None]
        expected = (math.fsum(a for a, _ in good), math.fsum(b for _, b in good), len(good), len(values) - len(good))
        found = (
            row["sum_numerator"] + row["sum_numerator_low"], row["sum_denominator"], row["count_finite"],
            row["count_not_finite"],
        )  # fmt: skip
        if not all(math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-9) for a, b in zip(found, expected, strict=True)):
            faults.append(
                f"metric {row['name']} of {row['member']} at step {row['step']}: {found}, recomputed {expected}"
            )
    return faults
