"""Sampling and verifying one step: every member's groups for the shared prompt batch, and further ones where a method
samples until its batch is full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graft.groups import Group, Response
from population.config import RunConfig
from population.grading import Rewards, to_grade
from population.member import Member
from population.placement import wait
from population.prompts import Problem, PromptBatches
from population.recorded import RecordedMember
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


@dataclass(frozen=True)
class StepRollouts:
    """All groups of a step: {member: {prompt: ...}}, prompts in the order of `problems`, and every trained member's
    ids of the prompts. ``left_out`` {member: prompts}: groups that were sampled but are not trained on (dynamic
    sampling). A recorded member has no ids, and no group where it has no record.
    """

    problems: tuple[Problem, ...]
    rollouts: dict[str, dict[int, Rollout]]
    prompt_ids: dict[str, dict[int, tuple[int, ...]]]
    left_out: dict[str, frozenset[int]]

    @property
    def groups(self) -> dict[str, dict[int, Group]]:
        """{member: {prompt: group}}."""
        return {name: {prompt: rollout.group for prompt, rollout in own.items()} for name, own in self.rollouts.items()}

    def trained(self, name: str) -> dict[int, Group]:
        """{prompt: group} of one member, without what was left out."""
        left_out = self.left_out.get(name, frozenset())
        return {prompt: rollout.group for prompt, rollout in self.rollouts[name].items() if prompt not in left_out}


class Sampler:
    """Lets all members sample the same prompts at once and grades each member's responses as they arrive."""

    def __init__(
        self,
        members: Mapping[str, Member],
        recorded: Mapping[str, RecordedMember],
        prompt_ids: Mapping[str, Mapping[int, tuple[int, ...]]],
        rewards: Rewards,
        config: RunConfig,
    ) -> None:
        """``prompt_ids`` {member: {prompt: ids}} of every prompt of the run."""
        self._members = members
        self._recorded = recorded
        self._prompt_ids = prompt_ids
        self._rewards = rewards
        self._config = config

    def collect(self, step: int, prompts: PromptBatches) -> StepRollouts:
        """n responses per member and prompt of the step's batch from theta_old, verified.

        With dynamic sampling, members that lack groups of mixed outcome sample further prompts, for at most so many
        rounds as the configuration says; each then trains on the first `prompts_per_step` of its mixed groups.
        """
        problems = prompts.batch(step)
        rollouts = self._sample(step, problems, [member.name for member in self._config.members])
        if not self._config.rollouts.dynamic_sampling:
            return StepRollouts(tuple(problems), rollouts, self._ids(rollouts), {})
        for number in range(self._config.rollouts.dynamic_sampling_rounds):
            lacking = [name for name in self._members if len(_mixed(rollouts[name])) < prompts.prompts_per_step]
            more = prompts.further(step, number)
            if not lacking or not more:
                break
            problems = [*problems, *more]
            for name, found in self._sample(step, more, lacking).items():
                rollouts[name] |= found
        left_out = {
            name: frozenset(rollouts[name]) - set(_mixed(rollouts[name])[: prompts.prompts_per_step])
            for name in self._members
        }
        return StepRollouts(tuple(problems), rollouts, self._ids(rollouts), left_out)

    def _ids(self, rollouts: Mapping[str, Mapping[int, Rollout]]) -> dict[str, dict[int, tuple[int, ...]]]:
        return {name: {prompt: self._prompt_ids[name][prompt] for prompt in rollouts[name]} for name in self._members}

    def _sample(self, step: int, problems: Sequence[Problem], names: Sequence[str]) -> dict[str, dict[int, Rollout]]:
        """The named members sample these problems at once, or are read from their records; each one's responses are
        graded as they arrive.
        """
        settings, deadlines = self._config.rollouts, self._config.deadlines
        sampling = {
            name: self._members[name].engine.call(
                "sample",
                [TokenPrompt(p.key, self._prompt_ids[name][p.key]) for p in problems],
                SamplingParams(
                    n=settings.rollouts_per_prompt,
                    max_new_tokens=settings.max_response_tokens,
                    temperature=settings.temperature,
                    seed=self._config.seed,
                    step=step,
                    member=name,
                    purpose="train",
                ),
            )
            for name in names
            if name in self._members
        }
        said = {
            name: self._recorded[name].groups(step, [p.key for p in problems]) for name in names if name not in sampling
        }
        grading = {
            name: self._rewards.submit(
                [to_grade(p, r.text) for p in problems if p.key in own for r in own[p.key].responses]
            )
            for name, own in said.items()
        }
        samples: dict[str, list[list[Sample]]] = {}
        for name, future in sampling.items():
            samples[name] = wait(future, deadlines.sample_s, member=name, phase="sample", step=step)
            self._check_versions(name, samples[name])
            grading[name] = self._rewards.submit(
                [to_grade(p, s.text) for p, row in zip(problems, samples[name], strict=True) for s in row]
            )
        rollouts: dict[str, dict[int, Rollout]] = {}
        for name, pending in grading.items():
            verdicts = wait(pending, deadlines.grade_s, member=name, phase="grade", step=step)
            n = settings.rollouts_per_prompt
            judged = iter(verdicts[i : i + n] for i in range(0, len(verdicts), n))
            if name in said:
                rollouts[name] = {prompt: _verified(group, next(judged)) for prompt, group in said[name].items()}
            else:
                rows = zip(problems, samples[name], strict=True)
                rollouts[name] = {p.key: _rollout(name, p.key, row, next(judged)) for p, row in rows}
        return {name: rollouts[name] for name in names}

    def _check_versions(self, name: str, samples: Sequence[Sequence[Sample]]) -> None:
        expected = self._members[name].weight_version
        stale = {s.weight_version for row in samples for s in row} - {expected}
        if stale:
            raise RuntimeError(
                f"member {name!r}: samples of weight version {sorted(stale)} where {expected} was expected"
            )


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
