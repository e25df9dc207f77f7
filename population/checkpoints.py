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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from population.errors import CheckpointError, DamagedCheckpoint, PlacementError
from population.exchange import Exchange
from population.member import Member
from population.placement import gather
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

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        names = [re.fullmatch(r"step_(\d+)", path.name) for path in self.folder.iterdir()]
        return sorted(int(name.group(1)) for name in names if name)

    def save(
        self, step: int, members: Mapping[str, Member], router: Router, exchange: Exchange, success_graph: SuccessGraph
    ) -> Path:
        """Write the state after ``step`` and drop the oldest checkpoints beyond ``keep_last``."""
        self.sweep()
        temporary, final = self.folder / f"tmp_{step:08d}", self.folder / f"step_{step:08d}"
        try:
            temporary.mkdir(parents=True)
            futures = {name: member.trainer.call("save", temporary / name) for name, member in members.items()}
            gather(futures, self.deadline_s, phase="checkpoint", step=step)
            success_graph.save(temporary / "success_graph.npz")
            state = {
                "format": FORMAT,
                "step": step,
                "run_digest": self.run_digest,
                "members": dict.fromkeys(members, step),
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
            raise CheckpointError(
                f"checkpoint of step {step} in {self.folder}: {error}; free space or change folder, then --resume"
            ) from error
        self.sweep()
        return final

    def load(
        self, step: int, members: Mapping[str, Member], router: Router, exchange: Exchange, success_graph: SuccessGraph
    ) -> None:
        """Bring the whole population to the state after ``step``.

        CheckpointError when it belongs to another configuration, which changes nothing; DamagedCheckpoint when a part
        is missing or broken, after which another checkpoint has to be loaded before anything else.
        """
        folder = self.folder / f"step_{step:08d}"
        try:
            state: dict[str, Any] = json.loads((folder / "state.json").read_text())
            self._check(folder, state, members)
            success_graph.load(folder / "success_graph.npz")
            futures = {name: member.trainer.call("load", folder / name) for name, member in members.items()}
            gather(futures, self.deadline_s, phase="resume", step=step)
        except CheckpointError:
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
            shutil.rmtree(self.folder / f"step_{old:08d}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
