"""Tiny random models and responses, and the plain reference that the trainer is held to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from graft.objective import clipped_surrogate
from population.trainer import TrainerSpec, TrainingResponse
from population.weights import load_causal_lm

VOCABULARY = 40
FAMILIES = ("qwen3", "llama", "gpt_neox")
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def tiny_model(family: str) -> torch.nn.Module:
    """A model whose log-probabilities are far from uniform; qwen3 has tied embeddings."""
    torch.manual_seed(FAMILIES.index(family))
    model: torch.nn.Module
    if family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True))
    elif family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SIZES))
    else:
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, rotary_pct=0.5))
    return roughened(model)


def roughened(model: torch.nn.Module) -> torch.nn.Module:
    """The model with weights that make context matter."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.08 * torch.randn(parameter.shape))
    return model.eval()


def exact_spec(folder: Path, **changes: Any) -> TrainerSpec:
    """A spec under which the first optimiser step moves the weights by minus the gradient, to float32 accuracy."""
    plain = {"learning_rate": 1e6, "eps": 1e6, "weight_decay": 0.0, "max_grad_norm": 1e9, "device": "cpu"}
    return TrainerSpec(str(folder), **{**plain, **changes})


def responses(seed: int, prompts: int = 3, n: int = 4, *, old: bool = True, grafted: int = 1) -> list[TrainingResponse]:
    """Groups of ragged responses; the last `grafted` groups are a peer's, with weights below 1."""
    draw = np.random.default_rng(seed)
    found = []
    for number in range(prompts):
        prompt = draw.integers(0, VOCABULARY, int(draw.integers(3, 12)))
        from_peer = number >= prompts - grafted
        for _ in range(n):
            length = int(draw.integers(1, 9))
            found.append(
                TrainingResponse(
                    prompt,
                    draw.integers(0, VOCABULARY, length),
                    (draw.normal(size=length) * 0.3 - 3.5).astype(np.float32) if old else None,
                    float(draw.normal()),
                    float(draw.uniform(0.8, 1.0)) if from_peer else 1.0,
                    from_peer,
                )
            )
    return found


def reference_logprobs(model: Any, response: TrainingResponse, temperature: float = 1.0) -> torch.Tensor:
    """[T] from the model's own logits on this sequence alone."""
    ids = torch.tensor(np.concatenate([response.prompt_ids, response.response_ids]))
    logits = model(ids[None]).logits[0].float() / temperature
    start = len(response.prompt_ids)
    return logits[start - 1 : -1].log_softmax(-1).gather(-1, ids[start:, None])[:, 0]


def reference_loss(model: Any, minibatch: Sequence[TrainingResponse], spec: TrainerSpec) -> tuple[torch.Tensor, Any]:
    """Loss and clip statistics of a whole minibatch in one padded batch of log-probabilities."""
    rows = [reference_logprobs(model, response, spec.temperature) for response in minibatch]

    def padded(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)

    logprobs = padded(rows)
    old = padded(
        [
            row.detach() if response.old_logprobs is None else torch.tensor(response.old_logprobs)
            for row, response in zip(rows, minibatch, strict=True)
        ]
    )
    return clipped_surrogate(
        logprobs,
        old,
        padded([torch.ones(len(row)) for row in rows]),
        torch.tensor([response.advantage for response in minibatch], dtype=torch.float32),
        torch.tensor([response.weight for response in minibatch], dtype=torch.float32),
        clip_low=spec.clip_low,
        clip_high=spec.clip_high,
        aggregation=spec.aggregation,
    )


def reference_gradient(
    folder: Path, minibatch: Sequence[TrainingResponse], spec: TrainerSpec
) -> dict[str, torch.Tensor]:
    """Gradient of the whole minibatch by plain autograd, by parameter name."""
    model = load_causal_lm(folder, torch.float32)
    reference_loss(model, minibatch, spec)[0].backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def largest_gap(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """Largest absolute difference over all tensors of equal names."""
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)
