"""Objects in actors: calls, errors, tensors, ranks, and every way of losing one. Slow: each starts processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from population.config import ClusterConfig
from population.errors import LostError, MemberLost, PlacementError
from population.placement import gather, remote, wait
from population.placement.host import opened
from population.placement.ray import Cluster, Room, check_size, connect
from population.placement.remote import Remote
from population.placement.site import Site, environment
from tests.cluster.things import Thing

pytestmark = pytest.mark.slow
PATIENCE_S = 180.0


def rooms(cluster: Cluster, number: int) -> list[Room]:
    return [replace(room, environment=environment(2)) for room in cluster.reserve([{"CPU": 1.0}] * number)]


def result(placed: Remote, method: str, *args: Any) -> Any:
    return wait(placed.call(method, *args), PATIENCE_S, member="ada", phase="test", step=3)


def loss(placed: Remote, future: Any) -> str:
    """The reason of the loss that the future ends with, after which nothing can be asked any more."""
    with pytest.raises(MemberLost) as caught:
        wait(future, PATIENCE_S, member="ada", phase="update", step=3)
    assert (caught.value.member, caught.value.phase, caught.value.step) == ("ada", "update", 3)
    assert isinstance(placed.call("add", 1).exception(PATIENCE_S), LostError)
    placed.kill()
    return caught.value.reason


def test_an_actor_answers_in_order_and_a_failed_call_is_the_calls_own_error(cluster: Cluster) -> None:
    placed = Remote(cluster, rooms(cluster, 1), Thing, 7, threads=2)
    futures = [placed.call("add", value) for value in (1, 2, 3)]
    assert wait(futures[-1], PATIENCE_S, member="ada", phase="add", step=1) == [7, 1, 2, 3]
    assert placed.attributes("calls", "world").result(PATIENCE_S) == {"calls": [7, 1, 2, 3], "world": 1}
    where = result(placed, "where")
    assert where == {"pid": placed.pids[0], "threads": 2, "OMP_NUM_THREADS": "2", "LOCAL_RANK": "0"}
    assert where["pid"] != os.getpid()
    with pytest.raises(PlacementError, match="member ada, test of step 3: 'disk on fire'") as caught:
        result(placed, "fail")
    assert not isinstance(caught.value, LostError | MemberLost)
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    assert "in fail" in cause.__notes__[0]
    assert result(placed, "total", np.ones(100_000)) == (100_000.0, False)
    assert placed.close(PATIENCE_S)
    with pytest.raises(PlacementError, match="closed"):
        placed.call("add", 1)


def test_tensors_go_from_actor_to_actor_and_home_bit_for_bit(cluster: Cluster) -> None:
    first, second = (Remote(cluster, [room], Thing) for room in rooms(cluster, 2))
    sent = result(first, "weights")
    assert result(second, "check", sent)
    here = opened(sent, cluster.ray.get)
    assert Thing().check(here)
    assert result(second, "check", here)
    first.kill()
    second.kill()


def test_an_object_that_cannot_be_built_fails_every_call_with_its_own_error(cluster: Cluster) -> None:
    placed = Remote(cluster, rooms(cluster, 1), Thing, -1)
    for future in (placed.ready, placed.call("add", 1)):
        with pytest.raises(PlacementError, match="member ada, load: start is negative"):
            wait(future, PATIENCE_S, member="ada", phase="load", step=None)
    assert placed.close(PATIENCE_S)


def test_ranks_form_a_group_and_a_call_that_one_fails_alone_ends_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RANK_GRACE_S", 1.0)
    placed = Remote(cluster, rooms(cluster, 2), Thing, 5, name="the trainer of ada")
    assert result(placed, "add", 4) == [5, 4]
    assert result(placed, "total", np.ones(100_000)) == (200_001.0, False)
    assert len(set(placed.pids)) == 2
    with pytest.raises(PlacementError, match="disk on fire") as caught:
        result(placed, "fail")
    assert isinstance(caught.value.__cause__, KeyError)
    assert result(placed, "add", 1) == [5, 4, 1]
    reason = loss(placed, placed.call("fail_alone"))
    assert reason.startswith("rank 1 of the trainer of ada: failed where others did not: 'disk on fire'")


def test_a_killed_rank_fails_the_call_and_ends_the_others(cluster: Cluster) -> None:
    placed = Remote(cluster, rooms(cluster, 2), Thing, name="the trainer of ada")
    placed.ready.result(PATIENCE_S)
    hanging = placed.call("hang")
    os.kill(placed.pids[1], signal.SIGKILL)
    assert "of the trainer of ada: " in loss(placed, hanging)
    for pid in placed.pids:
        with pytest.raises(ProcessLookupError):
            wait_for_end(pid)


def wait_for_end(pid: int) -> None:
    """Returns only if the process outlives the deadline."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        time.sleep(0.1)


def test_the_end_of_a_lost_actors_log_is_in_the_error(cluster: Cluster) -> None:
    placed = Remote(cluster, rooms(cluster, 1), Thing, name="the engine of ada")
    assert loss(placed, placed.call("say_and_die")).endswith("; it last said: out of cheese")


def test_an_actor_that_stopped_answering_counts_as_lost(cluster: Cluster) -> None:
    placed = Remote(cluster, rooms(cluster, 1), Thing, name="the engine of ada")
    placed.ready.result(PATIENCE_S)
    os.kill(placed.pids[0], signal.SIGSTOP)
    # Impatient only now: while it lives, a slow machine has all the time it needs to answer.
    placed._cluster = placed._pulse._cluster = replace(
        cluster, settings=ClusterConfig(heartbeat_s=0.1, heartbeat_deadline_s=3)
    )
    assert loss(placed, placed.call("add", 1)).startswith("the engine of ada: no heartbeat within 3 s")


def test_work_that_waits_for_room_says_what_it_asks_for(cluster: Cluster) -> None:
    hurried = replace(cluster, settings=ClusterConfig(start_s=0.5))
    placed = Remote(hurried, rooms(cluster, 40), Thing, name="the trainer of ada")
    reason = loss(placed, placed.ready)
    assert reason.startswith("no room within cluster.start_s = 0.5 s for 1 CPU; 1 CPU; ")
    assert "free on the cluster: " in reason


def test_the_room_of_a_member_that_left_can_be_had_by_others(cluster: Cluster) -> None:
    def free() -> float:
        return float(cluster.ray.available_resources().get("CPU", 0.0))

    whole = free()
    first, second = rooms(cluster, 2)
    site = Site(2, cluster, [first], [second])
    placed = site.trainer("ada", Thing)
    placed.ready.result(PATIENCE_S)
    placed.kill()
    assert free() <= whole - 2
    site.release()
    deadline = time.monotonic() + PATIENCE_S
    while free() < whole:
        assert time.monotonic() < deadline, f"{free()} of {whole} CPUs are free"
        time.sleep(0.1)


def test_a_part_of_a_gpu_is_the_same_one_after_a_restart(cluster: Cluster) -> None:
    reserved = [replace(room, environment=environment(2)) for room in cluster.reserve([{"CPU": 1.0, "GPU": 0.25}] * 2)]
    names = []
    for room in (*reserved, reserved[0]):
        placed = Remote(cluster, [room], Thing)
        placed.ready.result(PATIENCE_S)
        names.append(placed.gpus)
        placed.kill()
    assert len(names[0]) == 1
    assert names == [names[0]] * 3
    assert names[0][0].startswith("gpu 0 of ")
    cluster.release(reserved[0])


def test_a_cluster_that_is_too_small_is_refused_with_both_sizes(cluster: Cluster) -> None:
    with pytest.raises(PlacementError, match=r"asks for 500 CPU, 1 fpga; the cluster has 16 CPU, 0 fpga: start more"):
        check_size(cluster.ray, {"CPU": 500, "fpga": 1})
    with (
        pytest.raises(PlacementError, match="connected to a Ray cluster already"),
        connect("auto", cluster.settings, {}),
    ):
        pass


def test_killing_ends_what_is_owed_and_what_is_starting(cluster: Cluster) -> None:
    placed = {name: Remote(cluster, rooms(cluster, 1), Thing, name=name) for name in ("a", "b")}
    placed["a"].ready.result(PATIENCE_S)
    # The second one is still starting, or on a busy machine may have started by now.
    owed = {name: actor.call("hang") for name, actor in placed.items()}
    for actor in placed.values():
        actor.kill()
    for name, future in owed.items():
        with pytest.raises(MemberLost, match=f"member {name}, sample of step 2: "):
            gather({name: future}, PATIENCE_S, phase="sample", step=2)
