"""The sampling engine and the trainer give the same log-probabilities, at any temperature and with unknown ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from population.trainer import Trainer, TrainerSpec
from population.weights import load_causal_lm
from server.rollouts.embedded import EmbeddedEngine
from server.rollouts.engine import SamplingParams, TokenPrompt
from server.rollouts.tokenizer import MemberTokenizer
from tests.trainer.helpers import FAMILIES, responses


def word_tokenizer(ids: range | list[int]) -> MemberTokenizer:
    words = {f"w{number}": number for number in ids} | {"<bos>": 0, "<end>": 1}
    backend = Tokenizer(WordLevel(words, unk_token="<bos>"))
    return MemberTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token="<end>"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_engine_and_trainer_agree_on_own_samples(models: dict[str, Path], family: str, temperature: float) -> None:
    tokenizer = word_tokenizer([number for number in range(2, 36) if number not in (9, 30)])
    excluded = tuple(np.flatnonzero(~tokenizer.known(tokenizer.id_limit)).tolist())
    assert (tokenizer.id_limit, excluded) == (36, (9, 30))
    spec = TrainerSpec(
        str(models[family]),
        learning_rate=1e-2,
        device="cpu",
        temperature=temperature,
        vocab_limit=tokenizer.id_limit,
        excluded_ids=excluded,
    )
    trainer = Trainer(spec)
    engine = EmbeddedEngine(load_causal_lm(models[family], torch.float32), tokenizer)
    draw = np.random.default_rng(0)
    prompts = [TokenPrompt(key, tuple(draw.integers(10, 30, size).tolist())) for key, size in enumerate((3, 7, 5))]
    for version in (0, 1):
        samples = engine.sample(prompts, SamplingParams(n=4, max_new_tokens=12, temperature=temperature, seed=version))
        pairs = [(np.array(prompts[s.prompt].ids), s.ids) for group in samples for s in group]
        said = [s.logprobs for group in samples for s in group]
        for left, right in zip(trainer.score(pairs), said, strict=True):
            np.testing.assert_allclose(left, right, atol=1e-4)
        if version == 0:
            usable = [r for r in responses(0) if not np.isin(r.response_ids, [*excluded, *range(36, 40)]).any()]
            usable = [r for r in usable if not np.isin(r.prompt_ids, [*excluded, *range(36, 40)]).any()]
            trainer.update(1, [usable])
            assert engine.load_weights(1, trainer.weights()) == trainer.checksum()
    trainer.close()
    engine.close()
