"""The section about SGLang servers: what it refuses, and how a member's own keys lie over it."""

from __future__ import annotations

from typing import Any

import pytest

from population.config import ConfigError, RunConfig, as_dict, digest, parse


def run_with(
    servers: dict[str, Any], first: dict[str, Any] | None = None, second: dict[str, Any] | None = None
) -> RunConfig:
    members: list[dict[str, Any]] = [{"name": "a", "model": "demo:qwen3"}, {"name": "b", "model": "demo:llama"}]
    for member, own in zip(members, (first, second), strict=True):
        if own is not None:
            member["sglang"] = own
    return parse(
        {
            "name": "small",
            "steps": 3,
            "members": members,
            "data": {"source": "demo:train", "prompts_per_step": 32},
            "rollouts": {"engine": "sglang", "sglang": servers},
        }
    )


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ({"flags": {"model-path": "/m"}}, "model-path: the run sets this flag itself; set members"),
        ({"flags": {"--tp": 2}}, "--tp: the run sets this flag itself; set rollouts.sglang.tensor_parallel"),
        ({"flags": {"mem_fraction_static": 0.5}}, "set rollouts.sglang.memory_fraction"),
        ({"flags": {"api-key": "x"}}, "set urls and api_key_env"),
        ({"flags": {"random-seed": 1}}, "would draw the same samples"),
        ({"flags": {"a b": 1}}, "'a b' is no flag's name"),
        ({"flags": {"a-b": 1, "a_b": 2}}, "a_b: is given twice"),
        ({"urls": ["10.0.0.1:30000"]}, "is no server's address"),
        ({"urls": ["http://h:1", "http://h:1"]}, "an address is given twice"),
        ({"urls": ["http://h:1"], "replicas": 2}, "replicas: says how servers are started, but urls names running"),
        ({"api_key_env": "KEY"}, "keys of started servers are made for each run"),
        ({"urls": ["http://h:1"], "api_key_env": "sk-0123"}, "must be the name of an environment variable"),
        ({"gpus": [0], "replicas": 2}, "gpus: names 1, but replicas x tensor_parallel x data_parallel is 2"),
        ({"gpus": [1, 1], "replicas": 2}, "gpus: one is named twice"),
        ({"memory_fraction": 1.5}, "rollouts.sglang.memory_fraction: Input should be less than 1"),
        ({"replica": 2}, "unknown key 'rollouts.sglang.replica'; did you mean 'replicas'?"),
        ({"port": 30000}, "127.0.0.1:30000 would serve both 'a' and 'b'"),
        ({"urls": ["http://h:1"]}, "http://h:1 would serve both 'a' and 'b'"),
    ],
)
def test_what_cannot_hold_is_refused_in_one_line(servers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_with(servers)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_given_in_the_place_of_a_variables_name_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        run_with({"urls": ["http://h:1"], "admin_key_env": "sk-secret"})
    assert "sk-secret" not in str(caught.value)


def test_a_members_keys_lie_over_the_section_and_its_flags_over_the_flags() -> None:
    run = run_with(
        {"replicas": 2, "start_s": 60, "flags": {"attention_backend": "fa3", "schedule-policy": "lpm"}},
        {"replicas": 1, "flags": {"--attention-backend": "triton"}},
    )
    first, second = (run.servers_of(member) for member in run.members)
    assert (first.replicas, second.replicas) == (1, 2)
    assert first.start_s == second.start_s == 60
    assert first.flags == {"attention-backend": "triton", "schedule-policy": "lpm"}
    assert second.flags == {"attention-backend": "fa3", "schedule-policy": "lpm"}


def test_a_member_may_name_its_servers_where_the_others_are_started() -> None:
    run = run_with({"replicas": 2, "flags": {"schedule-policy": "lpm"}, "max_in_flight": 8}, {"urls": ["http://h:1/"]})
    first, second = (run.servers_of(member) for member in run.members)
    assert first.urls == ("http://h:1",)
    assert (first.replicas, first.flags, first.max_in_flight) == (1, {}, 8)
    assert (second.urls, second.replicas) == ((), 2)


def test_keys_that_do_not_fit_together_name_the_member() -> None:
    with pytest.raises(ConfigError, match=r"members: 'b': sglang over rollouts.sglang: gpus: names 1, but"):
        run_with({"replicas": 2}, {}, {"gpus": [3]})


def test_a_recorded_configuration_reads_back_as_what_it_was() -> None:
    run = run_with({"replicas": 2, "gpus": [0, 1]}, {"replicas": 1, "gpus": ["GPU-3f"]}, {"urls": ["http://h:1"]})
    again = parse(as_dict(run))
    assert as_dict(again) == as_dict(run)
    assert [again.servers_of(member) for member in again.members] == [run.servers_of(member) for member in run.members]


def test_where_servers_run_is_free_to_a_resumed_run_and_what_they_compute_is_not() -> None:
    base = digest(as_dict(run_with({})))
    assert digest(as_dict(run_with({"gpus": [4, 5], "replicas": 2}, {"python": "/opt/sglang/bin/python"}))) == base
    assert digest(as_dict(run_with({"flags": {"kv-cache-dtype": "fp8_e5m2"}}))) != base
    assert digest(as_dict(run_with({}, {"flags": {"kv-cache-dtype": "fp8_e5m2"}}))) != base
