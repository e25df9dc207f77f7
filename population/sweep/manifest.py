"""What a sweep's folder holds: its arms and where their runs are recorded. Places are relative, so it may be moved."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from population.errors import RunError

MANIFEST = "sweep.json"
FORMAT = "graft sweep 1"


class SweepError(RunError, ValueError):
    """A sweep that cannot be run or read; names the file, the arm and the remedy."""


@dataclass(frozen=True)
class ManifestRun:
    """One run; ``store`` is its database file, relative to the sweep's folder."""

    uid: str
    seed: int
    store: str


@dataclass(frozen=True)
class ManifestArm:
    """One arm with its runs."""

    name: str
    description: str
    runs: tuple[ManifestRun, ...]


@dataclass(frozen=True)
class Manifest:
    """A sweep as it was expanded; ``cost`` None: chosen by what was recorded."""

    name: str
    baselines: tuple[str, ...]
    cost: str | None
    arms: tuple[ManifestArm, ...]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``folder/sweep.json``, whole or not at all."""
    temporary = folder / f".{MANIFEST}"
    temporary.write_text(json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1) + "\n")
    os.replace(temporary, folder / MANIFEST)


def read_manifest(folder: Path) -> Manifest:
    """Read it back. Raises SweepError for a file of another program or format."""
    place = folder / MANIFEST
    try:
        tree = json.loads(place.read_text())
    except (OSError, ValueError) as error:
        raise SweepError(f"{place}: cannot be read ({' '.join(str(error).split())}); run the sweep again") from None
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise SweepError(f"{place}: is no sweep of this program (format {FORMAT!r}); run the sweep again")
    arms = tuple(
        ManifestArm(arm["name"], arm["description"], tuple(ManifestRun(**run) for run in arm["runs"]))
        for arm in tree["arms"]
    )
    return Manifest(tree["name"], tuple(tree["baselines"]), tree["cost"], arms)
