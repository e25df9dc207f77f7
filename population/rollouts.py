"""Sampling and verifying one step: every member's groups for the shared prompt batch, and further ones where a method
samples until its batch is full.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from graft.groups import Group, Response
from population.calls import all_of, begin
from population.config import RunConfig
from population.grading import Rewards, to_grade
from population.member import Member
from population.placement import wait
from population.prompts import Problem, PromptBatches
from population.recorded import RecordedMember
from population.schedule import Follow, Samples, Schedule
from population.timelines import Timelines
from server.rewards import Verdict
from server.rollouts.engine import Sample, SamplingParams, TokenPrompt
from server.store.records import GroupRecord


@dataclass(frozen=True)
class Rollout:
    """One group with what the record keeps beside it: a verdict and a finish reason per response.

    ``recorded`` [n] are the rewards of a recorded member's group as they were recorded, None for one sampled now.
    """

    group: Group
    verdicts: tuple[Verdict, ...]
    finishes: tuple[str, ...]
    recorded: np.ndarray | None = None

    @property
    def changed(self) -> int:
        """Responses whose reward is another than the recorded one."""
        return 0 if self.recorded is None else int(np.count_nonzero(self.recorded != self.group.rewards))


Answers = dict[int, Rollout]
"""One member's groups by prompt."""


@dataclass(frozen=True)
class StepRollouts:
    """All groups of a step: {member: {prompt: ...}}, prompts in the order of `problems`, and every trained member's
    ids of the prompts. ``left_out`` {member: prompts}: groups that were sampled but are not trained on (dynamic
    sampling). A recorded member has no ids, and no group where it has no record. ``sampling_s`` {member: seconds it
    took to draw them}.
    """

    problems: tuple[Problem, ...]
    rollouts: dict[str, dict[int, Rollout]]
    prompt_ids: dict[str, dict[int, tuple[int, ...]]]
    left_out: dict[str, frozenset[int]]
    sampling_s: dict[str, float] = field(default_factory=dict)

    @property
    def groups(self) -> dict[str, dict[int, Group]]:
        """{member: {prompt: group}}."""
        return {name: {prompt: rollout.group for prompt, rollout in own.items()} for name, own in self.rollouts.items()}

    def trained(self, name: str) -> dict[int, Group]:
        """{prompt: group} of one member, without what was left out."""
        left_out = self.left_out.get(name, frozenset())
        return {prompt: rollout.group for prompt, rollout in self.rollouts[name].items() if prompt not in left_out}


@dataclass(frozen=True)
class Drawn:
    """What a member said to some problems: samples [problems][n], and how long it took."""

    step: int
    problems: tuple[Problem, ...]
    samples: Samples
    seconds: float


class Sampler:
    """Lets all members sample the same prompts at once and grades each member's responses as they arrive."""

    def __init__(
        self,
        schedule: Schedule,
        recorded: Mapping[str, RecordedMember],
        prompt_ids: Mapping[str, Mapping[int, tuple[int, ...]]],
        rewards: Rewards,
        prompts: PromptBatches,
        config: RunConfig,
    ) -> None:
        """``prompt_ids`` {member: {prompt: ids}} of every prompt of the run."""
        self._schedule = schedule
        self._recorded = recorded
        self._prompt_ids = prompt_ids
        self._rewards = rewards
        self._prompts = prompts
        self._config = config
        self._begun: dict[str, Future[Answers]] = {}
        self._begun_step = 0
        self._seconds: dict[str, float] = {}
        self._waiting = _Waiting(schedule.members, schedule.timelines)

    @property
    def _members(self) -> Mapping[str, Member]:
        return self._schedule.members

    def ahead(self, step: int) -> Follow[Drawn]:
        """What a member goes on with after its sync: its part of this next step."""
        problems = self._prompts.batch(step)
        self._seconds = {}
        self._waiting.begin(self._members)
        return Follow(partial(self._draw, step, problems), self._judge)

    def expect(self, step: int, begun: Mapping[str, Future[Answers]]) -> None:
        """The members have begun with a step."""
        self._begun, self._begun_step = dict(begun), step

    def forget(self, name: str) -> None:
        """Nobody waits for this member any more."""
        self._waiting.drawn(name)
        self._waiting.judged(name)

    def collect(self, step: int) -> StepRollouts:
        """n responses per member and prompt of the step's batch from theta_old, verified.

        With dynamic sampling, members that lack groups of mixed outcome sample further prompts, for at most so many
        rounds as the configuration says; each then trains on the first `prompts_per_step` of its mixed groups.
        A step may be collected again, when a member was dropped: what the others said is not drawn once more.
        """
        size = self._prompts.prompts_per_step
        problems = self._prompts.batch(step)
        if self._begun_step != step:
            self._seconds = {}
            self.expect(step, self._begin(step, problems, list(self._members)))
        rollouts = self._finish(step, problems, {name: self._begun[name] for name in self._members}, self._recorded)
        left_out: dict[str, frozenset[int]] = {}
        if self._config.rollouts.dynamic_sampling:
            for number in range(self._config.rollouts.dynamic_sampling_rounds):
                lacking = [name for name in self._members if len(_mixed(rollouts[name])) < size]
                more = self._prompts.further(step, number)
                if not lacking or not more:
                    break
                problems = [*problems, *more]
                for name, found in self._finish(step, more, self._begin(step, more, lacking), {}).items():
                    rollouts[name] |= found
            left_out = {name: frozenset(rollouts[name]) - set(_mixed(rollouts[name])[:size]) for name in self._members}
        ids = {name: {prompt: self._prompt_ids[name][prompt] for prompt in rollouts[name]} for name in self._members}
        seconds = {name: self._seconds[name] for name in self._members}
        return StepRollouts(tuple(problems), rollouts, ids, left_out, seconds)

    def _begin(self, step: int, problems: Sequence[Problem], names: Sequence[str]) -> dict[str, Future[Answers]]:
        """The named members begin to sample these problems."""
        turns = self._schedule.turns("engine", names)
        self._waiting.begin(names)

        def job(name: str) -> Answers:
            draw = partial(self._draw, step, problems, name)
            return self._judge(name, self._schedule.at_device(name, turns[name], "sample", draw))

        return {name: begin(partial(job, name), f"sample {name}") for name in turns}

    def _finish(
        self,
        step: int,
        problems: Sequence[Problem],
        begun: Mapping[str, Future[Answers]],
        recorded: Mapping[str, RecordedMember],
    ) -> dict[str, Answers]:
        """The answers of all, in the order of the configuration: recorded members are read and verified meanwhile."""
        said = {name: one.groups(step, [p.key for p in problems]) for name, one in recorded.items()}
        grading = {
            name: self._rewards.submit(
                [to_grade(p, r.text) for p in problems if p.key in own for r in own[p.key].responses]
            )
            for name, own in said.items()
        }
        found = all_of(begun)
        for name, pending in grading.items():
            judged = self._by_group(
                wait(pending, self._config.deadlines.grade_s, member=name, phase="grade", step=step)
            )
            found[name] = {prompt: _verified(group, next(judged)) for prompt, group in said[name].items()}
        self._schedule.rest()
        return {member.name: found[member.name] for member in self._config.members if member.name in found}

    def _draw(self, step: int, problems: Sequence[Problem], name: str) -> Drawn:
        """The member's samples from its weights after the step before."""
        settings = self._config.rollouts
        params = SamplingParams(
            n=settings.rollouts_per_prompt,
            max_new_tokens=settings.max_response_tokens,
            temperature=settings.temperature,
            seed=self._config.seed,
            step=step,
            member=name,
            purpose="train",
        )
        started = time.perf_counter()
        try:
            samples = self._schedule.draw(
                name,
                [TokenPrompt(p.key, self._prompt_ids[name][p.key]) for p in problems],
                params,
                deadline_s=self._config.deadlines.sample_s,
                phase="sample",
                step=step,
                prepare=partial(self._schedule.hold, step=step - 1),
            )
        finally:
            self._waiting.drawn(name)
        _check_versions(name, samples, step - 1)
        return Drawn(step, tuple(problems), samples, time.perf_counter() - started)

    def _judge(self, name: str, drawn: Drawn) -> Answers:
        """The member's groups, verified."""
        self._schedule.timelines.enter(name, "grade")
        self._seconds[name] = self._seconds.get(name, 0.0) + drawn.seconds
        started = time.perf_counter()
        rows = list(zip(drawn.problems, drawn.samples, strict=True))
        pending = self._rewards.submit([to_grade(p, s.text) for p, row in rows for s in row])
        verdicts = wait(pending, self._config.deadlines.grade_s, member=name, phase="grade", step=drawn.step)
        self._schedule.graded(name, time.perf_counter() - started)
        self._waiting.judged(name)
        judged = self._by_group(verdicts)
        return {p.key: _rollout(name, p.key, row, next(judged)) for p, row in rows}

    def _by_group(self, verdicts: list[Verdict]) -> Iterator[list[Verdict]]:
        n = self._config.rollouts.rollouts_per_prompt
        return iter(verdicts[i : i + n] for i in range(0, len(verdicts), n))


class _Waiting:
    """What members that are through wait for: the samples of others, only their verification, or nobody any more."""

    def __init__(self, members: Mapping[str, Member], timelines: Timelines) -> None:
        self._members, self._timelines = members, timelines
        self._lock = threading.Lock()
        self._to_draw: set[str] = set()
        self._to_judge: set[str] = set()

    def begin(self, names: Iterable[str]) -> None:
        with self._lock:
            self._to_draw, self._to_judge = set(names), set(names)

    def drawn(self, name: str) -> None:
        with self._lock:
            self._to_draw.discard(name)
            self._go_on()

    def judged(self, name: str) -> None:
        with self._lock:
            self._to_judge.discard(name)
            self._timelines.enter(name, "idle_barrier")
            self._go_on()

    def _go_on(self) -> None:
        for name in list(self._members):
            if not self._to_draw:
                self._timelines.enter(name, "idle_grading", only_after="idle_barrier")
            if not self._to_judge:
                self._timelines.enter(name, "idle_other", only_after="idle_grading")


def _check_versions(name: str, samples: Samples, expected: int) -> None:
    stale = {s.weight_version for row in samples for s in row} - {expected}
    if stale:
        raise RuntimeError(f"member {name!r}: samples of weight version {sorted(stale)} where {expected} was expected")


def _mixed(own: Mapping[int, Rollout]) -> list[int]:
    """Prompts whose group has a gradient of its own, in order: 0 < k < n, a missing verdict counting as wrong."""
    return [prompt for prompt, rollout in own.items() if 0 < rollout.group.successes < rollout.group.n]


def _rollout(name: str, prompt: int, samples: Sequence[Sample], verdicts: Sequence[Verdict]) -> Rollout:
    responses = tuple(Response(s.ids, s.text, s.logprobs, s.finish == "stop", s.weight_version) for s in samples)
    return Rollout(_judged(name, prompt, responses, verdicts), tuple(verdicts), tuple(s.finish for s in samples))


def _verified(group: GroupRecord, verdicts: Sequence[Verdict]) -> Rollout:
    """A recorded group under the verdicts of today."""
    said = group.responses
    responses = tuple(Response(r.token_ids, r.text, r.logprobs, r.finish == "stop", r.weight_version) for r in said)
    return Rollout(
        _judged(group.member, group.prompt, responses, verdicts),
        tuple(verdicts),
        tuple(r.finish for r in said),
        np.array([r.reward for r in said], dtype=np.float64),
    )


def _judged(name: str, prompt: int, responses: tuple[Response, ...], verdicts: Sequence[Verdict]) -> Group:
    rewards = np.array([verdict.reward for verdict in verdicts], dtype=np.float64)
    graded = np.array([verdict.graded for verdict in verdicts], dtype=bool)
    return Group(name, prompt, responses, rewards, graded)
