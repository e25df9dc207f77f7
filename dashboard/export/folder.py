"""The folder that an export writes: whole or not at all, with a manifest of what is in it."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboard.export.collect import ExportError

MANIFEST = "manifest.json"
_PIECE = 1 << 20


@contextmanager
def written_whole(to: Path, *, overwrite: bool) -> Iterator[Path]:
    """A new folder beside `to`, which takes its place at the end of the block; on a fault nothing is left.

    ExportError where `to` is there and not empty: without `overwrite`, or when it is no earlier export.
    """
    to = to.absolute()
    _may_replace(to, overwrite)
    to.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        new = work / "new"
        new.mkdir()
        yield new
        _take_place(new, to, work / "old")
    finally:
        shutil.rmtree(work)


def _take_place(new: Path, to: Path, old: Path) -> None:
    """Put one folder in the other's place; where that fails, the other stays."""
    there = to.exists()
    if there:
        to.rename(old)
    try:
        new.rename(to)
    except OSError:
        if there:
            old.rename(to)
        raise


def _may_replace(to: Path, overwrite: bool) -> None:
    if not to.exists() or (to.is_dir() and not any(to.iterdir())):
        return
    if not (to.is_dir() and (to / MANIFEST).is_file()):
        raise ExportError(f"{to} is there and is no export; choose another folder with --to")
    if not overwrite:
        raise ExportError(f"{to} holds an export; choose another folder with --to, or replace it with --overwrite")


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """The facts, and size and SHA-256 of every other file of the folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in found
    }
    text = json.dumps({**facts, "files": listed}, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_bytes(text.encode("utf-8", "replace") + b"\n")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
