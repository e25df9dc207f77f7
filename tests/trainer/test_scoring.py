"""Log-probabilities equal the model's own, on every path; the probe takes a short cut only where it does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from population.head import HeadOptions
from population.packing import micro_batches
from population.scoring import LogpModel, UnsupportedModel, probe, score, silence_dropout, token_logprobs
from population.weights import load_causal_lm
from tests.trainer.helpers import FAMILIES, SIZES, TrainingResponse, reference_logprobs, responses, roughened

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1}


def scored(model: LogpModel, batch: list[TrainingResponse], layout: Any, share: int, budget: int) -> np.ndarray:
    pairs = [response.pair for response in batch]
    found = score(model, micro_batches(pairs, layout=layout, max_tokens=budget, share_tokens=share), CPU)
    return np.concatenate([found[item] for item in range(len(pairs))])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_every_path_gives_the_log_probabilities_of_single_sequences(
    models: dict[str, Path], family: str, temperature: float
) -> None:
    hf = load_causal_lm(models[family], torch.float32)
    batch = responses(0)
    with torch.no_grad():
        expected = torch.cat([reference_logprobs(hf, response, temperature) for response in batch]).numpy()
    for chunked_head in (True, False):
        model = LogpModel(hf, HeadOptions(5, temperature), chunked_head=chunked_head)
        for layout, share, budget in (("packed", 0, 60), ("rows", 0, 60), ("rows", 30, 60), ("rows", 500, 5000)):
            np.testing.assert_allclose(scored(model, batch, layout, share, budget), expected, atol=1e-5)


def test_ids_beyond_the_vocabulary_limit_are_outside_the_softmax(models: dict[str, Path]) -> None:
    hf = load_causal_lm(models["llama"], torch.float32)
    batch = [replace(response, response_ids=response.response_ids % 25) for response in responses(1)]
    head = hf.get_output_embeddings()
    for chunked_head in (True, False):
        model = LogpModel(hf, HeadOptions(5, limit=25), chunked_head=chunked_head)
        before = scored(model, batch, "rows", 0, 500)
        with torch.no_grad():
            saved = head.weight[25:].clone()
            head.weight[25:] = 7.0
        after = scored(model, batch, "rows", 0, 500)
        with torch.no_grad():
            head.weight[25:] = saved
        np.testing.assert_array_equal(before, after)
        with torch.no_grad():
            logits = hf(torch.tensor(np.concatenate(batch[0].pair))[None]).logits[0, len(batch[0].prompt_ids) - 1, :25]
        assert before[0] == pytest.approx(float(logits.log_softmax(-1)[int(batch[0].response_ids[0])]), abs=1e-5)


def test_the_padding_id_changes_nothing(models: dict[str, Path]) -> None:
    hf = load_causal_lm(models["gpt_neox"], torch.float32)
    model = LogpModel(hf, HeadOptions(64), chunked_head=True)
    for share in (0, 500):
        (batch,) = micro_batches([r.pair for r in responses(2)], layout="rows", max_tokens=5000, share_tokens=share)
        assert batch is not None
        width = batch.input_ids.shape[1]
        ends = [int(batch.positions[batch.positions // width == row].max()) for row in range(len(batch.input_ids))]
        padding = torch.arange(width) > torch.tensor(ends)[:, None] % width
        assert padding.any()
        other = replace(batch, input_ids=batch.input_ids.masked_fill(padding, 1))
        values = []
        for one in (batch, other):
            model.zero_grad()
            logprobs = token_logprobs(model, one)
            logprobs.sum().backward()
            values.append([logprobs, *(parameter.grad.clone() for parameter in model.parameters())])
        for left, right in zip(*values, strict=True):
            assert torch.equal(left, right)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_population_s_families_take_every_short_cut(models: dict[str, Path], family: str) -> None:
    paths = probe(load_causal_lm(models[family], torch.float32))
    assert (paths.packed, paths.shared, paths.chunked_head, paths.notes) == (True, True, True, ())


def other_families() -> dict[str, tuple[Any, tuple[bool, bool, bool]]]:
    """Models and the short cuts (packed, shared, chunked head) that hold for them."""
    torch.manual_seed(5)
    grouped = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
    gpt2 = GPT2Config(**SMALL, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return {
        "soft-cap and window": (
            Gemma2ForCausalLM(Gemma2Config(**grouped, final_logit_softcapping=0.5)),
            (True, False, True),
        ),
        "logit scale": (CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.3)), (True, True, True)),
        "logit divisor": (GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0)), (True, True, True)),
        "head bias": (PhiForCausalLM(PhiConfig(**SIZES)), (True, True, True)),
        "learnt positions": (GPT2LMHeadModel(gpt2), (True, True, True)),
        "distances by mask": (
            BloomForCausalLM(BloomConfig(**SMALL, hidden_size=32, n_layer=2, n_head=2)),
            (False, False, True),
        ),
        "state space": (
            MambaForCausalLM(MambaConfig(**SMALL, hidden_size=32, num_hidden_layers=2)),
            (False, False, True),
        ),
    }


@pytest.mark.parametrize("kind", list(other_families()))
def test_other_families_take_the_short_cuts_that_hold_for_them(kind: str) -> None:
    model, expected = other_families()[kind]
    hf = roughened(model)
    paths = probe(hf)
    assert (paths.packed, paths.shared, paths.chunked_head) == expected
    assert len(paths.notes) == expected.count(False)
    batch = responses(3)
    with torch.no_grad():
        reference = torch.cat([reference_logprobs(hf, response) for response in batch]).numpy()
    allowed = LogpModel(hf, HeadOptions(16), chunked_head=paths.chunked_head)
    found = scored(allowed, batch, "packed" if paths.packed else "rows", 0, 500)
    np.testing.assert_allclose(found, reference, atol=2e-5)


class Unannounced(LlamaForCausalLM):
    """Changes its logits in a way no configuration entry tells."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 0.5
        return output


class BatchDependent(LlamaForCausalLM):
    """Mixes the rows of a batch."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits - 0.3 * output.logits.mean(0, keepdim=True)
        return output


def test_logits_changed_outside_the_head_take_the_safe_path_with_a_note() -> None:
    hf = roughened(Unannounced(LlamaConfig(**SIZES)))
    paths = probe(hf)
    assert not paths.chunked_head
    assert paths.packed
    assert "Unannounced (llama): the chunked head differs by" in paths.notes[0]


def test_a_model_that_mixes_its_batch_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"BatchDependent \(llama\).*share a batch"):
        probe(roughened(BatchDependent(LlamaConfig(**SIZES))))


def test_weights_that_are_not_finite_are_refused_by_name(models: dict[str, Path]) -> None:
    hf = load_causal_lm(models["qwen3"], torch.float32)
    with torch.no_grad():
        hf.model.norm.weight[0] = float("nan")
    with pytest.raises(UnsupportedModel, match=r"Qwen3ForCausalLM \(qwen3\): its logits are not finite"):
        probe(hf)


def test_dropout_is_set_to_zero_and_said() -> None:
    hf = roughened(GPT2LMHeadModel(GPT2Config(**SMALL, n_embd=32, n_layer=2, n_head=2)))
    assert silence_dropout(hf) == ("dropout set to 0 (Dropout, attn_pdrop, embd_pdrop, resid_pdrop)",)
    assert silence_dropout(hf) == ()
    model, batch = LogpModel(hf, HeadOptions(16), chunked_head=True), responses(4)
    quiet = scored(model, batch, "rows", 0, 500)
    hf.train()
    np.testing.assert_array_equal(scored(model, batch, "rows", 0, 500), quiet)
