"""Weights by group: the engine's side of it, and that nothing is sampled before the sender has proved them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from server.rollouts import sglang_weights
from server.rollouts.engine import EngineError, WeightsLost, weights_checksum
from server.rollouts.sglang_control import Bucket
from tests.sglang.setting import EMBEDDING, NORM, PARAMS, PROMPTS, Setting, flipped, weights

BUCKETS = [Bucket((EMBEDDING,), ("float32",), ((40, 8),)), Bucket((NORM,), ("float32",), ((8,),))]
GROUP = ("weights-1", "127.0.0.1", 31999, "gloo")


def by_group(setting: Setting, version: int) -> Any:
    """The engine's part of a sync by group, up to what is to be proved."""
    for server in setting.servers:
        server.broadcast = weights(version)
    return setting.engine.receive(version, BUCKETS)


def test_weights_by_group_are_sampled_once_they_are_confirmed(tmp_path: Path) -> None:
    setting = Setting(tmp_path, servers=2)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    assert setting.engine.group_place().ranks == 2
    asked = setting.asked_by(lambda: by_group(setting, 2))
    assert asked == [
        "/pause_generation",
        "/begin_weight_update",
        *["/update_weights_from_distributed"] * 2,
        "/end_weight_update",
        "/flush_cache",
        "/weights_checker",
    ]
    setting.refuses_to_sample("has received weights that are not yet proved")
    held = by_group(setting, 2)
    for one in held:
        assert sglang_weights.prove(one, weights(2), None) == ""
    setting.engine.confirm(2, weights_checksum(weights(2)), held)
    assert setting.engine.checksum() == weights_checksum(weights(2))
    setting.samples(2)


def test_a_bit_that_flips_on_the_wire_is_found_by_the_sender_and_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    setting.server.wire = flipped
    (held,) = by_group(setting, 2)
    with pytest.raises(EngineError, match=f"{NORM} differ") as caught:
        sglang_weights.prove(held, weights(2), None)
    setting.engine.refuse(str(caught.value))
    setting.refuses_to_sample(f"{NORM} differ")
    assert setting.server.paused
    assert setting.engine.drain_events() == (str(caught.value),)
    setting.server.wire = dict
    setting.sync(2)
    setting.samples(2)


def test_weights_by_group_that_cannot_be_compared_by_name_are_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    setting.server.wire = lambda held: {f"other.{name}": tensor for name, tensor in held.items()}
    setting.server.weights = {}
    (held,) = by_group(setting, 2)
    with pytest.raises(EngineError, match=r"a sync by group cannot be proved; use rollouts.sync: disk"):
        sglang_weights.prove(held, weights(2), None)


@pytest.mark.parametrize(
    "route",
    [
        "/pause_generation",
        "/begin_weight_update",
        "/update_weights_from_distributed",
        "/end_weight_update",
        "/weights_checker",
    ],
)
@pytest.mark.parametrize("fault", ["err_end_without_begin", httpx.ReadTimeout, httpx.ReadError])
def test_a_sync_by_group_that_fails_anywhere_needs_whole_weights_from_a_folder(
    tmp_path: Path, route: str, fault: Any
) -> None:
    setting = Setting(tmp_path, servers=2)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    setting.servers[1].fail(route, fault)
    with pytest.raises(EngineError):
        by_group(setting, 2)
    setting.refuses_to_sample("proved right")
    with pytest.raises(EngineError, match="proved right"):
        setting.engine.confirm(2, "", [])
    assert not any(server.groups for server in setting.servers)
    setting.sync(3)
    setting.samples(3)


def test_a_sleeping_engine_is_woken_by_group_in_order(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    setting.engine.sleep()
    held = by_group(setting, 2)
    setting.engine.confirm(2, weights_checksum(weights(2)), held)
    assert setting.server.asked[-3:] == ["/resume_memory_occupation", "/flush_cache", "/continue_generation"]
    setting.samples(2)


def test_a_server_that_dies_after_a_sync_by_group_needs_its_weights_again(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    setting.engine.confirm(2, weights_checksum(weights(2)), by_group(setting, 2))
    setting.server.die("/generate")
    with pytest.raises(WeightsLost, match="its weights came by group, so that no folder has them"):
        setting.engine.sample(PROMPTS, PARAMS)
    assert setting.server.restarts == [(setting.model, "default")]
    setting.refuses_to_sample("came by group")
    setting.sync(2)
    setting.samples(2)


def test_data_parallel_copies_are_refused_a_group(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.engine._units[0].facts = setting.engine._units[0].facts.__class__("0.5.23", "cuda", 1, 2, False)
    with pytest.raises(EngineError, match=r"2 data-parallel copies; .* use replicas in place of data_parallel"):
        setting.engine.group_place()
