"""A recorded member gives what it said then, and a record that does not fit is refused before anything is trained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from population.config import RecordedSource, RolloutConfig
from population.errors import MemberError
from population.prompts import PromptBatches
from population.recorded import RecordedMember, Visits, check_tokenizer, open_recorded
from server.store.connections import locate
from server.store.records import StoreError
from tests.population.recorded_runs import PROBLEMS, Recorder, batches, configuration

STEPS = 6
FOUR = RolloutConfig(rollouts_per_prompt=4)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    """Three members, 6 steps of 20 prompts in the order of seed 3."""
    return Recorder(configuration(), tmp_path_factory.mktemp("recorded")).write(STEPS)


def source(made: Recorder, /, **keys: Any) -> RecordedSource:
    return RecordedSource(**{"store": made.url, "run": made.uid, "member": "b", **keys})


def opened(
    made: Recorder,
    /,
    order: PromptBatches | None = None,
    steps: int = STEPS,
    rollouts: RolloutConfig = FOUR,
    **keys: Any,
) -> RecordedMember:
    return open_recorded("old", source(made, **keys), order or batches(3), steps, rollouts)


@pytest.fixture
def member(recorded: Recorder) -> Iterator[RecordedMember]:
    found = opened(recorded)
    yield found
    found.close()


def test_the_groups_of_a_step_are_those_recorded_under_the_members_new_name(
    recorded: Recorder, member: RecordedMember
) -> None:
    batch = [problem.key for problem in batches(3).batch(2)]
    groups = member.groups(2, batch)
    written = {group.prompt: group for group in recorded.steps[1].groups if group.member == "b"}
    assert list(groups) == batch
    for prompt, group in groups.items():
        assert (group.member, group.prompt) == ("old", prompt)
        for one, other in zip(group.responses, written[prompt].responses, strict=True):
            assert (one.text, one.reward, one.finish, one.weight_version) == (
                other.text,
                other.reward,
                other.finish,
                other.weight_version,
            )
            np.testing.assert_array_equal(one.token_ids, other.token_ids)
            np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_the_member_is_described_as_recorded_with_its_tokenizer(recorded: Recorder, member: RecordedMember) -> None:
    assert member.described.model == f"recorded:{recorded.url}#run/b"
    assert (member.described.name, member.fingerprint) == ("old", "sha of b")


@pytest.mark.parametrize(("step", "there"), [(1, 2), (2, 2), (4, 2), (5, 5), (6, 5), (9, 9), (20, 9)])
def test_matched_by_prompt_the_newest_visit_so_far_counts_else_the_oldest(step: int, there: int) -> None:
    assert Visits(7, (2, 5, 9)).at(step, "prompt") == there
    assert Visits(7, (2, 5, 9)).at(step, "step") == (step if step in (2, 5, 9) else None)


def test_matched_by_prompt_another_order_and_other_problems_are_fine(recorded: Recorder) -> None:
    more = PromptBatches([*PROBLEMS, replace(PROBLEMS[0], key=1, prompt="never asked?")], 20, seed=8)
    member = opened(recorded, more, steps=40, match="prompt")
    asked: dict[int, list[int]] = {}
    for step in recorded.steps:
        for prompt in step.prompts:
            asked.setdefault(prompt.key, []).append(step.step)
    for step in (1, 3, 6, 17):
        batch = [problem.key for problem in more.batch(step)]
        groups = member.groups(step, batch)
        assert set(groups) == set(batch) & set(asked)
        for prompt, group in groups.items():
            there = max((s for s in asked[prompt] if s <= step), default=min(asked[prompt]))
            written = next(g for g in recorded.steps[there - 1].groups if (g.member, g.prompt) == ("b", prompt))
            assert [r.text for r in group.responses] == [r.text for r in written.responses]
    member.close()


def test_the_same_problems_from_another_file_are_the_same_problems(recorded: Recorder) -> None:
    moved = [
        replace(p, key=int(hashlib.sha256(p.prompt.encode()).hexdigest()[:12], 16), dataset="elsewhere")
        for p in PROBLEMS
    ]
    member = opened(recorded, PromptBatches(moved, 20, 3))
    original = opened(recorded)
    here, there = PromptBatches(moved, 20, 3).batch(4), batches(3).batch(4)
    found, same = member.groups(4, [p.key for p in here]), original.groups(4, [p.key for p in there])
    assert [g.prompt for g in found.values()] == [p.key for p in here]
    assert [[r.text for r in g.responses] for g in found.values()] == [
        [r.text for r in g.responses] for g in same.values()
    ]
    member.close()
    original.close()


@pytest.mark.parametrize(
    ("keys", "order", "steps", "rollouts", "said"),
    [
        ({"member": "z"}, batches(3), 6, FOUR, "run run has no member 'z'; it has a, b, c"),
        ({}, batches(3), 7, FOUR, "is recorded to step 6, here 7 are needed; lower steps, or set members.old.source"),
        ({}, batches(4), 6, FOUR, "asked other prompts in step 1: its seed was 3 and it took 20 a step; use its seed"),
        ({}, batches(3), 6, RolloutConfig(), "recorded 4 responses per prompt, here they are 8"),
        (
            {},
            batches(3),
            6,
            RolloutConfig(rollouts_per_prompt=4, temperature=0.7),
            "was sampled at temperature 1, here it is 0.7",
        ),
        (
            {},
            PromptBatches([replace(p, key=-p.key, answer="other") for p in PROBLEMS[:-9]] + PROBLEMS[-9:], 20, 3),
            6,
            FOUR,
            "never asked 'problem 1",
        ),
        (
            {"match": "prompt"},
            PromptBatches([replace(p, key=-p.key, prompt="new") for p in PROBLEMS], 20, 3),
            6,
            FOUR,
            "met none of the 30 problems of this run",
        ),
    ],
)
def test_a_record_that_does_not_fit_is_refused_with_the_reason(
    recorded: Recorder, keys: dict[str, Any], order: PromptBatches, steps: int, rollouts: RolloutConfig, said: str
) -> None:
    with pytest.raises(MemberError, match=f"^member 'old': .*{said}"):
        opened(recorded, order, steps, rollouts, **keys)


def test_a_missing_store_run_or_shard_is_named(tmp_path: Path) -> None:
    run = Recorder(configuration(), tmp_path).write(3)
    with pytest.raises(StoreError, match=r"absent\.db does not exist"):
        opened(run, steps=3, store=str(tmp_path / "absent.db"))
    with pytest.raises(StoreError, match="no run 'other'; the newest are: run"):
        opened(run, steps=3, run="other")
    shard = next((locate(run.url).trajectories / "run").glob("step_000003_b_*"))
    opened(run, steps=2).close()
    shard.unlink()
    opened(run, steps=2).close()
    with pytest.raises(StoreError, match=f"{shard.name} is missing"):
        opened(run, steps=3)


def test_another_tokenizer_than_the_named_models_is_refused(member: RecordedMember) -> None:
    check_tokenizer(member, "models/b", "sha of b")
    with pytest.raises(MemberError, match=r"recorded 'b' \(models/b\) with another tokenizer than that of models/q"):
        check_tokenizer(member, "models/q", "sha of q")
