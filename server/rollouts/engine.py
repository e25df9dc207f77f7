"""What every sampling engine gives: prompts in as ids, samples out with log-probabilities and a weight version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "abort"]


class EngineError(RuntimeError):
    """An engine refused a request or a set of weights; the message says which part and what to do."""


class WeightsLost(EngineError):
    """The engine was started again and holds no weights of the run: `load_weights`, then sample again."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """One prompt as the member's own token ids; `key` names it in the run (53 bits) and seeds its samples."""

    key: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. Everything random is a function of (seed, step, member, purpose, prompt key, index).

    `temperature` 0 is greedy. `top_p` < 1 and `top_k` > 0 are for evaluation: they truncate what may be drawn, while
    the log-probabilities returned stay those of the untruncated distribution at `temperature`.
    """

    n: int
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    step: int = 0
    member: str = ""
    purpose: str = "train"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"sampling: n is {self.n}; at least one sample per prompt is needed")
        if self.max_new_tokens < 1:
            raise ValueError(f"sampling: max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"sampling: temperature is {self.temperature}; use 0 (greedy) or a positive number")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"sampling: top_p is {self.top_p}; it must lie in (0, 1]")
        if self.top_k < 0:
            raise ValueError(f"sampling: top_k is {self.top_k}; use 0 (off) or a positive count")

    @property
    def truncated(self) -> bool:
        """True when top_p or top_k cut the distribution."""
        return self.top_p < 1.0 or self.top_k > 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One response. `ids` [T] int32 include the end token exactly when `finish` is "stop"; `logprobs` [T] float32.

    `weight_version` is that of its last token; `split` marks one whose first tokens come from older weights.
    """

    prompt: int
    index: int
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    text: str
    finish: FinishReason
    weight_version: int
    split: bool = False


class Engine(Protocol):
    """A sampler of one member."""

    @property
    def weight_version(self) -> int:
        """Version of the weights that the next sample comes from."""
        ...

    @property
    def exact_logprobs(self) -> bool:
        """True when the log-probabilities equal those of the model's own full forward to float32 accuracy."""
        ...

    def sample(self, prompts: Sequence[TokenPrompt], params: SamplingParams) -> list[list[Sample]]:
        """Samples [len(prompts)][n], in the order of the prompts and of the index."""
        ...

    def load_weights(self, version: int, weights: Mapping[str, torch.Tensor]) -> str:
        """Take over weights whole or not at all; the checksum of what the engine holds afterwards under those names."""
        ...

    def checksum(self) -> str:
        """Checksum of the weights held, over the names of the last `load_weights`."""
        ...

    def sleep(self) -> None:
        """Give device memory back. Nothing can be sampled until the next `load_weights`, which wakes the engine."""
        ...

    def drain_events(self) -> tuple[str, ...]:
        """What went wrong and was mended since the last call, for the record."""
        ...

    def close(self) -> None:
        """Give back whatever the engine holds."""
        ...


def check_prompts(prompts: Iterable[TokenPrompt], params: SamplingParams, rows: int, positions: int | None) -> None:
    """Refuse a prompt that must not be sampled: an id out of range ends a whole SGLang server.

    rows: ids the model has embeddings for. positions: its longest sequence, None where it sets no limit.
    Raises EngineError with the prompt and what to change.
    """
    for prompt in prompts:
        if not prompt.ids:
            raise EngineError(f"prompt {prompt.key} is empty: give it at least a begin token")
        if min(prompt.ids) < 0 or max(prompt.ids) >= rows:
            raise EngineError(
                f"prompt {prompt.key} has token ids outside 0..{rows - 1}: model and tokenizer do not belong together"
            )
        if positions is not None and len(prompt.ids) + params.max_new_tokens > positions:
            raise EngineError(
                f"prompt {prompt.key}: {len(prompt.ids)} prompt tokens and {params.max_new_tokens} new ones exceed "
                f"the model's {positions} positions; lower max_new_tokens or drop the prompt"
            )


def weights_checksum(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 (hex) over the sorted names, each with dtype, shape and raw bytes.

    Trainer and engine use this one function, so equal checksums mean equal names and equal bits.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        flat = tensor.to("cpu").contiguous().reshape(-1)
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def trainable_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that make up a model's weights: parameters (a tied one once) and persistent buffers, by HF name."""
    state = model.state_dict(keep_vars=True)
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters())
    tensors.update({name: buffer for name, buffer in model.named_buffers() if name in state})
    return tensors
