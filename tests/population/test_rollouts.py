"""Sampling a step: the shared batch, and further prompts until the step is full of groups with a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from population import health
from population.calls import begin
from population.config import RunConfig, parse
from population.devices import devices_of
from population.failures import Failures
from population.prompts import Problem, PromptBatches
from population.rollouts import Sampler, StepRollouts
from population.schedule import Schedule
from population.timelines import Timelines
from server.rewards import Item, RewardService, Verdict, VerdictCode
from server.rollouts.engine import Sample, SamplingParams, TokenPrompt

PROBLEMS = [Problem(key, f"{key}?", str(key), "d") for key in range(1, 25)]


@dataclass
class Oracle:
    """An engine whose member solves `solved(prompt)` of its n responses; it notes which prompts it was asked."""

    solved: Callable[[int], int]
    asked: list[list[int]] = field(default_factory=list)

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(getattr(self, method)(*arguments))
        return future

    def sample(self, prompts: Sequence[TokenPrompt], params: SamplingParams) -> list[list[Sample]]:
        self.asked.append([prompt.key for prompt in prompts])
        return [[self.answer(p.key, i, params.step - 1) for i in range(params.n)] for p in prompts]

    def answer(self, prompt: int, index: int, version: int) -> Sample:
        text = f"\\boxed{{{prompt if index < self.solved(prompt) else 0}}}"
        return Sample(prompt, index, np.array([1, 0], np.int32), np.zeros(2, np.float32), text, "stop", version)

    def drain_events(self) -> tuple[str, ...]:
        return ()


@dataclass
class Asked:
    engine: Oracle
    weight_version: int = 0
    name: str = ""
    parameters: int = 1


def config(**rollouts: Any) -> RunConfig:
    tree = {
        "name": "r",
        "method": "grpo",
        "steps": 3,
        "members": [{"name": "a", "model": "m"}, {"name": "b", "model": "m"}],
        "data": {"source": "d", "prompts_per_step": 4},
        "update": {"prompts_per_minibatch": 2},
        "rollouts": {"rollouts_per_prompt": 2, **rollouts},
    }
    return parse(tree)


def sampler_of(members: dict[str, Asked], rewards: Any, step: int = 1, **rollouts: Any) -> Sampler:
    settings, everyone = config(**rollouts), cast(Any, members)
    for name, member in members.items():
        member.name, member.weight_version = name, step - 1
    failures = Failures(settings, lambda *told: None)
    devices = devices_of(settings, on_gpu=False, clustered=False)
    schedule = Schedule(everyone, devices, failures, Timelines(list(members)), settings)
    ids = {name: {p.key: (5,) for p in PROBLEMS} for name in members}
    return Sampler(schedule, {}, ids, rewards, PromptBatches(PROBLEMS, 4, seed=0), settings)


def collect(members: dict[str, Asked], step: int = 1, **rollouts: Any) -> StepRollouts:
    with RewardService(workers=1, timeout_s=60.0) as rewards:
        return sampler_of(members, rewards, step, **rollouts).collect(step)


def some(prompt: int) -> int:
    """Mixed on every third prompt, all-fail or all-solved elsewhere."""
    return (1, 0, 2)[prompt % 3]


def test_without_dynamic_sampling_a_step_is_its_batch_and_all_of_it_is_trained_on() -> None:
    members = {"a": Asked(Oracle(some)), "b": Asked(Oracle(lambda _: 1))}
    found = collect(members)
    batch = [p.key for p in PromptBatches(PROBLEMS, 4, seed=0).batch(1)]
    assert [p.key for p in found.problems] == list(found.trained("a")) == list(found.trained("b")) == batch
    assert members["a"].engine.asked == [batch]


def test_a_member_samples_on_until_its_batch_is_full_of_mixed_groups_and_no_further() -> None:
    members = {"a": Asked(Oracle(some)), "b": Asked(Oracle(lambda _: 1))}
    found = collect(members, dynamic_sampling=True, dynamic_sampling_rounds=5)
    trained = found.trained("a")
    assert len(trained) == 4
    assert all(group.mixed for group in trained.values())
    assert list(trained) == [p for p in found.rollouts["a"] if p % 3 == 0][:4]
    assert [len(asked) for asked in members["b"].engine.asked] == [4]
    sampled = [prompt for asked in members["a"].engine.asked for prompt in asked]
    assert len(sampled) == len(set(sampled)) == len(found.rollouts["a"])
    assert [p.key for p in found.problems] == sampled
    assert len([p for p in sampled[:-4] if p % 3 == 0]) < 4


def test_a_step_replays_with_the_same_further_prompts() -> None:
    first, second = ({"a": Asked(Oracle(some)), "b": Asked(Oracle(some))} for _ in range(2))
    assert list(collect(first, step=2, dynamic_sampling=True).trained("a")) == list(
        collect(second, step=2, dynamic_sampling=True).trained("a")
    )


def test_the_cap_on_rounds_leaves_a_short_step_and_says_so() -> None:
    members = {"a": Asked(Oracle(lambda _: 0)), "b": Asked(Oracle(lambda _: 1))}
    found = collect(members, dynamic_sampling=True, dynamic_sampling_rounds=2)
    assert [len(asked) for asked in members["a"].engine.asked] == [4, 4, 4]
    assert found.trained("a") == {}
    messages = [e.message for e in health.warnings(1, found, 4) if e.message.startswith("dynamic sampling")]
    assert messages == [
        "dynamic sampling: 0 of 4 groups of mixed outcome after 12 prompts; the step is short, raise "
        "rollouts.dynamic_sampling_rounds"
    ]


def test_a_recorded_member_without_a_group_in_the_step_is_not_said_to_lack_any() -> None:
    found = collect({"a": Asked(Oracle(lambda _: 1)), "b": Asked(Oracle(lambda _: 1))}, dynamic_sampling=True)
    found.rollouts["old"] = {}
    assert health.warnings(1, found, 4) == []


def test_what_was_begun_ahead_is_not_sampled_again_nor_when_the_step_is_collected_once_more() -> None:
    members = {"a": Asked(Oracle(some)), "b": Asked(Oracle(lambda _: 1))}
    with RewardService(workers=1, timeout_s=60.0) as rewards:
        sampler = sampler_of(members, rewards, step=2)
        follow = sampler.ahead(2)
        begun = {name: begin(lambda name=name: follow.judge(name, follow.draw(name))) for name in members}
        sampler.expect(2, begun)
        first, second = sampler.collect(2), sampler.collect(2)
    assert [len(member.engine.asked) for member in members.values()] == [1, 1]
    assert first.groups.keys() == second.groups.keys() == {"a", "b"}
    assert first.sampling_s.keys() == {"a", "b"}


class LateJudge:
    """A verifier that finds the first response of a group right and has no verdict on the second."""

    def submit(self, items: Sequence[Item]) -> Future[list[Verdict]]:
        future: Future[list[Verdict]] = Future()
        future.set_result([Verdict((VerdictCode.RIGHT, VerdictCode.TIMEOUT)[i % 2]) for i in range(len(items))])
        return future


def test_a_group_with_a_gradient_fills_the_batch_although_a_verdict_is_missing() -> None:
    members = {name: Asked(Oracle(some)) for name in "ab"}
    batches = PromptBatches(PROBLEMS, 4, seed=0)
    sampler = sampler_of(members, LateJudge(), dynamic_sampling=True)
    assert list(sampler.collect(1).trained("a")) == [p.key for p in batches.batch(1)]
    assert members["a"].engine.asked == [[p.key for p in batches.batch(1)]]


def test_the_whole_data_set_is_the_limit_of_sampling_on() -> None:
    members = {"a": Asked(Oracle(lambda _: 2)), "b": Asked(Oracle(lambda _: 1))}
    found = collect(members, dynamic_sampling=True, dynamic_sampling_rounds=50)
    assert set(found.rollouts["a"]) == {p.key for p in PROBLEMS}
