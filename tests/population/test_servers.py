"""From the configuration to the servers of one member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from population.config import ConfigError, RunConfig, parse
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


def test_several_replicas_need_gpus_by_name_where_there_are_gpus() -> None:
    with pytest.raises(
        ConfigError, match=r"member 'a': 2 replicas would all start on the first GPU; name 2 in rollouts"
    ):
        specs({"replicas": 2})
    assert len(specs({"replicas": 2}, on_gpu=False)) == 2


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
