"""Log-probabilities of given tokens from hidden states, in chunks, without ever holding [tokens, vocabulary] logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# Below this many logits a chunk saves no memory worth its overhead (4 MiB in float32).
SMALLEST_CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """logits = softcap(scale * (h W^T + b)) / temperature over the ids below `limit`, without those of `excluded`.

    `chunk`: tokens whose logits exist at one time.
    """

    chunk: int
    temperature: float = 1.0
    scale: float = 1.0
    softcap: float | None = None
    limit: int | None = None
    excluded: tuple[int, ...] = ()


class TokenLogprobs(torch.autograd.Function):
    """h [N, H], weight [V, H], bias [V] or None, targets [N], excluded [E] -> log-probabilities [N] float32.

    The forward keeps one number per token (log-sum-exp); the backward computes each chunk of logits again. Logits,
    log-sum-exp and the weight's gradient are float32 whatever the dtype of the model: rounding the gradient of each
    chunk to bfloat16 is a bias that grows with training.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        excluded: torch.Tensor,
        options: HeadOptions,
    ) -> torch.Tensor:
        """Log-probabilities [N] float32 of the targets, one chunk of logits at a time; keeps only the normaliser."""
        logprobs = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        normaliser = torch.empty_like(logprobs)
        matrix = _matrix(weight[: options.limit])
        for part in _chunks(len(hidden), matrix.shape[0], options.chunk):
            logits, _ = _logits(hidden[part], matrix, bias, excluded, options)
            torch.logsumexp(logits, -1, out=normaliser[part])
            picked = logits.gather(-1, targets[part, None])[:, 0]
            torch.sub(picked, normaliser[part], out=logprobs[part])
        ctx.save_for_backward(hidden, weight, bias, targets, excluded, normaliser)
        ctx.options = options
        return logprobs

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients by recomputing each chunk; those of weight and bias are summed in float32."""
        hidden, weight, bias, targets, excluded, normaliser = ctx.saved_tensors
        options: HeadOptions = ctx.options
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        need_bias = need_bias and bias is not None
        matrix = _matrix(weight[: options.limit])
        rows = matrix.shape[0]
        for_hidden = torch.empty_like(hidden) if need_hidden else None
        for_weight = weight.new_zeros(weight.shape, dtype=torch.float32) if need_weight else None
        for_bias = weight.new_zeros(len(weight), dtype=torch.float32) if need_bias else None
        for part in _chunks(len(hidden), rows, options.chunk):
            logits, slope = _logits(hidden[part], matrix, bias, excluded, options)
            scaled = upstream[0][part, None] * (options.scale / options.temperature)
            delta = logits.sub_(normaliser[part, None]).exp_().mul_(-scaled)
            delta.scatter_add_(1, targets[part, None], scaled)
            if slope is not None:
                delta.mul_(slope)
            if for_hidden is not None:
                for_hidden[part] = _product(delta, matrix, hidden.dtype)
            if for_weight is not None:
                for_weight[:rows] += _product(delta.t(), hidden[part], hidden.dtype)
            if for_bias is not None:
                for_bias[:rows] += delta.sum(0)
        return (
            for_hidden,
            None if for_weight is None else for_weight.to(weight.dtype),
            None if for_bias is None else for_bias.to(weight.dtype),
            None,
            None,
            None,
        )


class ChunkedHead(nn.Module):
    """The output head of a causal LM as a module of its own, so that hooks which gather its weight fire around its use.

    The parameters are the model's own objects, held here a second time.
    """

    def __init__(self, linear: nn.Linear, options: HeadOptions) -> None:
        super().__init__()
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        self.options = options

    def forward(self, hidden: torch.Tensor, targets: torch.Tensor, excluded: torch.Tensor) -> torch.Tensor:
        """hidden [N, H], targets [N], excluded [E] -> log-probabilities [N] float32."""
        result = TokenLogprobs.apply(hidden, self.weight, self.bias, targets, excluded, self.options)
        assert isinstance(result, torch.Tensor)
        return result


def _chunks(tokens: int, vocabulary: int, chunk: int) -> list[slice]:
    size = max(chunk, SMALLEST_CHUNK_ELEMENTS // vocabulary)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def _matrix(weight: torch.Tensor) -> torch.Tensor:
    """The weight as the products below take it: CPUs multiply low precision into float32 only after a cast."""
    return weight.float() if weight.device.type == "cpu" else weight


def _product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """left @ right in float32 from factors in the model's dtype (tensor cores) or, on CPU, in float32."""
    if left.device.type == "cpu" or dtype == torch.float32:
        return left.float() @ right.float()
    return torch.mm(left.to(dtype), right.to(dtype), out_dtype=torch.float32)


def _logits(
    hidden: torch.Tensor,
    matrix: torch.Tensor,
    bias: torch.Tensor | None,
    excluded: torch.Tensor,
    options: HeadOptions,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logits [n, V] over temperature, and d softcap(x) / dx where there is a soft-cap."""
    logits = _product(hidden, matrix.t(), hidden.dtype)
    if bias is not None:
        logits += bias[: options.limit].float()
    if options.scale != 1.0:
        logits *= options.scale
    slope = None
    if options.softcap is not None:
        logits = logits.div_(options.softcap).tanh_()
        slope = 1.0 - logits.square()
        logits *= options.softcap
    if options.temperature != 1.0:
        logits /= options.temperature
    if len(excluded):
        logits.index_fill_(1, excluded, float("-inf"))
    return logits, slope
