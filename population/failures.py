"""What follows when a member's trainer or engine is lost: it is started again, its member is dropped, or the run stops.

An engine holds nothing of its own: started again, it gets the trainer's weights and draws the same samples, since
everything random is keyed. A trainer started again loads the last checkpoint and repeats the updates since then from
the batches kept for that, which are deterministic. So a loss costs time, and the run is the run without it. What is
lost when what dies: docs/failures.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from population.calls import Part, ask, ready
from population.config import RunConfig
from population.config.cluster import FailurePolicy
from population.errors import MemberDropped, MemberLost, PartLost, PlacementError
from population.member import Member
from population.trainer import TrainingResponse
from server.rollouts.engine import WeightsLost

T = TypeVar("T")
Minibatches = Sequence[Sequence[TrainingResponse]]
Tell = Callable[[str, str, int | None], None]
"""(message, member, step) -> it is recorded as a warning."""

# What is done once more after an engine was started again, by the phase that it was lost in.
AGAIN = {"sync": "weights sent again", "sample": "samples drawn again", "evaluate": "samples drawn again"}


@dataclass
class Updates:
    """What brings a fresh trainer to the present: the checkpoint to load (None: the model as it was) of ``step``, and
    the batches of every update since.
    """

    folder: Path | None = None
    step: int = 0
    since: list[tuple[int, Minibatches]] = field(default_factory=list)


class Failures:
    """Does a member's work under its failure policy. Safe to use from the threads of all members."""

    def __init__(self, config: RunConfig, tell: Tell) -> None:
        self._policies: dict[str, FailurePolicy] = {m.name: m.failure or config.cluster.failure for m in config.trained}
        self._max_restarts = config.cluster.max_restarts
        self._deadlines = config.deadlines
        self._tell = tell
        self._closing = threading.Event()
        names = list(self._policies)
        self._locks = {name: threading.RLock() for name in names}
        self._updates = {name: Updates() for name in names}
        self._reasons: dict[str, list[str]] = {name: [] for name in names}

    def guarded(self, member: Member, work: Callable[[], T]) -> T:
        """``work()``, done once more whenever a part of the member was lost in it and is there again.

        Raises MemberDropped where the policy is to drop the member, MemberLost where it is to stop or the member was
        restarted too often.
        """
        while True:
            try:
                return work()
            except PartLost as lost:
                self._mend(member, lost)
            except PlacementError as error:
                if not isinstance(error.__cause__, WeightsLost):
                    raise
                member.weight_version = None
                self._count(member, f"{error}")

    def ask(
        self, member: Member, part: Part, method: str, *arguments: Any, deadline_s: float, phase: str, step: int | None
    ) -> Any:
        """As :func:`population.calls.ask`, guarded."""
        call = partial(ask, member, part, method, *arguments, deadline_s=deadline_s, phase=phase, step=step)
        return self.guarded(member, call)

    def updated(self, member: Member, step: int, minibatches: Minibatches) -> None:
        """The member's trainer has made this update: keep what repeats it, where it could be lost."""
        if member.trainer.restartable and self._policies[member.name] == "restart":
            with self._locks[member.name]:
                self._updates[member.name].since.append((step, minibatches))

    def saved(self, step: int, folders: Mapping[str, Path]) -> None:
        """The members' states after ``step`` are in these folders: older batches are not needed any more."""
        for name, folder in folders.items():
            with self._locks[name]:
                kept = self._updates[name]
                since = [(at, batch) for at, batch in kept.since if at > step]
                self._updates[name] = Updates(folder, step, since)

    def tell_events(self, member: Member, step: int | None) -> None:
        """Record what the member's engine mended by itself."""
        for text in self.ask(
            member, "engine", "drain_events", deadline_s=self._deadlines.sync_s, phase="sample", step=step
        ):
            self._tell(text, member.name, step)

    def close(self) -> None:
        """The run ends: what is lost from now on stays lost."""
        self._closing.set()

    def _mend(self, member: Member, lost: PartLost) -> None:
        with self._locks[member.name]:
            if getattr(member, lost.part) is not lost.placement:
                return  # another thread of this run has met the same loss, and mended it
            policy = self._policies[member.name]
            if self._closing.is_set() or policy == "stop" or not lost.placement.restartable:
                raise lost
            if policy == "drop":
                raise MemberDropped(member.name, lost.step, str(lost)) from lost
            repeated = self._restart(member, lost)
        self._tell(f"{lost.part} lost in {lost.phase}: {lost.reason}; restarted, {repeated}", member.name, lost.step)

    def _restart(self, member: Member, lost: PartLost) -> str:
        """Start the lost part again until it holds; what was done for it."""
        reason = f"{lost.part} lost in {lost.phase}: {lost.reason}"
        while True:
            self._count(member, reason, lost)
            try:
                return self._rebuild_engine(member, lost) if lost.part == "engine" else self._rebuild_trainer(member)
            except PartLost as again:
                reason = f"{again.part} lost in {again.phase}: {again.reason}"

    def _rebuild_engine(self, member: Member, lost: PartLost) -> str:
        member.weight_version = None
        member.restart_engine()
        ready(member, "engine", self._deadlines.load_s, lost.step)
        return AGAIN.get(lost.phase, "asked again")

    def _rebuild_trainer(self, member: Member) -> str:
        kept = self._updates[member.name]
        member.restart_trainer()
        ready(member, "trainer", self._deadlines.load_s, kept.step)
        deadlines = self._deadlines
        if kept.folder is not None:
            ask(
                member, "trainer", "load", kept.folder,
                deadline_s=deadlines.checkpoint_s, phase="restart", step=kept.step,
            )  # fmt: skip
        for step, batch in kept.since:
            ask(member, "trainer", "update", step, batch, deadline_s=deadlines.update_s, phase="restart", step=step)
        return f"loaded as of step {kept.step}, {len(kept.since)} update(s) repeated"

    def _count(self, member: Member, reason: str, lost: MemberLost | None = None) -> None:
        """One more restart of the member. MemberLost with all reasons so far when it had as many as it may have."""
        with self._locks[member.name]:
            reasons = self._reasons[member.name]
            reasons.append(reason)
            if len(reasons) > self._max_restarts:
                phase, step = (lost.phase, lost.step) if lost else ("sample", None)
                history = "; ".join(f"{number}. {text}" for number, text in enumerate(reasons, 1))
                raise MemberLost(
                    (member.name,), phase, step,
                    f"restarted {self._max_restarts} times, which is cluster.max_restarts, and lost again: {history}; "
                    "mend the cause and go on with --resume",
                )  # fmt: skip
