"""The manifest that says whose checkpoint a folder is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from population.updates import TrainerError

MANIFEST = "trainer.json"
FORMAT = 1


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Record the facts and the size of every file now in the folder."""
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, **facts, "files": sizes}, indent=1))


def read_manifest(folder: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises TrainerError when it is absent, damaged or another trainer's.

    `expected`: facts that must hold; a difference is named with both values.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise TrainerError(f"{folder}: no trainer checkpoint here ({MANIFEST} is missing)") from None
    except ValueError as error:
        raise TrainerError(f"{path}: damaged ({error}); take an older checkpoint") from error
    if manifest.get("format") != FORMAT:
        raise TrainerError(f"{path}: format {manifest.get('format')}, this version reads format {FORMAT}")
    for name, value in expected.items():
        if manifest.get(name) != value:
            raise TrainerError(
                f"{folder}: written for another {name.replace('_', ' ')}: it has {manifest.get(name)!r}, "
                f"this trainer {value!r}"
            )
    for name, size in manifest["files"].items():
        found = (folder / name).stat().st_size if (folder / name).exists() else None
        if found != size:
            state = "missing" if found is None else f"{found} bytes instead of {size}"
            raise TrainerError(f"{folder}: damaged, {name} is {state}; take an older checkpoint")
    return manifest


def fingerprint(kind: str, shapes: Iterable[tuple[str, tuple[int, ...], bool]]) -> str:
    """SHA-256 (hex) over a model's type and its parameters' names, shapes and whether they are trained."""
    text = "\n".join(f"{name} {shape} {trained}" for name, shape, trained in sorted(shapes))
    return hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()
