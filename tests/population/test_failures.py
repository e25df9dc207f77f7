"""What was lost on the way costs time and nothing else; a dropped member is missing; a stop says why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from population.errors import MemberLost, PlacementError
from population.failures import Failures
from population.run import export_members
from server.store.reader import open_reader
from tests.population.small_run import STEPS, Loss, Sabotage, carried_out, record, settings, small_run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found, told, _ = carried_out(tmp_path_factory.mktemp("undisturbed"))
    assert told == []
    return found


# Of a: evaluations are sample calls 1, 5 and 9, the steps' own calls 2 to 4 and 6 to 8. Checkpoints are saved after
# steps 2, 4 and 6; the weights are kept as the best after some evaluations, and exported at the end.
MOMENTS = [
    (Loss("a", "engine", "sample", 1), 0, "engine lost in evaluate: .*; restarted, samples drawn again"),
    (Loss("a", "engine", "sample", 4, "after"), 3, "engine lost in sample: .*; restarted, samples drawn again"),
    (Loss("a", "engine", "sample", 6), 4, "engine lost in sample: .*; restarted, samples drawn again"),
    (Loss("b", "engine", "load_weights", 1), 0, "engine lost in sync: .*; restarted, weights sent again"),
    (Loss("b", "engine", "load_weights", 4, "after"), 3, "engine lost in sync: .*; restarted, weights sent again"),
    (Loss("c", "trainer", "score", 4), None, "trainer lost in exchange: .*; restarted, loaded as of step .*"),
    (Loss("c", "trainer", "update", 1), 1, "trainer lost in update: .*; restarted, loaded as of step 0, 0 update.*"),
    (Loss("c", "trainer", "update", 2, "after"), 2, "trainer lost in update: .*, loaded as of step 0, 1 update.*"),
    (Loss("c", "trainer", "update", 4), 4, "trainer lost in update: .*, loaded as of step 2, 1 update.*"),
    (Loss("c", "trainer", "update", 5, "after"), 5, "trainer lost in update: .*, loaded as of step 4, 0 update.*"),
    (Loss("a", "trainer", "weights", 6), 5, "trainer lost in sync: .*, loaded as of step 4, 1 update.*"),
    (Loss("a", "trainer", "checksum", 2, "after"), 1, "trainer lost in sync: .*, loaded as of step 0, 1 update.*"),
    (Loss("b", "trainer", "save", 1), 2, "trainer lost in checkpoint: .*, loaded as of step 0, 2 update.*"),
    (Loss("b", "trainer", "save", 2, "after"), 4, "trainer lost in checkpoint: .*, loaded as of step 2, 2 update.*"),
    (Loss("b", "trainer", "export", 1), 3, "trainer lost in keep the best: .*, loaded as of step 2, 1 update.*"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "step", "message"), MOMENTS)
def test_a_part_that_is_lost_at_any_moment_leaves_the_record_of_the_undisturbed_run(
    undisturbed: dict[str, Any], tmp_path: Path, loss: Loss, step: int | None, message: str
) -> None:
    found, told, _ = carried_out(tmp_path, loss)
    for key in undisturbed:
        assert found[key] == undisturbed[key], key
    ((member, at, text),) = told
    assert member == loss.member
    assert step in (None, at)
    assert re.fullmatch(message, text), text


def test_losses_on_top_of_losses_are_mended_too(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    """Both parts of one member at once, a trainer again while it repeats its updates, and two members in one step."""
    losses = [
        Loss("a", "trainer", "update", 2), Loss("a", "trainer", "update", 3), Loss("a", "engine", "load_weights", 3),
        Loss("b", "engine", "sample", 7), Loss("b", "trainer", "weights", 6), Loss("c", "trainer", "update", 5),
    ]  # fmt: skip
    config, sabotage = settings(tmp_path), Sabotage(losses)
    with small_run(config, sabotage) as (coordinator, first):
        coordinator.run(first, STEPS, lambda report: None)
        export_members(coordinator, tmp_path / "small")
    assert {id(loss) for loss in sabotage.done} == {id(loss) for loss in losses}
    with open_reader(config.store_url) as reader:
        assert record(reader, "small", tmp_path) == undisturbed


def test_an_engine_that_is_lost_as_it_falls_asleep_sleeps_after_all(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    losses = [Loss("a", "engine", "sleep", 1), Loss("b", "engine", "sleep", 3, "after")]
    found, told, _ = carried_out(tmp_path, *losses, rollouts={"sleep": True})
    assert found == undisturbed
    assert [text.split(":")[0] for _, _, text in told] == ["engine lost in sleep"] * 2


def test_a_call_that_is_not_answered_in_time_ends_the_part_and_is_made_again(
    undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    hang = Loss("a", "trainer", "save", 2, "hangs")
    # A slow machine may miss this deadline in other saves too, which is as good.
    changes = {"deadlines": {"checkpoint_s": 1.0}, "cluster": {"max_restarts": 1000}}
    found, told, _ = carried_out(tmp_path, hang, **changes)
    assert found == undisturbed
    assert any(text.startswith("trainer lost in checkpoint: no answer within the deadline") for _, _, text in told)


def test_batches_are_kept_from_a_checkpoint_to_the_next_and_only_where_a_trainer_can_be_restarted(
    tmp_path: Path,
) -> None:
    config = settings(tmp_path, members=[{"name": "a", "model": "m"}, {"name": "b", "model": "m", "failure": "stop"}])
    kept: list[list[int]] = []

    def since(failures: Failures, name: str) -> list[int]:
        return [step for step, _ in failures._updates[name].since]

    with small_run(config, Sabotage()) as (coordinator, first):
        coordinator.run(first, 5, lambda report: kept.append(since(coordinator.failures, "a")))
        assert since(coordinator.failures, "b") == []
    # The last step is saved whatever its number.
    assert kept == [[1], [], [3], [], []]


def test_a_member_is_restarted_so_often_and_then_the_run_stops_with_all_reasons(tmp_path: Path) -> None:
    losses = [Loss("a", "engine", "sample", nth) for nth in (2, 3, 4)]
    config = settings(tmp_path, cluster={"max_restarts": 2})
    with (
        small_run(config, Sabotage(losses)) as (coordinator, first),
        pytest.raises(
            MemberLost, match=r"member a, sample of step 1: restarted 2 times.*1\. engine lost.*3\. engine"
        ) as e,
    ):
        coordinator.run(first, STEPS, lambda report: None)
    assert "--resume" in str(e.value)


def test_a_policy_of_stop_ends_the_run_naming_member_phase_and_step(tmp_path: Path) -> None:
    config = settings(tmp_path, cluster={"failure": "stop"})
    with (
        small_run(config, Sabotage([Loss("b", "trainer", "update", 3)])) as (coordinator, first),
        pytest.raises(PlacementError, match="member b, update of step 3: its process is gone"),
    ):
        coordinator.run(first, STEPS, lambda report: None)


# What c is lost in, the first step without it, and whether its last step has an update.
DROPS = [
    (Loss("c", "engine", "sample", 3), 2),
    (Loss("c", "trainer", "score", 2), None),
    (Loss("c", "trainer", "update", 3), 4),
    (Loss("c", "engine", "load_weights", 4), 4),
    (Loss("c", "trainer", "save", 1), 3),
    (Loss("c", "engine", "sample", 5), 4),
]


@pytest.mark.parametrize(("loss", "since"), DROPS)
def test_a_dropped_member_is_missing_from_then_on_and_the_rest_goes_on(
    tmp_path: Path, loss: Loss, since: int | None
) -> None:
    members = [{"name": "a", "model": "m"}, {"name": "b", "model": "m"}, {"name": "c", "model": "m", "failure": "drop"}]
    config, sabotage = settings(tmp_path, members=members), Sabotage([loss])
    with small_run(config, sabotage) as (coordinator, first):
        members_at_first = cast(Any, coordinator.members.copy())
        coordinator.run(first, STEPS, lambda report: None)
        export_members(coordinator, tmp_path / "small")
        found = coordinator.dropped["c"]
        assert list(coordinator.members) == ["a", "b"]
        assert {name: member.room for name, member in members_at_first.items()} == {"a": True, "b": True, "c": False}
    assert since in (None, found)
    with open_reader(config.store_url) as reader:
        for step in range(1, STEPS + 1):
            there = {name for name, own in reader.group_counts("small", step).items() if own}
            assert there == ({"a", "b", "c"} if step < found else {"a", "b"})
            assert all("c" not in (t.receiver, t.source) for t in reader.step_transfers("small", step)) or step < found
        steps, _, asked = reader.metric_series("small", "response_tokens", 1, STEPS)
        for column, counted in zip(steps, asked[:, 2], strict=True):
            assert bool(counted > 0) == (column < found)
        for source in "abc":
            at, _, used = reader.metric_series("small", f"edge_rate/{source}", found, STEPS)
            rates = dict(zip("abc", np.nansum(used, axis=0), strict=True)) if len(at) else {}
            assert not [member for member, count in rates.items() if count > 0 and "c" in (source, member)]
        assert any(f"dropped from step {found} on" in event.message for event in reader.events("small"))
        assert {e.member for e in reader.evaluations("small") if e.step == STEPS} == {"a", "b"}
    assert sorted(path.name for path in (tmp_path / "small" / "members").iterdir()) == ["a", "b"]


def test_a_run_goes_on_without_a_member_that_was_dropped_before_its_checkpoint(tmp_path: Path) -> None:
    members = [{"name": "a", "model": "m"}, {"name": "b", "model": "m"}, {"name": "c", "model": "m", "failure": "drop"}]
    loss = Loss("c", "trainer", "update", 2)
    whole, parts = settings(tmp_path / "whole", members=members), settings(tmp_path / "parts", members=members)
    with small_run(whole, Sabotage([loss])) as (coordinator, first):
        coordinator.run(first, STEPS, lambda report: None)
    with small_run(parts, Sabotage([loss])) as (coordinator, first):
        coordinator.run(first, 3, lambda report: None)
    with small_run(parts, Sabotage(), resume=True) as (coordinator, first):
        assert (first, list(coordinator.members), coordinator.dropped) == (4, ["a", "b"], {"c": 3})
        coordinator.run(first, STEPS, lambda report: None)
    with open_reader(whole.store_url) as one, open_reader(parts.store_url) as other:
        expected = record(one, "small", tmp_path / "whole")
        assert record(other, "small", tmp_path / "parts") == expected


def test_a_run_that_loses_the_last_member_it_needs_stops_and_says_so(tmp_path: Path) -> None:
    members = [{"name": name, "model": "m"} for name in "ab"]
    config = settings(tmp_path, members=members, cluster={"failure": "drop"})
    with (
        small_run(config, Sabotage([Loss("b", "trainer", "update", 2)])) as (coordinator, first),
        pytest.raises(MemberLost, match=r"member b, .*method graft needs two members: mend .*--resume"),
    ):
        coordinator.run(first, STEPS, lambda report: None)
