"""Population-wide checkpoints: every member, the router, the success graph and the step, as one folder that is there
or not.

A checkpoint is written into ``tmp_<step>``, flushed to disk and renamed to ``step_<n>``: a kill at any moment leaves
the last whole one. Trainer states are pickles; load only checkpoints that this program wrote.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from population.calls import Ask, all_of, ask, begin
from population.errors import CheckpointError, DamagedCheckpoint, MemberLost, PlacementError
from population.exchange import Exchange
from population.member import Member
from population.router import Router
from population.success_graph import SuccessGraph

FORMAT = 2


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run in ``folder``. ``run_digest`` is the hash of the configuration they belong to."""

    folder: Path
    run_digest: str
    keep_last: int
    deadline_s: float

    def place(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.folder / f"step_{step:08d}"

    def dropped(self, until: int) -> dict[str, int]:
        """{member: step since which it was dropped} in the newest checkpoint at or before a step."""
        for step in reversed([step for step in self.steps() if step <= until]):
            with suppress(OSError, ValueError):
                found: dict[str, int] = json.loads((self.place(step) / "state.json").read_text()).get("dropped", {})
                return found
        return {}

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        names = [re.fullmatch(r"step_(\d+)", path.name) for path in self.folder.iterdir()]
        return sorted(int(name.group(1)) for name in names if name)

    def save(
        self,
        step: int,
        members: Mapping[str, Member],
        router: Router,
        exchange: Exchange,
        success_graph: SuccessGraph,
        dropped: Mapping[str, int] = MappingProxyType({}),
        call: Ask = ask,
    ) -> Path:
        """Write the state after ``step``. Older checkpoints stay until the next :meth:`sweep`.

        ``dropped`` {member: step since which it is not of the run any more}.
        """
        self.sweep()
        temporary, final = self.folder / f"tmp_{step:08d}", self.place(step)
        try:
            temporary.mkdir(parents=True)
            self._on_all(members, "save", temporary, call, phase="checkpoint", step=step)
            success_graph.save(temporary / "success_graph.npz")
            state = {
                "format": FORMAT,
                "step": step,
                "run_digest": self.run_digest,
                "members": dict.fromkeys(members, step),
                "dropped": dict(dropped),
                "router": router.state(),
                "exchange": exchange.state(),
            }
            (temporary / "state.json").write_text(json.dumps(state))
            for path in (temporary / "state.json", temporary / "success_graph.npz", temporary):
                _flush(path)
            if final.exists():
                shutil.rmtree(final)
            temporary.rename(final)
            _flush(self.folder)
        except (OSError, PlacementError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, MemberLost):
                raise
            raise CheckpointError(
                f"checkpoint of step {step} in {self.folder}: {error}; free space or change folder, then --resume"
            ) from error
        return final

    def load(
        self, step: int, members: Mapping[str, Member], router: Router, exchange: Exchange, success_graph: SuccessGraph
    ) -> None:
        """Bring the whole population to the state after ``step``.

        CheckpointError when it belongs to another configuration, which changes nothing; DamagedCheckpoint when a part
        is missing or broken, after which another checkpoint has to be loaded before anything else.
        """
        folder = self.place(step)
        try:
            state: dict[str, Any] = json.loads((folder / "state.json").read_text())
            self._check(folder, state, members)
            success_graph.load(folder / "success_graph.npz")
            self._on_all(members, "load", folder, ask, phase="resume", step=step)
        except (CheckpointError, MemberLost):
            raise
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, PlacementError) as error:
            reason = " ".join(str(error).split())
            raise DamagedCheckpoint(
                f"{folder}: cannot be read ({reason}); remove it to resume from an older one"
            ) from error
        for name, version in state["members"].items():
            members[name].weight_version = version
        router.restore(state["router"])
        exchange.restore(state["exchange"])

    def _on_all(
        self, members: Mapping[str, Member], method: str, folder: Path, call: Ask, *, phase: str, step: int
    ) -> None:
        """Every member's trainer saves to, or loads from, its part of a folder."""
        on_one = partial(call, deadline_s=self.deadline_s, phase=phase, step=step)
        jobs = {n: begin(partial(on_one, one, "trainer", method, folder / n)) for n, one in members.items()}
        all_of(jobs)

    def _check(self, folder: Path, state: Mapping[str, Any], members: Mapping[str, Member]) -> None:
        if state["format"] != FORMAT:
            raise CheckpointError(
                f"{folder}: format {state['format']}, this reads {FORMAT}; resume with the version that wrote it"
            )
        if state["run_digest"] != self.run_digest:
            raise CheckpointError(
                f"{folder}: belongs to another configuration; resume with the run's own, or start a new run"
            )
        if list(state["members"]) != list(members):
            raise CheckpointError(
                f"{folder}: holds members {', '.join(state['members'])}; the configuration has {', '.join(members)}"
            )

    def sweep(self) -> None:
        """Remove what an interrupted write left behind, and the oldest checkpoints beyond ``keep_last``."""
        for path in self.folder.glob("tmp_*"):
            shutil.rmtree(path)
        for old in self.steps()[: -self.keep_last]:
            shutil.rmtree(self.place(old))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
