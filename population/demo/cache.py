"""A cache of folders, each of them whole or absent.

A folder is built beside its place, flushed, given a manifest with the digest of every file, and renamed. What a
killed process leaves behind is never taken for a result: a folder counts only if its manifest names the wanted
configuration and every file still has its digest.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from population.errors import RunError

MANIFEST = "manifest.json"


class CacheBusyError(RunError, RuntimeError):
    """Another process held the lock of an entry for longer than the deadline."""


def configuration_hash(configuration: Mapping[str, Any]) -> str:
    """16 hex digits over the canonical JSON of a configuration."""
    return hashlib.sha256(_canonical(configuration).encode()).hexdigest()[:16]


def cached_folder(
    cache_dir: Path,
    name: str,
    configuration: Mapping[str, Any],
    build: Callable[[Path], None],
    *,
    lock_deadline_s: float = 900.0,
) -> Path:
    """The folder of a configuration; `build(empty folder)` fills it unless the cache has it.

    Processes that want the same entry wait for one another; CacheBusyError after `lock_deadline_s` seconds.
    """
    folder = entry(cache_dir, name, configuration)
    if is_whole(folder, configuration):
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(cache_dir / f".{folder.name}.lock", lock_deadline_s):
        if is_whole(folder, configuration):
            return folder
        _sweep(folder)
        unfinished = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        unfinished.mkdir()
        build(unfinished)
        _seal(unfinished, configuration)
        unfinished.rename(folder)
        _flush(cache_dir)
    return folder


def entry(cache_dir: Path, name: str, configuration: Mapping[str, Any]) -> Path:
    """Where the folder of a configuration is, or would be."""
    return cache_dir / f"{name}-{configuration_hash(configuration)}"


def is_whole(folder: Path, configuration: Mapping[str, Any]) -> bool:
    """Whether a folder is a finished result of this configuration, every file as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        digests = manifest["files"]
        if _canonical(manifest["configuration"]) != _canonical(configuration):
            return False
        return all(_digest(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _canonical(configuration: Mapping[str, Any]) -> str:
    return json.dumps(configuration, sort_keys=True, separators=(",", ":"))


def _seal(folder: Path, configuration: Mapping[str, Any]) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    manifest = {"configuration": dict(configuration), "files": {path.name: _digest(path) for path in files}}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
    for path in [*files, folder / MANIFEST, folder]:
        _flush(path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Removes a damaged entry and what killed processes left of it; safe because the caller holds the entry's lock."""
    for leftover in [folder, *folder.parent.glob(f".{folder.name}.*")]:
        if leftover.is_dir():
            shutil.rmtree(leftover)


@contextmanager
def _locked(path: Path, deadline_s: float) -> Iterator[None]:
    end = time.monotonic() + deadline_s
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise CacheBusyError(
                        f"another process has held {path} for more than {deadline_s:.0f} s: "
                        "end it, or choose another cache folder"
                    ) from None
                time.sleep(0.1)
        yield
