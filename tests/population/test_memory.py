"""The memory estimate: worked out by hand for a model of known sizes, and the change that makes a run fit."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from population.config import RunConfig, load
from population.errors import ConfigError
from population.machine import Machine, gpu_memory_of
from population.memory import (
    GIB,
    RESERVE,
    Decoder,
    decoder,
    device_needs,
    engine_footprint,
    first_change_that_fits,
    trainer_footprint,
)
from population.plan import MemberPlan, make_plan
from population.plan_report import print_memory, print_plan

# The published sizes of the paper's first pair.
QWEN3 = {
    "model_type": "qwen3", "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936, "hidden_act": "silu",
}  # fmt: skip
SMOLLM3 = {
    "model_type": "smollm3", "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 11008, "vocab_size": 128256, "hidden_act": "silu",
}  # fmt: skip
B = 10**9


def pair(*overrides: str) -> RunConfig:
    return load("configs/paper/pair_1.yaml", overrides)


def models() -> dict[str, Decoder]:
    found = {"smollm3": decoder(SMOLLM3, 3 * B), "qwen3": decoder(QWEN3, 2 * B)}
    return {name: model for name, model in found.items() if model is not None}


def test_a_bfloat16_trainer_holds_weights_float32_master_weights_and_moments() -> None:
    config = pair()
    footprint = trainer_footprint(config, config.members[1], models()["qwen3"])
    assert footprint.held == {"weights": 4 * B, "optimiser": 24 * B}
    assert footprint.training["gradients"] == 12 * B  # float32 sums and one bfloat16 gradient


@pytest.mark.parametrize(
    ("stage", "ranks", "weights", "optimiser", "gradients"),
    [(2, 4, 4 * B, 6 * B, 6 * B), (3, 4, 1 * B, 6 * B, 3 * B)],
)
def test_ranks_share_what_their_stage_shards(
    stage: int, ranks: int, weights: int, optimiser: int, gradients: int
) -> None:
    config = pair(f"update.zero_stage={stage}", f"update.ranks={ranks}")
    footprint = trainer_footprint(config, config.members[1], models()["qwen3"])
    assert footprint.held == {"weights": weights, "optimiser": optimiser}
    assert footprint.training["gradients"] == gradients


def test_activations_are_what_a_decoder_layer_keeps_for_each_token() -> None:
    config = pair("update.gradient_checkpointing=false", "update.max_tokens_per_pack=1000")
    # Two norms in float32 and bfloat16, query and key norms, q k v and the attention's result, four inner values.
    layer = 2 * 10 * 2048 + 3 * 2 * (2048 + 1024) + 4 * 2 * 2048 + 4 * 2 * 6144
    found = trainer_footprint(config, config.members[1], models()["qwen3"]).training["activations"]
    assert found == 28 * 1000 * layer + 3 * 1000 * 2048 * 2
    config = pair("update.max_tokens_per_pack=1000")
    found = trainer_footprint(config, config.members[1], models()["qwen3"]).training["activations"]
    assert found == 1000 * layer + 28 * 1000 * 2048 * 2 + 3 * 1000 * 2048 * 2


def test_adapters_have_the_only_gradients_and_optimiser_states() -> None:
    config = pair("update.lora={rank: 16}")
    footprint = trainer_footprint(config, config.members[1], models()["qwen3"])
    per_layer = 2 * (2048 + 2048) + 2 * (2048 + 1024) + 3 * (2048 + 6144)
    assert footprint.held["optimiser"] == 12 * 16 * 28 * per_layer
    assert footprint.held["weights"] == 4 * B


def test_a_cache_is_keys_and_values_of_all_rows_at_full_length() -> None:
    config = pair("rollouts.max_batch_rows=64")
    footprint = engine_footprint(config, config.members[1], models()["qwen3"], None)
    assert footprint.engine == {"engine weights": 4 * B}
    assert footprint.sampling == {"KV cache": 2 * 64 * 6144 * 28 * 8 * 128 * 2}


def test_one_shared_device_holds_everybody_and_the_work_of_one() -> None:
    config = pair("rollouts.max_batch_rows=1")
    (need,) = device_needs(config, models(), cluster=False)
    assert need.when == "smollm3 trains"
    assert need.parts["smollm3 optimiser"] == 36 * B
    assert need.parts["qwen3 optimiser"] == 24 * B
    assert "smollm3 gradients" in need.parts
    assert "qwen3 gradients" not in need.parts
    assert "smollm3 engine weights" in need.parts


def test_a_sleeping_engine_gives_its_memory_to_its_own_trainer() -> None:
    awake = device_needs(pair("rollouts.max_batch_rows=1"), models(), cluster=False)[0]
    asleep = device_needs(pair("rollouts.max_batch_rows=1", "rollouts.sleep=true"), models(), cluster=False)[0]
    assert awake.total - asleep.total == 6 * B


def test_a_server_takes_the_share_of_memory_that_it_is_given_however_little_it_needs() -> None:
    config = pair("rollouts.engine=sglang", "rollouts.sglang.memory_fraction=0.5")
    for memory, taken in ((200 * B, 100 * B), (10 * B, None), (None, None)):
        footprint = engine_footprint(config, config.members[1], models()["qwen3"], memory)
        needed = 4 * B + 2 * 16 * 6144 * 28 * 8 * 128 * 2
        assert sum(footprint.engine.values()) == (taken or needed)


def test_servers_with_gpus_of_their_own_leave_the_trainers_gpu_to_the_trainers() -> None:
    config = pair("rollouts.engine=sglang")
    one, two = ({"gpus": [1, 2], "tensor_parallel": 2}, {"gpus": [3]})
    for member, servers in zip(config.members, (one, two), strict=True):
        config = with_servers(config, member.name, servers)
    trainers, first, second = device_needs(config, models(), cluster=False)
    assert (trainers.name, first.name, first.count, second.name) == ("GPU 0", "GPU 1, 2", 2, "GPU 3")
    assert not any("engine" in part for part in trainers.parts)
    assert (
        first.parts[f"{config.members[0].name} engine weights"] * 2 == models()[config.members[0].name].parameters * 2
    )
    assert set(second.parts) == {f"{config.members[1].name} {part}" for part in ("engine weights", "KV cache")}


def with_servers(config: RunConfig, name: str, servers: dict[str, Any]) -> RunConfig:
    tree = config.model_dump(exclude_unset=True)
    for member in tree["members"]:
        if member["name"] == name:
            member["sglang"] = servers
    return RunConfig.model_validate(tree)


def test_on_a_cluster_ranks_and_engines_have_devices_of_their_own() -> None:
    config = pair("update.ranks=4", "cluster.gpus_per_rank=1", "cluster.gpus_per_engine=1")
    needs = {need.name: need for need in device_needs(config, models(), cluster=True)}
    assert set(needs) == {f"{m}, {part}" for m in ("smollm3", "qwen3") for part in ("a trainer's rank", "an engine")}
    assert needs["qwen3, a trainer's rank"].count == 4
    assert not any("engine" in part for part in needs["qwen3, a trainer's rank"].parts)


@pytest.mark.parametrize(("gib", "expected"), [(141, None), (80, "update.offload_optimizer"), (4, None)])
def test_the_change_named_is_the_first_that_fits(gib: int, expected: str | None) -> None:
    config = pair("rollouts.max_batch_rows=16")
    needs = device_needs(config, models(), cluster=False)
    fits = all(need.fits(gib * GIB) for need in needs)
    change = first_change_that_fits(config, models(), gib * GIB, cluster=False)
    if gib == 141:
        assert fits
    elif expected is None:
        assert not fits
        assert change is None
    else:
        assert not fits
        assert change is not None
        assert expected in change[0]
        assert all(need.total + RESERVE <= gib * GIB for need in change[1])


def test_every_change_that_is_named_can_be_written_into_the_configuration(tmp_path: Path) -> None:
    config = pair("update.gradient_checkpointing=false", "update.max_tokens_per_pack=16384")
    for gib in range(20, 400, 20):
        change = first_change_that_fits(config, models(), gib * GIB, cluster=False)
        if change is not None:
            overlay = tmp_path / f"{gib}.yaml"
            settings: dict[str, Any] = {}
            for key, value in yaml.safe_load("{" + change[0] + "}").items():
                section, name = key.split(".")
                settings.setdefault(section, {})[name] = value
            overlay.write_text(yaml.safe_dump(settings))
            changed = load("configs/paper/pair_1.yaml", (), [overlay])
            assert all(need.fits(gib * GIB) for need in device_needs(changed, models(), cluster=False))


def test_a_plan_that_does_not_fit_says_so_and_what_would() -> None:
    config, sizes = pair("rollouts.max_batch_rows=16"), models()
    plan = make_plan(config, 7500, {b.name: 30 for b in config.evaluation.benchmarks}, {})
    members = tuple(MemberPlan(m.name, m.model, sizes[m.name].parameters, sizes[m.name]) for m in config.members)
    console = Console(record=True, width=200, file=io.StringIO())
    known = replace(plan, members=members)
    assert print_memory(console, config, known, 300 * GIB)
    assert not print_memory(console, config, known, 80 * GIB)
    text = console.export_text()
    assert "Does not fit into 80.0 GiB: it fits with" in text
    assert "update.offload_optimizer: true" in text


@pytest.mark.parametrize(("device", "shown"), [("cuda", True), ("cpu", False)])
def test_a_plan_says_in_which_order_members_take_turns_at_a_gpu_that_they_share(device: str, shown: bool) -> None:
    config, sizes = pair(f"update.device={device}"), models()
    plan = make_plan(config, 7500, {b.name: 30 for b in config.evaluation.benchmarks}, {})
    members = tuple(MemberPlan(m.name, m.model, sizes[m.name].parameters, sizes[m.name]) for m in config.members)
    console = Console(record=True, width=200, file=io.StringIO())
    print_plan(console, config, replace(plan, members=members))
    assert ("smollm3 -> qwen3" in console.export_text()) is shown


def test_a_server_that_would_take_most_of_a_shared_gpu_is_refused() -> None:
    config = pair("rollouts.engine=sglang")
    plan = make_plan(config, 7500, {b.name: 30 for b in config.evaluation.benchmarks}, {})
    sizes = models()
    members = tuple(MemberPlan(m.name, m.model, sizes[m.name].parameters, sizes[m.name]) for m in config.members)
    with pytest.raises(ConfigError, match=r"set rollouts\.sglang\.memory_fraction"):
        print_memory(Console(file=io.StringIO()), config, replace(plan, members=members), 300 * GIB)


def test_the_smallest_gpu_counts_and_none_is_not_zero(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 81559\necho 24576\n")
    program.chmod(0o755)
    assert gpu_memory_of(Machine(which=lambda name: str(program))) == 24576 * 2**20
    assert gpu_memory_of(Machine(which=lambda name: None)) is None


@pytest.mark.parametrize(
    ("overlay", "cluster", "gib"), [("one_node", True, 80), ("two_nodes", True, 80), ("one_gpu", False, 140)]
)
def test_the_shipped_gpu_overlays_fit_the_papers_first_pair_into_what_they_name(
    overlay: str, cluster: bool, gib: int
) -> None:
    config = load("configs/paper/pair_1.yaml", (), [f"configs/gpu/{overlay}.yaml"])
    needs = device_needs(config, models(), cluster, gib * GIB)
    assert all(need.fits(gib * GIB) for need in needs), [(need.name, need.total / GIB) for need in needs]
    if cluster:
        gpus = sum(need.count * min(need.share, 1) for need in needs)
        assert gpus == {"one_node": 8, "two_nodes": 16}[overlay]
