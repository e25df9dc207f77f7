"""A decoder is used only where it reproduces the model's own forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from server.rollouts import probing
from server.rollouts.decoders import CachedDecoder, RowDecoder, UncachedDecoder
from server.rollouts.embedded import EmbeddedEngine
from server.rollouts.engine import EngineError
from server.rollouts.probing import probe
from server.rollouts.tokenizer import MemberTokenizer
from tests.rollouts.conftest import tiny_model

KNOWN = list(range(40))


class WrongDecoder(RowDecoder):
    """Off by one position from the second token on, as a cache with wrong positions would be."""

    def start(self, *arguments: Any) -> torch.Tensor:
        logits = super().start(*arguments)
        self._positions += 1
        return logits


class WrongCachedDecoder(CachedDecoder):
    """Forgets which places are padding."""

    def start(self, *arguments: Any) -> torch.Tensor:
        logits = super().start(*arguments)
        self._mask = torch.ones_like(self._mask)
        return logits


class WrongUncachedDecoder(UncachedDecoder):
    """Always adds to one logit."""

    def _forward(self) -> torch.Tensor:
        logits = super()._forward()
        logits[:, 5] += 1
        return logits


def test_plain_attention_models_use_the_in_place_cache() -> None:
    paths = probe(tiny_model("llama"), KNOWN)
    assert paths.decoder(1_000_000) is RowDecoder
    assert paths.notes == ()


def test_rows_longer_than_the_attention_window_use_the_models_own_cache() -> None:
    paths = probe(tiny_model("gemma2"), KNOWN)
    assert paths.decoder(16) is RowDecoder
    assert paths.decoder(17) is CachedDecoder
    assert paths.notes == ()


def test_a_model_without_position_ids_uses_its_own_cache_and_says_so() -> None:
    paths = probe(tiny_model("bloom"), KNOWN)
    assert paths.decoder(5) is CachedDecoder
    assert "BloomForCausalLM" in paths.notes[0]


@pytest.mark.parametrize("spread", [0.2, 0.001])
def test_wrong_decoders_are_found_even_in_a_model_with_tiny_weights(
    spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama", initializer_range=spread)
    monkeypatch.setattr(probing, "RowDecoder", WrongDecoder)
    paths = probe(model, KNOWN)
    assert paths.decoder(5) is CachedDecoder
    assert "off by up to" in paths.notes[0]
    monkeypatch.setattr(probing, "CachedDecoder", WrongCachedDecoder)
    paths = probe(model, KNOWN)
    assert paths.decoder(5) is UncachedDecoder
    assert "full forward" in paths.notes[0]


def test_a_model_that_no_decoder_reproduces_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, wrong in (
        ("RowDecoder", WrongDecoder),
        ("CachedDecoder", WrongCachedDecoder),
        ("UncachedDecoder", WrongUncachedDecoder),
    ):
        monkeypatch.setattr(probing, name, wrong)
    with pytest.raises(EngineError, match="LlamaForCausalLM cannot be sampled in batches"):
        probe(tiny_model("llama"), KNOWN)


def test_the_probe_leaves_the_model_as_it_was(tokenizer: MemberTokenizer) -> None:
    model = tiny_model("qwen3")
    before = {name: t.clone() for name, t in model.state_dict().items()}
    engine = EmbeddedEngine(model, tokenizer)
    assert engine.notes == ()
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert not model.training
