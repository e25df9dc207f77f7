"""What a run asks of a cluster, decided before there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from population.config import ConfigError, RunConfig, course, differences, load
from population.config.run import as_dict
from population.placement.ray import begun_here, together
from population.placement.site import decided, environment, member_parts, refuse_unplaced, verifier_parts

DEMO = "configs/demo.yaml"


def config(*settings: str) -> RunConfig:
    return load(DEMO, settings)


def test_a_member_asks_for_each_rank_and_for_its_engine() -> None:
    settings = config(
        "update.ranks=2",
        "cluster.gpus_per_rank=1",
        "cluster.cpus_per_rank=4",
        "cluster.gpus_per_engine=0.5",
        "cluster.resources={fast: 1}",
        "cluster.verifiers=2",
        "rewards.workers=3",
    )
    rank = {"CPU": 4.0, "GPU": 1.0, "fast": 1.0}
    assert member_parts(settings) == [rank, rank, {"CPU": 1.0, "GPU": 0.5, "fast": 1.0}]
    assert verifier_parts(settings) == [{"CPU": 3.0}] * 2
    assert together(member_parts(settings)) == {"CPU": 9.0, "GPU": 2.5, "fast": 3.0}
    assert member_parts(config()) == [{"CPU": 1.0}, {"CPU": 1.0}]


def test_every_actor_is_told_its_threads_before_torch_is_imported() -> None:
    assert environment(3)["OMP_NUM_THREADS"] == "3"
    assert environment(3)["LOCAL_RANK"] == "0"


def test_what_actors_read_leaves_nothing_to_the_machine_that_the_run_was_started_on() -> None:
    assert decided(config()).update.device == "cpu"
    assert decided(config("cluster.gpus_per_rank=1")).update.device == "cuda"
    assert decided(config("update.device=cpu", "cluster.gpus_per_rank=1")).update.device == "cpu"
    assert decided(config("folder=runs")).folder == Path("runs").absolute()


@pytest.mark.parametrize(
    ("settings", "clustered", "message"),
    [
        (["update.ranks=2"], False, "update.ranks: 2 ranks of a trainer need a process each; add --cluster auto"),
        (["cluster.gpus_per_rank=1"], True, "cluster.gpus_per_engine: 0 with gpus_per_rank = 1"),
        (
            ["rollouts.engine=sglang", "cluster.gpus_per_rank=0.5", "cluster.gpus_per_engine=0.5"],
            True,
            "gets 0.5 of a GPU and would take most of its memory",
        ),
    ],
)
def test_parts_without_a_place_are_refused_before_any_work(settings: list[str], clustered: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_unplaced(config(*settings), clustered=clustered)
    refuse_unplaced(config("update.ranks=2"), clustered=True)
    refuse_unplaced(config(), clustered=False)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cluster.gpus_per_rank=1.5", "whole number"),
        ("cluster.heartbeat_deadline_s=5", "leaves no time for a heartbeat every 10 s"),
        ("cluster.failure=retry", "cluster.failure"),
        ("cluster.hearbeat_s=5", "heartbeat_s"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(setting)


def test_a_resumed_run_may_change_where_it_runs_but_not_its_ranks() -> None:
    first: dict[str, Any] = course(as_dict(config()))
    moved = config("cluster.gpus_per_rank=1", "cluster.failure=drop", "members.llama.failure=stop")
    assert differences(first, course(as_dict(moved))) == []
    assert differences(first, course(as_dict(config("update.ranks=2")))) == ["update.ranks"]


def test_a_postgresql_store_is_accepted_beside_a_cluster() -> None:
    url = "postgresql://graft@db.example/graft"
    assert config(f"store={url}", "update.ranks=2").store_url == url


def test_auto_takes_what_ray_start_began_and_no_other_runs_own_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert begun_here() is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert begun_here() == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert begun_here() == "10.0.0.2:6379"


def test_without_ray_the_reason_and_the_remedy_are_one_line(tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from population.cli import app; app()"
    command = [sys.executable, "-c", code, "train", DEMO, "--quiet", "--cluster", "auto"]
    settings = ["data.prompts_per_step=8", "update.prompts_per_minibatch=4", f"folder={tmp_path}"]
    for setting in settings:
        command += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "error: --cluster needs Ray, which is not installed here: pip install 'graft-population[cluster]'\n"
    )
