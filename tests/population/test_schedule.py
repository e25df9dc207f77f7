"""Who works when: nobody waits for others but at routing, and those that share a device take turns."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from population import devices
from population.config import parse
from population.devices import (
    Devices,
    Expected,
    Line,
    devices_of,
    first_turns,
    longest_turn_s,
    placed,
    turn_order,
)
from population.errors import PlacementError
from population.run import export_members
from server.store.reader import open_reader
from tests.population.small_run import STEPS, Sabotage, carried_out, record, settings, small_run

PATIENCE_S = 60.0


def test_the_longest_verification_goes_first_then_the_largest_model_then_as_given() -> None:
    expected = {"a": Expected(0, 5), "b": Expected(2, 1), "c": Expected(3, 1), "d": Expected(0, 9), "e": Expected(0, 5)}
    assert turn_order(expected) == ["c", "b", "d", "a", "e"]


def test_turns_come_in_the_order_of_the_line_and_a_place_given_up_holds_nobody_back() -> None:
    line, order = Line("gpu 0", PATIENCE_S), list[str]()
    turns = {name: line.join(name) for name in "abcd"}

    def work(name: str) -> None:
        with turns[name]:
            order.append(name)

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in "dca"]
    for thread in threads:
        thread.start()
    turns["b"].leave()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert order == ["a", "c", "d"]


def test_a_turn_that_never_ends_is_named_and_one_that_does_begins_the_next_ones_time_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(devices, "time", SimpleNamespace(monotonic=lambda: now[0]))
    line = Line("gpu 0", PATIENCE_S)
    first, second, third = (line.join(name) for name in "abc")
    now[0] = PATIENCE_S
    message = "member c, waiting for its turn at gpu 0: member a has had it for 60 s, longer than the deadlines"
    with pytest.raises(PlacementError, match=message):
        line.wait_for(third)
    first.leave()
    threading.Timer(0.05, second.leave).start()
    line.wait_for(third)


def test_the_longest_turn_covers_every_deadline_of_what_is_done_in_it(tmp_path: Path) -> None:
    config = settings(tmp_path)
    limits = config.deadlines
    whole = limits.update_s + limits.sync_s + limits.sample_s + limits.evaluate_s + limits.exchange_s
    assert longest_turn_s(config) > len(config.trained) * (1 + config.cluster.max_restarts) * whole


def test_a_member_samples_the_next_batch_while_another_one_still_trains(tmp_path: Path) -> None:
    went_on = threading.Event()
    counts: dict[tuple[str, str], int] = {}

    def see(member: str, part: str, method: str) -> None:
        counts[member, method] = counts.get((member, method), 0) + 1
        # a's second training batch: the first sample call was its evaluation.
        if (member, method, counts[member, method]) == ("a", "sample", 3):
            went_on.set()
        if (member, method, counts[member, method]) == ("c", "update", 1):
            assert went_on.wait(PATIENCE_S), "nobody went on while c was at its update"

    config = settings(tmp_path)
    with small_run(config, Sabotage(see=see)) as (coordinator, first):
        coordinator.run(first, 2, lambda report: None)
    assert went_on.is_set()


@pytest.mark.parametrize("sleep", [False, True])
def test_members_on_one_device_keep_it_from_their_update_to_their_last_sample(tmp_path: Path, sleep: bool) -> None:
    calls: list[tuple[str, str]] = []

    def see(member: str, part: str, method: str) -> None:
        if method in ("update", "load_weights", "sample", "sleep"):
            calls.append((member, method))

    shared: dict[str, str | None] = dict.fromkeys("abc", "gpu 0")
    config = settings(tmp_path, rollouts={"sleep": sleep}, evaluation={"benchmarks": []})
    with small_run(config, Sabotage(see=see), devices=Devices(shared, shared, 1)) as (coordinator, first):
        reports: list[Any] = []
        coordinator.run(first, 3, reports.append)
    assert reports[0].gpus == 1
    turn = ["update", "load_weights", "sample", "sleep"] if sleep else ["update", "load_weights", "sample"]
    begins = next(i for i, (_, method) in enumerate(calls) if method == "update")
    # Two steps go on to a next one, in turns of three members each.
    for number in range(6):
        own = calls[begins + number * len(turn) : begins + (number + 1) * len(turn)]
        assert [method for _, method in own] == turn
        assert len({member for member, _ in own}) == 1
    assert [method for _, method in calls[begins + 6 * len(turn) :]] == (
        ["update"] * 3 if sleep else ["update", "load_weights"] * 3
    )


def test_where_and_when_members_work_changes_nothing_of_the_record(tmp_path: Path) -> None:
    shared: dict[str, str | None] = dict.fromkeys("abc", "gpu 0")
    free, _, _ = carried_out(tmp_path / "free")
    turns, _, _ = carried_out(tmp_path / "turns", devices=Devices(shared, shared, 1), rollouts={"sleep": True})
    assert turns == free


def test_a_run_can_be_resumed_after_any_checkpoint_and_is_the_run_without_a_stop(tmp_path: Path) -> None:
    whole, _, _ = carried_out(tmp_path / "whole", evaluation={"every_steps": 2})
    config = settings(tmp_path / "parts", evaluation={"every_steps": 2})
    with small_run(config, Sabotage()) as (coordinator, first):
        coordinator.run(first, 4, lambda report: None)
    with small_run(config, Sabotage(), resume=True) as (coordinator, first):
        assert first == 5
        coordinator.run(first, STEPS, lambda report: None)
        export_members(coordinator, tmp_path / "parts" / "small")
    with open_reader(config.store_url) as reader:
        resumed = record(reader, "small", tmp_path / "parts")
    assert resumed == whole


def on(engine: str, cluster: bool = False, gpu: bool = True, **changes: Any) -> Devices:
    tree = {
        "name": "r", "steps": 1, "method": "graft",
        "members": [{"name": name, "model": "m", **changes.get(name, {})} for name in "abc"],
        "data": {"source": "d", "prompts_per_step": 32}, "rollouts": {"engine": engine},
        "cluster": changes.get("asked", {}),
    }  # fmt: skip
    return devices_of(parse(tree), on_gpu=gpu, clustered=cluster)


def test_on_a_cpu_nobody_waits_for_a_device() -> None:
    found = on("embedded", gpu=False)
    assert set(found.trainer.values()) == set(found.engine.values()) == {None}
    assert found.gpus == 0


def test_in_one_process_all_share_its_gpu() -> None:
    found = on("embedded")
    assert set(found.trainer.values()) == set(found.engine.values()) == {"gpu 0"}
    assert (found.gpus, found.shared("a")) == (1, True)


def test_servers_share_what_their_gpus_overlap_in() -> None:
    found = on(
        "sglang",
        a={"sglang": {"gpus": [1, 2], "replicas": 2}}, b={"sglang": {"gpus": [2, 3], "tensor_parallel": 2}},
        c={"sglang": {"urls": ["http://h:30000"]}},
    )  # fmt: skip
    assert set(found.trainer.values()) == {"gpu 0"}
    assert found.engine == {"a": "gpu 1", "b": "gpu 1", "c": None}
    assert (found.gpus, found.shared("a")) == (4, False)
    apart = on("sglang", a={"sglang": {"gpus": [0]}}, b={"sglang": {"gpus": [1]}}, c={"sglang": {"gpus": [2]}})
    assert apart.engine == {"a": "gpu 0", "b": None, "c": None}
    assert (apart.shared("a"), apart.shared("b")) == (True, False)


def given(**gpus: tuple[str, str]) -> Devices:
    """Devices of members on a cluster, whose trainer and engine were given these GPUs, by their letters."""
    parts = {name: [SimpleNamespace(gpus=tuple(own)) for own in pair] for name, pair in gpus.items()}
    members = {name: SimpleNamespace(name=name, trainer=pair[0], engine=pair[1]) for name, pair in parts.items()}
    return placed(cast(Any, members))


def test_on_a_cluster_those_take_turns_that_ray_put_on_one_gpu() -> None:
    alone = given(a=("xy", "z"), b=("u", "v"))
    assert set(alone.trainer.values()) == set(alone.engine.values()) == {None}
    assert alone.gpus == 5
    own = given(a=("x", "x"), b=("y", "y"), c=("", ""))
    assert set(own.trainer.values()) == set(own.engine.values()) == {None}
    assert own.gpus == 2
    met = given(a=("x", "z"), b=("x", "y"), c=("w", "y"))
    assert met.trainer == {"a": "x", "b": "x", "c": None}
    assert met.engine == {"a": None, "b": "y", "c": "y"}
    assert not met.shared("b")
    ranks = given(a=("xy", "x"), b=("y", "z"))
    assert ranks.trainer == {"a": "x", "b": "x"}
    assert ranks.engine == {"a": "x", "b": None}
    assert (ranks.shared("a"), ranks.gpus) == (True, 3)


def test_the_order_of_first_turns_is_known_before_the_run_for_every_shared_device() -> None:
    sizes = {"a": 1, "b": 3, "c": 2}
    assert first_turns(on("embedded"), sizes) == {"gpu 0": ["b", "c", "a"]}
    assert first_turns(on("embedded", gpu=False), sizes) == {}
    apart = on("sglang", a={"sglang": {"gpus": [1]}}, b={"sglang": {"gpus": [1]}}, c={"sglang": {"gpus": [2]}})
    assert first_turns(apart, sizes) == {"gpu 0": ["b", "c", "a"], "gpu 1": ["b", "a"]}


def test_on_a_cluster_every_actor_has_what_it_asked_for() -> None:
    found = on("embedded", cluster=True, asked={"gpus_per_rank": 1, "gpus_per_engine": 1})
    assert set(found.trainer.values()) == {None}
    assert found.gpus == 6
