"""Who works when: every member on a thread of its own, and those that share a device one after the other.

A member's next rollouts need its own update and sync only, so they begin at once while others still train. The one
point at which members wait for each other is routing, which needs the verdicts of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from population.calls import Part, all_of, ask, begin
from population.config import RunConfig
from population.devices import Devices, Expected, Turn, longest_turn_s, turn_order
from population.failures import Failures, Minibatches
from population.member import Member
from population.packing import Pair
from population.sync import in_sync, put_to_sleep, sync_member
from population.timelines import Timelines
from population.trainer import UpdateReport
from server.rollouts.engine import Sample, SamplingParams, TokenPrompt

T = TypeVar("T")
Samples = list[list[Sample]]


@dataclass(frozen=True)
class Follow(Generic[T]):
    """What a member goes on with once it has its new weights: ``draw`` at its device, ``judge`` after that."""

    draw: Callable[[str], T]
    judge: Callable[[str, T], Any]


@dataclass(frozen=True)
class Chain:
    """One member's way through the end of a step; ``followed`` is what was judged, where anything followed."""

    updated: Future[UpdateReport] = field(default_factory=Future)
    synced: Future[None] = field(default_factory=Future)
    followed: Future[Any] = field(default_factory=Future)

    def fail(self, error: BaseException) -> None:
        """What is not done yet will not be."""
        for future in (self.updated, self.synced, self.followed):
            if not future.done():
                future.set_exception(error)


class Schedule:
    """The members at work: in turn at their devices, each piece on its timeline and under the failure policy.

    ``members`` is shared with the coordinator, which alone removes one that was dropped.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        devices: Devices,
        failures: Failures,
        timelines: Timelines,
        config: RunConfig,
    ) -> None:
        self.members = members
        self.timelines = timelines
        self.failures = failures
        self._devices = devices
        self._longest_turn_s = longest_turn_s(config)
        self._deadlines = config.deadlines
        self._sleep = config.rollouts.sleep
        self._grade_s: dict[str, float] = {}

    def turns(self, part: Part, names: Sequence[str]) -> dict[str, Turn]:
        """A place for each of these members in the line at its trainer's or engine's device, in the best order."""
        expected = {name: Expected(self._grade_s.get(name, 0.0), self.members[name].parameters) for name in names}
        device = self._devices.trainer if part == "trainer" else self._devices.engine
        return {
            name: self._devices.line(device[name], self._longest_turn_s).join(name) for name in turn_order(expected)
        }

    def graded(self, name: str, seconds: float) -> None:
        """How long the verification of a member's answers took: it decides the order of the next turns."""
        self._grade_s[name] = seconds

    def at_device(self, name: str, turn: Turn, what: str, work: Callable[[], T]) -> T:
        """The member's work once its turn has come."""
        self.timelines.enter(name, "idle_turn")
        with turn:
            self.timelines.enter(name, what)
            return work()

    def ready(self, step: int) -> None:
        """Bring all engines to the trainers' weights of a step, or to sleep where they are to hold none meanwhile."""
        turns = self.turns("engine", list(self.members))

        def job(name: str) -> None:
            member, work = self.members[name], put_to_sleep if self._sleep else sync_member
            with turns[name]:
                self.failures.guarded(member, partial(work, member, step, self._deadlines.sync_s))

        all_of({name: begin(partial(job, name), f"sync {name}") for name in turns})

    def score(self, step: int, rows: Mapping[str, Sequence[Pair]]) -> dict[str, list[np.ndarray]]:
        """{member: log-probs [T_i] of its rows under its trainer's weights}, all members at once."""
        turns = self.turns("trainer", [name for name, own in rows.items() if own])

        def job(name: str) -> Any:
            call = partial(
                self.failures.ask, self.members[name], "trainer", "score", rows[name],
                deadline_s=self._deadlines.exchange_s, phase="exchange", step=step,
            )  # fmt: skip
            found = self.at_device(name, turns[name], "score", call)
            self.timelines.enter(name, "idle_barrier")
            return found

        found = all_of({name: begin(partial(job, name), f"score {name}") for name in turns})
        for name in turns:
            self.timelines.enter(name, "idle_other")
        return {name: found.get(name, []) for name in rows}

    def train(self, step: int, batches: Mapping[str, Minibatches], follow: Follow[T] | None) -> dict[str, Chain]:
        """Begin every member's update, its sync, and what follows; returns at once."""
        turns = self.turns("trainer", list(batches))
        engines = self.turns("engine", [name for name in batches if follow and not self._devices.shared(name)])
        chains = {name: Chain() for name in batches}
        for name, turn in turns.items():
            job = partial(self._chain, step, name, batches[name], turn, engines.get(name), chains[name], follow)
            begin(job, f"step {step} of {name}")
        return chains

    def _chain(
        self,
        step: int,
        name: str,
        batch: Minibatches,
        turn: Turn,
        engine_turn: Turn | None,
        chain: Chain,
        follow: Follow[T] | None,
    ) -> None:
        """``engine_turn``: None where the engine shares the trainer's device, which is then kept to the last sample."""

        def update_and_sync() -> T | None:
            chain.updated.set_result(self._update(step, name, batch))
            if not self._sleep:
                member = self.members[name]
                self.timelines.enter(name, "sync")
                self.failures.guarded(member, partial(sync_member, member, step, self._deadlines.sync_s))
            chain.synced.set_result(None)
            if follow is None or engine_turn is not None:
                return None
            self.timelines.enter(name, "sample")
            return follow.draw(name)

        try:
            with ExitStack() as stack:
                if engine_turn is not None:
                    stack.callback(engine_turn.leave)
                drawn = self.at_device(name, turn, "update", update_and_sync)
                if follow is None:
                    self.timelines.enter(name, "idle_barrier")
                    return
                if engine_turn is not None:
                    drawn = self.at_device(name, engine_turn, "sample", partial(follow.draw, name))
            assert drawn is not None
            chain.followed.set_result(follow.judge(name, drawn))
        except BaseException as error:
            chain.fail(error)

    def _update(self, step: int, name: str, batch: Minibatches) -> UpdateReport:
        member = self.members[name]
        report: UpdateReport = self.failures.ask(
            member, "trainer", "update", step, batch, deadline_s=self._deadlines.update_s, phase="update", step=step
        )
        self.failures.updated(member, step, batch)
        return report

    def draw(
        self,
        name: str,
        prompts: Sequence[TokenPrompt],
        params: SamplingParams,
        *,
        deadline_s: float,
        phase: str,
        step: int,
        prepare: Callable[[Member], None],
    ) -> Samples:
        """A member's samples. ``prepare`` gives its engine the weights to sample from, if it does not hold them."""
        member = self.members[name]

        def work() -> Samples:
            prepare(member)
            found: Samples = ask(
                member, "engine", "sample", prompts, params, deadline_s=deadline_s, phase=phase, step=step
            )
            return found

        samples = self.failures.guarded(member, work)
        self.failures.tell_events(member, step)
        if self._sleep:
            assert member.weight_version is not None
            asleep = partial(put_to_sleep, member, member.weight_version, self._deadlines.sync_s)
            with self.timelines.during(name, "sync"):
                self.failures.guarded(member, asleep)
        return samples

    def hold(self, member: Member, step: int) -> None:
        """The engine holds its trainer's weights, those after ``step``."""
        with self.timelines.during(member.name, "sync"):
            in_sync(member, step, self._deadlines.sync_s)

    def rest(self) -> None:
        """Nobody goes on before the run says so."""
        for name in self.members:
            self.timelines.enter(name, "idle_other")
