"""From the configuration to the servers of one member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from population.config import ConfigError, RunConfig, parse
from population.placement.site import refuse_unplaced
from population.servers import attached, server_specs
from server.rollouts.sglang_process import ServerSpec

PLACE = Path("/runs/r/sglang/a")


def run_with(servers: dict[str, Any], **rollouts: Any) -> RunConfig:
    return parse(
        {
            "name": "small",
            "method": "grpo",
            "steps": 3,
            "members": [{"name": "a", "model": "demo:qwen3"}],
            "data": {"source": "demo:train", "prompts_per_step": 32},
            "rollouts": {"engine": "sglang", "max_prompt_tokens": 60, "max_response_tokens": 40, "sglang": servers}
            | rollouts,
        }
    )


def specs(
    servers: dict[str, Any], *, on_gpu: bool = True, positions: int | None = None, **rollouts: Any
) -> list[ServerSpec]:
    config = run_with(servers, **rollouts)
    return server_specs(config, config.members[0], PLACE, positions=positions, dtype="bfloat16", on_gpu=on_gpu)


def test_replicas_share_out_the_gpus_and_count_up_from_the_port() -> None:
    first, second = specs({"replicas": 2, "tensor_parallel": 2, "gpus": [4, 5, 6, "GPU-7"], "port": 31000})
    assert (first.gpus, second.gpus) == (("4", "5"), ("6", "GPU-7"))
    assert (first.port, second.port) == (31000, 31001)
    assert (first.folder, second.folder) == (PLACE / "server-0", PLACE / "server-1")
    assert second.name == "member 'a', replica 1"


def test_what_the_section_says_reaches_the_server() -> None:
    (spec,) = specs(
        {"memory_fraction": 0.4, "python": "/opt/py", "flags": {"schedule-policy": "lpm"}, "start_s": 90}, sleep=True
    )
    assert (spec.memory_fraction, spec.python, spec.start_s) == (0.4, "/opt/py", 90)
    assert spec.flags == {"schedule-policy": "lpm"}
    assert (spec.memory_saver, spec.device, spec.dtype, spec.port) == (True, "cuda", "bfloat16", None)


@pytest.mark.parametrize(("positions", "expected"), [(None, 100), (64, 64), (4096, 100)])
def test_the_context_is_what_a_run_can_fill_and_no_longer_than_the_models(positions: int | None, expected: int) -> None:
    assert specs({}, positions=positions)[0].context_length == expected


def test_replicas_without_gpus_by_name_share_out_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert [spec.gpus for spec in specs({"replicas": 2})] == [("2",), ("5",)]
    assert specs({})[0].gpus == ()


def test_several_replicas_need_gpus_by_name_where_none_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(
        ConfigError, match=r"member 'a': 2 replicas would all start on the first GPU; name 2 in rollouts"
    ):
        specs({"replicas": 2})
    assert len(specs({"replicas": 2}, on_gpu=False)) == 2


@pytest.mark.parametrize(
    ("servers", "per_engine", "message"),
    [
        ({"gpus": [0]}, 1, r"Ray chooses the GPUs; leave gpus out"),
        (
            {"tensor_parallel": 2, "replicas": 2},
            2,
            r"take 4 GPU\(s\), .* but cluster.gpus_per_engine is 2; set it to 4",
        ),
        ({}, 0, r"take 1 GPU\(s\), .* but cluster.gpus_per_engine is 0; set it to 1"),
        ({}, 0.5, r"memory_fraction"),
        ({"memory_fraction": 0.4}, 0.5, None),
        ({"replicas": 3}, 3, None),
        ({"urls": ["http://h:1"]}, 0, None),
    ],
)
def test_on_a_cluster_an_engine_gets_the_gpus_of_its_servers(
    servers: dict[str, Any], per_engine: float, message: str | None
) -> None:
    config = run_with(servers)
    cluster = config.cluster.model_copy(update={"gpus_per_rank": 1, "gpus_per_engine": per_engine})
    placed = config.model_copy(update={"cluster": cluster})
    if message is None:
        refuse_unplaced(placed, clustered=True)
    else:
        with pytest.raises(ConfigError, match=message):
            refuse_unplaced(placed, clustered=True)
    refuse_unplaced(placed, clustered=False)


def test_keys_of_running_servers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = run_with({"urls": ["http://h:1", "http://h:2"], "api_key_env": "A_KEY", "admin_key_env": "B_KEY"})
    monkeypatch.setenv("A_KEY", "one")
    monkeypatch.delenv("B_KEY", raising=False)
    with pytest.raises(ConfigError, match="member 'a': the environment variable B_KEY"):
        attached("a", asked.rollouts.sglang)
    monkeypatch.setenv("B_KEY", "two")
    servers = attached("a", asked.rollouts.sglang)
    assert [(server.url, server.api_key, server.admin_key) for server in servers] == [
        ("http://h:1", "one", "two"),
        ("http://h:2", "one", "two"),
    ]
