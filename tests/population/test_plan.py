"""The derived numbers of a plan, against the paper's and against real models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from typer.testing import CliRunner

from population.cli import app
from population.config import RunConfig, parse
from population.plan import MemberPlan, estimated_parameters, make_plan, member_plan, stored_parameters


def paper(**changes: object) -> RunConfig:
    """The paper's setting (table 3) for a pair."""
    return parse(
        {
            "name": "pair",
            "epochs": 3,
            "members": [{"name": "a", "model": "x/a"}, {"name": "b", "model": "x/b"}],
            "data": {"source": "demo:train", "prompts_per_step": 128},
            **changes,
        }
    )


def test_the_papers_setting_gives_the_papers_numbers() -> None:
    plan = make_plan(paper(), 7500, {}, {})
    assert (plan.samples_per_member, plan.samples) == (1024, 2048)
    assert plan.updates_per_member == 4
    assert (plan.steps_per_epoch, plan.steps) == (58, 174)
    assert plan.rollouts_total == 2048 * 174
    assert plan.response_tokens_at_most == 2048 * 4096


def test_a_method_without_a_floor_is_planned_without_one_and_dynamic_sampling_with_its_further_batches() -> None:
    assert make_plan(paper(), 7500, {}, {}).floor == 0.8
    assert [make_plan(paper(method=name), 7500, {}, {}).floor for name in ("graft-no-gate", "hacpo", "sgt")] == [
        None
    ] * 3
    assert make_plan(paper(method="grpo-dynamic"), 7500, {}, {}).response_tokens_at_most == 5 * 2048 * 4096


def test_evaluations_are_counted_at_the_start_every_k_steps_and_at_the_end() -> None:
    benchmark = {"name": "h", "source": "demo:heldout", "responses_per_prompt": 8}
    config = paper(epochs=None, steps=12, evaluation={"every_steps": 5, "benchmarks": [benchmark]})
    plan = make_plan(config, 7500, {"h": 360}, {})
    assert plan.evaluations == 4  # steps 0, 5, 10, 12
    assert plan.evaluation_samples == 360 * 8 * 2
    assert (plan.repeats, plan.repeat_samples) == (5, 360 * 8 * 2)


def test_the_best_checkpoints_are_evaluated_again_on_the_test_benchmarks_alone() -> None:
    tests = {"name": "tests", "source": "demo:heldout"}
    select = {"name": "select", "source": "demo:heldout", "role": "validation", "responses_per_prompt": 4}
    sizes = {"tests": 300, "select": 60}
    plan = make_plan(paper(evaluation={"benchmarks": [tests, select], "repeats": 3}), 7500, sizes, {})
    assert plan.evaluation_samples == (300 * 8 + 60 * 4) * 2
    assert (plan.repeats, plan.repeat_samples) == (3, 300 * 8 * 2)
    assert make_plan(paper(evaluation={"benchmarks": [select]}), 7500, sizes, {}).repeats == 0


MODELS = {
    "qwen3": {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "tie_word_embeddings": True,
    },
    "llama": {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 48,
        "tie_word_embeddings": False,
    },
    "gpt_neox": {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("family", MODELS)
def test_parameters_are_read_from_the_weights_and_estimated_close_without_them(family: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(family, **MODELS[family])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    count = sum(p.numel() for p in model.parameters())
    assert stored_parameters(tmp_path) == count
    assert estimated_parameters(json.loads((tmp_path / "config.json").read_text())) == pytest.approx(count, rel=0.06)


def test_a_nested_configuration_is_read_and_an_unknown_one_has_no_made_up_memory(tmp_path: Path) -> None:
    config = paper()
    (tmp_path / "config.json").write_text(json.dumps({"text_config": MODELS["llama"]}))
    nested = member_plan(config.members[0], tmp_path)
    assert nested.parameters == estimated_parameters(MODELS["llama"])
    (tmp_path / "config.json").write_text(json.dumps({"width": 3}))
    unknown = member_plan(config.members[0], tmp_path)
    assert (unknown.parameters, unknown.decoder) == (None, None)


def test_a_model_that_is_not_here_yet_has_no_made_up_size() -> None:
    config = paper()
    assert member_plan(config.members[0], None).parameters is None


def test_a_recorded_member_needs_no_memory_and_samples_nothing() -> None:
    recorded = {"name": "old", "source": {"store": "sqlite:///runs/graft.db", "run": "UID", "member": "qwen3"}}
    members = [{"name": "smollm3", "model": "HuggingFaceTB/SmolLM3-3B-Base"}, recorded]
    plan = make_plan(paper(method="stored", members=members), 7500, {}, {})
    assert plan.members[1] == MemberPlan("old", "qwen3 of run UID", None, None, recorded=True)
    assert plan.samples == plan.samples_per_member == 1024


def test_the_command_prints_the_derived_numbers() -> None:
    done = CliRunner().invoke(app, ["plan", "configs/demo.yaml"])
    assert done.exit_code == 0
    for text in ("32 x 8 = 256", "768", "32 / 8 = 4", "72 (24 an epoch, 3.00 epochs)", "55,296", "circulation"):
        assert text in done.stdout
