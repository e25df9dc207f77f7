"""From logits to a token and its log-probability."""

from __future__ import annotations

import torch
from torch import Tensor

from server.rollouts.engine import SamplingParams


class KnownIds:
    """The ids of a model's output layer that may be sampled: those its tokenizer knows."""

    def __init__(self, known: Tensor) -> None:
        """`known` [V] bool."""
        count = int(known.sum())
        if count == 0:
            raise ValueError(
                "the tokenizer knows none of the model's output ids: model and tokenizer do not belong together"
            )
        self._prefix = count if bool(known[:count].all()) else None
        self._size = len(known)
        self._unknown = ~known

    def restrict(self, logits: Tensor) -> Tensor:
        """Logits [rows, V] with the unknown ids cut off (where they are the last ones) or at minus infinity."""
        if self._prefix is not None:
            return logits if self._prefix == self._size else logits[:, : self._prefix]
        return logits.masked_fill(self._unknown, float("-inf"))


def draw(logits: Tensor, uniform: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Tokens [rows] and their log-probabilities [rows] from restricted logits [rows, K] and uniforms [rows].

    The inverse of the distribution function at `uniform`. Log-probabilities are of the distribution at the sampling
    temperature before top-p and top-k; greedy sampling (temperature 0) gives those at temperature 1.
    """
    scaled = logits.float()
    if params.temperature not in (0.0, 1.0):
        scaled = scaled / params.temperature
    logprobs = scaled.log_softmax(-1)
    if params.temperature == 0.0:
        tokens = logprobs.argmax(-1)
    elif params.truncated:
        tokens = _draw_truncated(logprobs, uniform, params)
    else:
        tokens = _invert(logprobs.exp(), uniform)
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index [rows] drawn with probability proportional to `weights` [rows, K]; one of weight 0 is never drawn."""
    cumulative = weights.cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    # Non-finite weights point past the end; their log-probability tells of it later.
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)


def _draw_truncated(logprobs: Tensor, uniform: Tensor, params: SamplingParams) -> Tensor:
    ordered, ids = logprobs.sort(dim=-1, descending=True, stable=True)
    weights = ordered.exp()
    if params.top_p < 1.0:
        # A token stays when those before it do not yet reach top_p; the first always stays.
        weights = weights.masked_fill(weights.cumsum(-1) - weights >= params.top_p, 0.0)
    if params.top_k > 0:
        weights[:, params.top_k :] = 0.0
    return ids.gather(1, _invert(weights, uniform)[:, None]).squeeze(1)
