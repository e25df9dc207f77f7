"""Folders that are either whole or absent, whatever interrupts their writing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def temporary(folder: Path) -> Path:
    """Where `folder` is written before it takes its name: beside it, on the same file system."""
    return folder.with_name(f".{folder.name}.tmp")


def start(folder: Path) -> Path:
    """An empty temporary folder for `folder`, in place of one that an interrupted write left."""
    unfinished = temporary(folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    return unfinished


def publish(folder: Path) -> None:
    """Flush the temporary folder to disk and give it its name; an older folder of that name is replaced."""
    unfinished, replaced = temporary(folder), folder.with_name(f".{folder.name}.old")
    for path in [*unfinished.rglob("*"), unfinished]:
        _flush(path)
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        folder.rename(replaced)
    unfinished.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Write into the folder that is yielded; it becomes `folder` when the block ends without an error."""
    unfinished = start(folder)
    try:
        yield unfinished
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    publish(folder)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
