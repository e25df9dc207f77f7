"""The shipped configurations of the paper carry its table 3 to the digit, and every overlay fits every pair."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from graft.methods import METHODS
from population.cli import app
from population.config import RunConfig, as_dict, differences, load
from population.data.presets import PRESETS
from population.grading import reward_service
from population.plan import Plan
from population.run import forecast

PAPER, OVERLAYS = Path("configs/paper"), Path("configs/overlays")
PAIRS = {
    "pair_1": ["HuggingFaceTB/SmolLM3-3B-Base", "Qwen/Qwen3-1.7B-Base"],
    "pair_2": ["OctoThinker/OctoThinker-3B-Hybrid-Base", "Qwen/Qwen3-1.7B-Base"],
    "pair_3": ["HuggingFaceTB/SmolLM3-3B-Base", "OctoThinker/OctoThinker-3B-Hybrid-Base"],
}
EVERY = sorted(path.stem for path in PAPER.glob("*.yaml"))


@pytest.fixture(autouse=True)
def _no_data_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFT_DATA", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def planned(config: RunConfig) -> Plan:
    with reward_service(config.rewards) as rewards:
        return forecast(config, rewards, {})


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_has_the_values_of_table_3(name: str) -> None:
    config = load(PAPER / f"{name}.yaml")
    assert [member.model for member in config.members] == PAIRS[name]
    rollouts, update, exchange = config.rollouts, config.update, config.exchange
    assert (config.epochs, config.data.source, config.data.prompts_per_step) == (3, "preset:math-train", 128)
    assert (rollouts.rollouts_per_prompt, rollouts.temperature, rollouts.top_p) == (8, 1.0, 1.0)
    assert (rollouts.max_prompt_tokens, rollouts.max_response_tokens) == (2048, 4096)
    assert (update.prompts_per_minibatch, update.learning_rate, update.warmup_steps) == (32, 1e-6, 0)
    assert (update.betas, update.weight_decay, update.max_grad_norm) == ((0.9, 0.999), 0.01, 1.0)
    assert (update.clip_low, update.clip_high, update.aggregation) == (0.2, 0.28, "token-mean")
    assert (update.kl_coefficient, update.dtype) == (0.0, "bfloat16")
    assert (config.method, exchange.floor, exchange.normaliser, exchange.holdout) == ("graft", 0.8, "own", 0.0)
    assert (exchange.ties, exchange.min_successes, exchange.max_peer_share) == (True, 1, None)


@pytest.mark.parametrize("name", PAIRS)
def test_evaluation_is_the_papers(name: str) -> None:
    evaluation = load(PAPER / f"{name}.yaml").evaluation
    assert (evaluation.every_steps, evaluation.repeats, evaluation.best.rule, evaluation.best.split) == (
        5, 5, "mean", "test",
    )  # fmt: skip
    assert [(b.name, b.responses_per_prompt, b.temperature, b.top_p, b.limit) for b in evaluation.benchmarks] == [
        (name, 8, 0.6, 0.95, None) for name in ("MATH500", "AIME2024", "AIME2025", "AMC23", "Minerva")
    ]
    assert [PRESETS[b.source.removeprefix("preset:")].rows for b in evaluation.benchmarks] == [500, 30, 30, 40, 272]


@pytest.mark.parametrize("name", PAIRS)
def test_the_plan_gives_the_papers_numbers_before_any_data_is_here(name: str) -> None:
    plan = planned(load(PAPER / f"{name}.yaml"))
    assert (plan.problems, plan.samples_per_member, plan.updates_per_member) == (7500, 1024, 4)
    assert (plan.steps_per_epoch, plan.steps) == (58, 174)
    assert plan.evaluation_samples == 2 * 8 * (500 + 30 + 30 + 40 + 272)
    assert len(plan.published) == 6


def test_pairs_differ_in_their_members_alone() -> None:
    first = as_dict(load(PAPER / "pair_1.yaml"))
    for name in ("pair_2", "pair_3"):
        assert differences(first, as_dict(load(PAPER / f"{name}.yaml"))) == ["members", "name"]


@pytest.mark.parametrize("name", EVERY)
def test_every_shipped_setting_can_be_planned(name: str) -> None:
    result = CliRunner().invoke(app, ["plan", str(PAPER / f"{name}.yaml")])
    assert result.exit_code == 0, result.output
    for text in ("128 x 8 = 1,024", "128 / 32 = 4", "174 (58 an epoch, 3.00 epochs)"):
        assert text in result.output


def test_a_recorded_partner_samples_nothing() -> None:
    plan = planned(load(PAPER / "stored_pair_1.yaml"))
    assert (plan.samples, plan.rollouts_total) == (1024, 1024 * 174)


def test_every_method_has_an_overlay_of_its_name() -> None:
    assert sorted(path.stem for path in OVERLAYS.glob("*.yaml")) == sorted(METHODS)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("base", ["configs/paper/pair_1.yaml", "configs/demo.yaml"])
def test_every_overlay_makes_its_row_of_a_base(method: str, base: str) -> None:
    if method == "stored":
        base = "configs/paper/stored_pair_1.yaml"
    size = [] if "paper" in base or method != "hacpo" else ["update.prompts_per_minibatch=8"]
    config = load(base, size, [OVERLAYS / f"{method}.yaml"])
    assert config.method == method
    if method == "hacpo" and "paper" in base:
        assert (config.update.prompts_per_minibatch, config.update.kl_coefficient) == (64, 1e-3)
        assert (config.update.clip_low, config.update.clip_high) == (3e-4, 4e-4)
    if "paper" in base:
        assert planned(config).samples_per_member == 128 * {"grpo-16": 16, "grpo-32": 32}.get(method, 8)
