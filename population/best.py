"""The best checkpoint of every member: chosen by the configured rule after every evaluation, its weights kept on disk.

``<run>/best/<member>`` is a link to ``<run>/kept/<member>/step_<n>``, a model folder that ``from_pretrained`` reads.
Both change atomically. Beside the best of now, the best as of every population checkpoint is kept: a run that is
resumed from one finds the weights that its record calls the best.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from population.calls import Ask, all_of, ask, begin
from population.checkpoints import Checkpoints
from population.config import EvaluationConfig, RunConfig
from population.errors import CheckpointError, PlacementError, SyncError
from population.evaluation import MANIFEST
from population.member import Member, resolved_dtype
from population.weights import load_causal_lm
from server.folders import whole_folder
from server.rollouts.engine import trainable_tensors
from server.store.best import choose, mean_of, selecting
from server.store.records import EvaluationRecord, Role
from server.store.scores import mean_interval
from server.store.views import EvaluationSummary


class BestCheckpoints:
    """Follows the evaluations of one run and keeps the weights of the best checkpoint of every member.

    ``folder`` is the run's. ``checkpoints`` are its population checkpoints.
    """

    def __init__(self, folder: Path, settings: EvaluationConfig, checkpoints: Checkpoints, deadline_s: float) -> None:
        self.folder = folder
        self.rule = settings.best.rule
        roles: dict[str, Role] = {benchmark.name: benchmark.role for benchmark in settings.benchmarks}
        self.selected_on, self.benchmarks = selecting(roles, settings.best.split)
        self._checkpoints = checkpoints
        self._deadline_s = deadline_s
        self._scores: dict[str, dict[int, dict[str, float]]] = {}

    def step(self, member: str, until: int | None = None) -> int | None:
        """The step of a member's best checkpoint, as of the step ``until`` (default: now); None before the first."""
        own = self._scores.get(member, {})
        return choose({s: row for s, row in own.items() if until is None or s <= until}, self.benchmarks, self.rule)

    def place(self, member: str, step: int) -> Path:
        """The folder of a member's kept weights after a step."""
        return self.folder / "kept" / member / f"step_{step:08d}"

    def consider(
        self, step: int, records: Iterable[EvaluationRecord], members: Mapping[str, Member], call: Ask = ask
    ) -> None:
        """Take the evaluation after ``step`` into account and keep the present weights of members they are best of.

        Raises CheckpointError when they cannot be written.
        """
        for record in records:
            mean = mean_interval([c for _, c, _ in record.problems], [n for _, _, n in record.problems]).mean
            self._learn(record.member, record.step, record.benchmark, mean)
        names = [name for name in members if self.step(name) == step]
        if names:
            self._keep(step, {name: members[name] for name in names}, call)
        for name in names:
            self._link(name)
        self.prune(members)

    def restore(self, evaluations: Iterable[EvaluationSummary], members: Iterable[str]) -> None:
        """Go on with the evaluations of a run up to the step it is resumed from. CheckpointError when weights are
        missing.
        """
        for one in evaluations:
            self._learn(one.member, one.step, one.benchmark, one.mean)
        for name in members:
            step = self.step(name)
            if step is None:
                (self.folder / "best" / name).unlink(missing_ok=True)
                continue
            if not (self.place(name, step) / MANIFEST).is_file():
                raise CheckpointError(
                    f"{self.place(name, step)}: the best checkpoint of member {name!r} is missing; put it back, or "
                    "start a new run"
                )
            self._link(name)

    def prune(self, members: Iterable[str]) -> None:
        """Remove kept weights that are neither the best now nor as of a population checkpoint."""
        for name in members:
            wanted = {self.step(name, until) for until in (None, *self._checkpoints.steps())}
            for path in (self.folder / "kept" / name).glob("*step_*"):
                found = re.fullmatch(r"step_(\d+)", path.name)
                if found is None or int(found.group(1)) not in wanted:
                    shutil.rmtree(path)

    def manifest(self, member: str, step: int) -> dict[str, Any]:
        """What is kept beside the weights: whose and of which step they are, and how they were selected."""
        return {
            "member": member,
            "step": step,
            "rule": self.rule,
            "selected_on": self.selected_on,
            "benchmarks": list(self.benchmarks),
            "score": mean_of(self._scores[member][step], self.benchmarks),
        }

    def _learn(self, member: str, step: int, benchmark: str, mean: float) -> None:
        if benchmark in self.benchmarks:
            self._scores.setdefault(member, {}).setdefault(step, {})[benchmark] = mean

    def _keep(self, step: int, members: Mapping[str, Member], call: Ask) -> None:
        try:
            with ExitStack() as stack:
                places = {name: stack.enter_context(whole_folder(self.place(name, step))) for name in members}

                def exported(name: str) -> str:
                    asked = partial(
                        call, members[name], "trainer",
                        deadline_s=self._deadline_s, phase="keep the best", step=step,
                    )  # fmt: skip
                    asked("export", places[name])
                    return str(asked("checksum"))

                checksums = all_of({name: begin(partial(exported, name)) for name in members})
                for name, member in members.items():
                    member.tokenizer.hf.save_pretrained(places[name])
                    facts = self.manifest(name, step) | {"checksum": checksums[name]}
                    (places[name] / MANIFEST).write_text(json.dumps(facts, indent=1))
        except (OSError, PlacementError) as error:
            raise CheckpointError(
                f"best checkpoint of step {step} in {self.folder / 'kept'}: {error}; free space or change folder, "
                "then --resume"
            ) from error

    def _link(self, member: str) -> None:
        """Let best/<member> name the best weights; a reader finds the former or these, never none."""
        step = self.step(member)
        assert step is not None
        link = self.folder / "best" / member
        link.parent.mkdir(parents=True, exist_ok=True)
        fresh = link.with_name(f".{member}.tmp")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(os.path.relpath(self.place(member, step), link.parent))
        fresh.replace(link)


def load_best(best: BestCheckpoints, member: Member, step: int, config: RunConfig, *, last_step: int) -> None:
    """Put a member's best weights, those after ``step``, into its engine, which does not hold the trainer's then.

    Raises SyncError when the engine does not hold what was kept.
    """
    folder = best.place(member.name, step)
    model = load_causal_lm(folder, getattr(torch, resolved_dtype(config)))
    member.weight_version = None
    held = ask(
        member, "engine", "load_weights", step, trainable_tensors(model),
        deadline_s=config.deadlines.sync_s, phase="load the best", step=last_step,
    )  # fmt: skip
    kept = json.loads((folder / MANIFEST).read_text())["checksum"]
    if held != kept:
        raise SyncError(
            f"member {member.name!r}, phase load the best, step {step}: the engine holds {held[:12]}, {folder} was "
            f"kept as {kept[:12]}; the folder is damaged"
        )
    member.weight_version = step
