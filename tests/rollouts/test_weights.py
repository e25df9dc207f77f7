"""Loading weights: whole or not at all, tied ones right, and the version on every sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from server.rollouts.embedded import EmbeddedEngine
from server.rollouts.engine import EngineError, SamplingParams, TokenPrompt, trainable_tensors, weights_checksum
from server.rollouts.tokenizer import MemberTokenizer
from tests.rollouts.conftest import tiny_model

PARAMS = SamplingParams(n=2, max_new_tokens=6)


def moved_weights(family: str) -> dict[str, torch.Tensor]:
    """Weights of another model of the family."""
    torch.manual_seed(11)
    return {name: torch.randn_like(t) * 0.2 for name, t in trainable_tensors(tiny_model(family)).items()}


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
def test_loaded_weights_are_sampled_from_and_have_the_senders_checksum(
    family: str, tokenizer: MemberTokenizer, prompts: list[TokenPrompt]
) -> None:
    engine = EmbeddedEngine(tiny_model(family), tokenizer, weight_version=3)
    before = engine.checksum()
    first = engine.sample(prompts, PARAMS)
    weights = moved_weights(family)
    assert engine.load_weights(4, weights) == weights_checksum(weights) == engine.checksum() != before
    second = engine.sample(prompts, PARAMS)
    assert {s.weight_version for group in first for s in group} == {3}
    assert {s.weight_version for group in second for s in group} == {4}
    fresh = tiny_model(family)
    fresh.load_state_dict(weights, strict=False)
    fresh.tie_weights()
    expected = EmbeddedEngine(fresh, tokenizer).sample(prompts, PARAMS)
    assert [s.ids.tolist() for g in second for s in g] == [s.ids.tolist() for g in expected for s in g]
    assert [s.ids.tolist() for g in second for s in g] != [s.ids.tolist() for g in first for s in g]


def test_a_tied_weight_may_come_under_either_name_or_both(tokenizer: MemberTokenizer) -> None:
    engine = EmbeddedEngine(tiny_model("qwen3"), tokenizer)
    weights = moved_weights("qwen3")
    tied = weights.pop("model.embed_tokens.weight")
    renamed = {**weights, "lm_head.weight": tied}
    assert engine.load_weights(1, renamed) == weights_checksum(renamed)
    both = {**renamed, "model.embed_tokens.weight": tied.clone()}
    assert engine.load_weights(2, both) == weights_checksum(both)
    with pytest.raises(EngineError, match="tied in the model but differ"):
        engine.load_weights(3, {**renamed, "model.embed_tokens.weight": tied + 1})


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("missing", "model.norm.weight missing"),
        ("unknown", "the model has no model.extra"),
        ("shape", r"model.norm.weight has shape \(33,\), the model \(32,\)"),
        ("dtype", "model.norm.weight is torch.bfloat16, the model torch.float32"),
    ],
)
def test_wrong_weights_are_named_and_nothing_is_copied(fault: str, word: str, tokenizer: MemberTokenizer) -> None:
    engine = EmbeddedEngine(tiny_model("llama"), tokenizer)
    before = engine.checksum()
    weights = moved_weights("llama")
    norm = weights.pop("model.norm.weight")
    if fault == "unknown":
        weights |= {"model.norm.weight": norm, "model.extra": norm}
    elif fault == "shape":
        weights["model.norm.weight"] = torch.ones(33)
    elif fault == "dtype":
        weights["model.norm.weight"] = norm.bfloat16()
    with pytest.raises(EngineError, match=word):
        engine.load_weights(9, weights)
    assert engine.checksum() == before
    assert engine.weight_version == 0


def test_sampling_leaves_the_weights_alone(tokenizer: MemberTokenizer, prompts: list[TokenPrompt]) -> None:
    engine = EmbeddedEngine(tiny_model("neox"), tokenizer)
    before = engine.checksum()
    engine.sample(prompts, replace(PARAMS, temperature=0.6))
    assert engine.checksum() == before
