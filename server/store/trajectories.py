"""Trajectory shards: what every member said in a step, as Arrow IPC files read through memory maps.

One file a (step, member), one record batch a group, one row a response, zstd. A shard appears under its name only when
it is whole and on the disk, and its name carries its content's digest, so a changed re-run cannot overwrite it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from server.store.records import GroupRecord, ResponseRecord, StoreError

FORMAT = 1
_SCHEMA = pa.schema(
    [
        pa.field("prompt", pa.int64(), nullable=False),
        pa.field("reward", pa.float64(), nullable=False),
        pa.field("advantage", pa.float64(), nullable=False),
        pa.field("verdict", pa.int8(), nullable=False),
        pa.field("finish", pa.utf8(), nullable=False),
        pa.field("weight_version", pa.int64(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("text", pa.utf8(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Shard:
    """A written shard; `path` is relative to the trajectories folder."""

    path: str
    sha256: bytes
    bytes: int
    groups: int
    responses: int


def write_shard(
    root: Path, run: str, step: int, member: str, tokenizer_sha: str, groups: Sequence[GroupRecord]
) -> Shard:
    """Write one member's groups of a step, record batch b = groups[b]. OSError leaves no file behind.

    The content is on the disk when this returns, its name only after `sync_folder(root / run)`.
    """
    content = _encode(run, step, member, tokenizer_sha, groups)
    digest = hashlib.sha256(content).digest()
    readable = re.sub(r"[^A-Za-z0-9.-]", "-", member)[:80]
    path = f"{run}/step_{step:06d}_{readable}_{digest.hex()[:8]}.arrow"
    _write_durably(root / path, content)
    return Shard(path, digest, content.size, len(groups), sum(len(group.responses) for group in groups))


def _encode(run: str, step: int, member: str, tokenizer_sha: str, groups: Sequence[GroupRecord]) -> pa.Buffer:
    metadata = {"format": str(FORMAT), "run": run, "step": str(step), "member": member, "tokenizer_sha": tokenizer_sha}
    schema = _SCHEMA.with_metadata(metadata)
    responses = [response for group in groups for response in group.responses]
    whole = pa.RecordBatch.from_arrays(_columns(groups, responses), schema=schema)
    sink = pa.BufferOutputStream()
    # Groups are small: handing their columns to other threads costs more than compressing them.
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        start = 0
        for group in groups:
            writer.write_batch(whole.slice(start, len(group.responses)))
            start += len(group.responses)
    return sink.getvalue()


def _columns(groups: Sequence[GroupRecord], responses: Sequence[ResponseRecord]) -> list[pa.Array]:
    sizes = [len(group.responses) for group in groups]
    lengths = [response.token_ids.size for response in responses]
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    ids = np.concatenate([response.token_ids for response in responses]).astype(np.int32, copy=False)
    logprobs = np.concatenate([response.logprobs for response in responses]).astype(np.float32, copy=False)
    return [
        pa.array(np.repeat(np.array([group.prompt for group in groups], np.int64), sizes)),
        pa.array([float(response.reward) for response in responses], pa.float64()),
        pa.array([float(response.advantage) for response in responses], pa.float64()),
        pa.array([int(response.verdict) for response in responses], pa.int8()),
        pa.array([response.finish for response in responses], pa.utf8()),
        pa.array([int(response.weight_version) for response in responses], pa.int64()),
        pa.ListArray.from_arrays(offsets, pa.array(ids)),
        pa.ListArray.from_arrays(offsets, pa.array(logprobs)),
        pa.array([_encodable(response.text) for response in responses], pa.utf8()),
    ]


def _encodable(text: str) -> str:
    """A lone surrogate has no UTF-8; it is stored as the replacement character, the token ids keep the truth."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _write_durably(path: Path, content: pa.Buffer) -> None:
    """Write to a temporary name, sync, rename; on failure the temporary file is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as fault:
        temporary.unlink(missing_ok=True)
        # A write that fails knows no name, and the reader of the message needs the disk.
        raise OSError(fault.errno, fault.strerror, str(path)) from fault
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_shards(root: Path, paths: Iterable[str]) -> None:
    """Remove shards that no committed step names; one already gone is fine."""
    for path in paths:
        (root / path).unlink(missing_ok=True)


def sweep(root: Path, run: str, named: set[str]) -> int:
    """Remove a run's files that no row names, half-written ones too; how many. Only for the holder of its lease."""
    folder = root / run
    if not folder.is_dir():
        return 0
    orphans = [
        file for file in folder.iterdir() if file.suffix in {".arrow", ".tmp"} and f"{run}/{file.name}" not in named
    ]
    for file in orphans:
        file.unlink(missing_ok=True)
    return len(orphans)


def require_folder(root: Path, run: str) -> None:
    """StoreError unless a run's shards can be looked for: the folder they lie in is on this machine."""
    if not root.is_dir():
        raise StoreError(
            f"store: {root}, the trajectory folder of run {run}, is not on this machine; mount or restore it, or add "
            "?trajectories=FOLDER to a PostgreSQL URL"
        )


def read_group(root: Path, path: str, row: int, member: str) -> GroupRecord:
    """Record batch `row` of a shard as a group. StoreError when the file is missing or damaged."""
    return read_groups(root, path, [row], member)[0]


def read_groups(root: Path, path: str, rows: Sequence[int], member: str) -> list[GroupRecord]:
    """Record batches of one shard as groups, in the order of `rows`. StoreError when the file is missing or damaged."""
    with _shard(root, path) as shard:
        return [_decode(shard.get_batch(row), member) for row in rows]


def read_texts(root: Path, path: str, rows: Sequence[int]) -> list[list[str]]:
    """Only what was said in record batches of one shard. StoreError when the file is missing or damaged."""
    with _shard(root, path, [_SCHEMA.get_field_index("text")]) as shard:
        return [shard.get_batch(row).column("text").to_pylist() for row in rows]


@contextmanager
def _shard(root: Path, path: str, fields: Sequence[int] | None = None) -> Iterator[pa.RecordBatchFileReader]:
    # Batches are small: handing their columns to other threads costs more than to unpack them.
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    try:
        with pa.memory_map(str(root / path)) as source, pa.ipc.open_file(source, options=options) as shard:
            yield shard
    except FileNotFoundError:
        require_folder(root, path.partition("/")[0])
        raise StoreError(f"store: trajectory shard {root / path} is missing; restore it beside the database") from None
    except (pa.ArrowInvalid, pa.ArrowIndexError, OSError) as fault:
        raise StoreError(
            f"store: trajectory shard {root / path} is damaged ({fault}); restore it from a copy"
        ) from fault


def _decode(batch: pa.RecordBatch, member: str) -> GroupRecord:
    columns = {name: batch.column(name) for name in batch.schema.names}
    plain = {
        name: columns[name].to_pylist()
        for name in ("reward", "advantage", "verdict", "finish", "weight_version", "text")
    }
    ids, logprobs = columns["token_ids"], columns["logprobs"]
    responses = tuple(
        ResponseRecord(
            text=plain["text"][i],
            # Copied: a view would keep the whole file mapped after it is closed.
            token_ids=np.array(ids[i].values, dtype=np.int32),
            logprobs=np.array(logprobs[i].values, dtype=np.float32),
            reward=plain["reward"][i],
            advantage=plain["advantage"][i],
            verdict=plain["verdict"][i],
            finish=plain["finish"][i],
            weight_version=plain["weight_version"][i],
        )
        for i in range(batch.num_rows)
    )
    return GroupRecord(member, int(columns["prompt"][0].as_py()), responses)
