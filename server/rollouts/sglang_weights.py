"""Weights of one member on its SGLang servers: folders per version, updates from them, proof, and sleep."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file

from server.folders import whole_folder
from server.rollouts.engine import EngineError, weights_checksum
from server.rollouts.sglang_checksums import compare, hash_of, some
from server.rollouts.sglang_control import Control, PauseMode, ServerFacts
from server.rollouts.sglang_http import Exchange, Server, ServerLost, ServerSilent

T = TypeVar("T")

WEIGHTS, CACHE = "weights", "kv_cache"
# What a model folder holds besides its weights.
_SMALL = ("*.json", "*.txt", "*.model", "*.jinja")
_FOLDER = re.compile(r"version_\d+")


class Deadline:
    """One span of time for several calls."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left, never less than a little."""
        return max(self._ends - time.monotonic(), 0.01)


@dataclass(frozen=True)
class HeldWeights:
    """What one server says it holds: its hashes by rank, and the kind of device they were computed on."""

    url: str
    device: str
    ranks: tuple[Mapping[str, Any], ...]


@dataclass
class Unit:
    """One server and what is known of it. released: tags of the memory it has given back; doubtful: it did not answer
    in time, so that only a restart helps; held: what it held when it was last proved right.
    """

    exchange: Exchange
    control: Control
    facts: ServerFacts
    released: set[str] = field(default_factory=set)
    doubtful: bool = False
    held: HeldWeights | None = None

    @property
    def server(self) -> Server:
        """Its process or address."""
        return self.exchange.server


@dataclass
class WeightFolders:
    """The folders under `place` that hold weights, one per version; the newest whole one is `newest`."""

    place: Path
    model: Path
    newest: Path | None = field(default=None, init=False)

    def write(self, version: int, weights: Mapping[str, torch.Tensor]) -> Path:
        """A model folder with these weights. Whole or absent; raises EngineError when it cannot be written."""
        folder = self.place / f"version_{version}"
        tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()}
        try:
            with whole_folder(folder) as unfinished:
                for pattern in _SMALL:
                    for path in self.model.glob(pattern):
                        if not path.name.endswith(".safetensors.index.json"):
                            shutil.copyfile(path, unfinished / path.name)
                save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
        except OSError as error:
            raise EngineError(f"weights of version {version} cannot be written to {folder}: {error}") from error
        return folder

    def keep(self, folder: Path) -> None:
        """This is the newest version that servers hold; every other folder goes."""
        self.newest = folder
        for other in self.place.iterdir():
            if other != folder and _FOLDER.fullmatch(other.name):
                shutil.rmtree(other)

    def forget(self) -> None:
        """The servers are to get weights that are in no folder."""
        self.newest = None

    def remove(self) -> None:
        """Take all of them away."""
        shutil.rmtree(self.place, ignore_errors=True)


def update_by_folder(unit: Unit, folder: Path, version: str, pause: PauseMode, deadline: Deadline) -> None:
    """The weights of a folder, taken over by a running or sleeping server, which stays paused."""
    control = unit.control
    if unit.released:
        resume_memory(unit, WEIGHTS, deadline)
        control.update_from_folder(folder, version, flush=False, deadline_s=deadline.left)
        return
    control.pause(pause, deadline.left)
    if not control.update_from_folder(folder, version, flush=True, deadline_s=deadline.left):
        control.flush(deadline.left)


def restart_with(unit: Unit, folder: Path, version: str) -> None:
    """A new process with the weights of a folder. Raises EngineError where the server is not the run's own."""
    unit.server.restart(folder, version)
    unit.released.clear()
    unit.doubtful = False
    unit.facts = unit.control.facts()


def held_by(unit: Unit, deadline: Deadline) -> HeldWeights:
    """What a server says it holds."""
    ranks = tuple(unit.control.checksums(deadline.left))
    return HeldWeights(unit.control.url, unit.facts.device, ranks)


def prove(held: HeldWeights, weights: Mapping[str, torch.Tensor], folder: Path | None) -> str:
    """A remark ("" for none) when the server holds these weights. Raises EngineError that names what differs.

    Names of the server that stand for no tensor that was sent (a family it fuses in a way of its own) cannot be
    compared. What was read from `folder` is then proved by reading the folder back; without one it is refused.
    """
    found = compare(held.ranks, weights, hash_of(held.device))
    if found.equal:
        return ""
    if found.differing or not found.unknown:
        raise EngineError(f"{held.url} does not hold the weights it was sent: {found.fault()}")
    if folder is None:
        raise EngineError(f"{held.url}: {found.fault()}, so a sync by group cannot be proved; use rollouts.sync: disk")
    if weights_checksum(load_file(folder / "model.safetensors")) != weights_checksum(weights):
        raise EngineError(f"{folder} does not hold the weights that were written to it; the disk is faulty")
    return (
        f"{held.url}: {found.compared} of its tensors are compared with the trainer's by hash; {some(found.unknown)} "
        f"stand for no tensor by name, so the folder they were read from is compared instead"
    )


def wake_cache(unit: Unit, deadline: Deadline) -> None:
    """Give a server whose weights are right its cache back; it stays paused."""
    if unit.released:
        resume_memory(unit, CACHE, deadline)
        unit.control.flush(deadline.left)


def put_to_sleep(unit: Unit, deadline: Deadline) -> None:
    """Pause a server and give its memory back."""
    unit.control.pause("abort", deadline.left)
    unit.control.flush(deadline.left)
    unit.control.release_memory((CACHE, WEIGHTS), deadline.left)
    unit.released = {CACHE, WEIGHTS}


def resume_memory(unit: Unit, tag: str, deadline: Deadline) -> None:
    """Have one part of the memory taken again, unless it has been: asked twice, a server ends."""
    if tag in unit.released:
        unit.control.resume_memory((tag,), deadline.left)
        unit.released.discard(tag)


def on_all(units: Sequence[Unit], act: Callable[[Unit], T]) -> list[T]:
    """Do it on all servers at once and wait for all. Raises the first error, ServerLost before others; a server that
    did not answer in time is doubtful from then on.
    """

    def on_one(unit: Unit) -> T:
        try:
            return act(unit)
        except ServerSilent:
            unit.doubtful = True
            raise

    with ThreadPoolExecutor(max_workers=len(units)) as pool:
        calls = [pool.submit(on_one, unit) for unit in units]
    errors = [error for call in calls if (error := call.exception()) is not None]
    if errors:
        raise next((error for error in errors if isinstance(error, ServerLost)), errors[0])
    return [call.result() for call in calls]
