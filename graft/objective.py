"""How the update uses own and grafted responses (paper eq. 9-10). The only file of this package that needs torch.

One formula, `graft.losses.ratio_terms`, serves a packed trainer (flat [N]) and, through `clipped_surrogate`, padded
[R, T] batches. Sums and denominators stay apart, so that micro-batches and ranks can share one denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from graft.losses import log_ratio, ratio_terms

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]


@dataclass(frozen=True, slots=True)
class ClipStats:
    """How many of the counted tokens the clip acted on (paper table 9), as numerator and denominator."""

    clipped: int
    tokens: int

    @property
    def fraction(self) -> float:
        """Share of clipped tokens; NaN without tokens."""
        return self.clipped / self.tokens if self.tokens else float("nan")


def token_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate of every token: (loss terms, clipped), each of the shape of `logprobs`.

    A term is -w * min(rho * a, clip(rho, 1 - clip_low, 1 + clip_high) * a), rho = exp(logprobs - old_logprobs), with
    `old_logprobs` the receiver's own theta_old for grafted tokens too. All tensors have one shape (or broadcast to
    it): the response's advantage and weight repeated for each of its tokens. The terms are to be summed and divided by
    the minibatch's denominator; lower is better. `clipped` is True where the clip holds the token's gradient at zero.
    Log-ratios are clamped to +-20 before exp.
    """
    return ratio_terms(log_ratio(logprobs, old_logprobs), advantages, weights, clip_low=clip_low, clip_high=clip_high)


def response_scale(lengths: Tensor, aggregation: Aggregation, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Factor [R] on each token term of responses with these token counts [R]: 1/length for seq-mean-token-mean."""
    _check_aggregation(aggregation)
    if aggregation == "seq-mean-token-mean":
        return lengths.clamp(min=1).to(dtype).reciprocal()
    return torch.ones_like(lengths, dtype=dtype)


def minibatch_denominator(lengths: Tensor, aggregation: Aggregation) -> float:
    """What the summed, scaled terms of a whole minibatch are divided by, from its token counts [R].

    token-mean: the plain, unweighted count of tokens; otherwise the number of responses that have any.
    """
    _check_aggregation(aggregation)
    counted = lengths.sum() if aggregation == "token-mean" else (lengths > 0).sum()
    return float(counted)


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    aggregation: Aggregation = "token-mean",
    denominator: float | None = None,
) -> tuple[Tensor, ClipStats]:
    """Loss of a padded batch (paper eq. 9-10, negated: lower is better) and its clip statistics.

    `logprobs`, `old_logprobs` and `mask` are [R, T], `advantages` and `weights` [R]. A response of weight 0 is a
    refused one: its tokens are in neither numerator nor denominator. Values behind the mask may be anything, NaN
    included: they reach neither the loss nor its gradient. `denominator` replaces the batch's own, so that the
    micro-batches or ranks of one minibatch can share one.
    """
    if denominator is not None and denominator <= 0:
        raise ValueError(f"the denominator must be positive, got {denominator}")
    counted = mask.bool() & (weights != 0)[:, None]
    lengths = counted.sum(dim=1)
    scale = response_scale(lengths, aggregation, dtype=weights.dtype)
    # Chosen before the ratio is formed: exp of a masked value would leave NaN in the gradient.
    zero = torch.zeros_like(logprobs)
    terms, clipped = token_surrogate(
        torch.where(counted, logprobs, zero),
        torch.where(counted, old_logprobs, zero),
        advantages[:, None],
        (weights * scale)[:, None],
        clip_low=clip_low,
        clip_high=clip_high,
    )
    total = torch.where(counted, terms, torch.zeros_like(terms)).sum()
    if denominator is None:
        denominator = max(minibatch_denominator(lengths, aggregation), 1.0)
    stats = ClipStats(clipped=int((clipped & counted).sum()), tokens=int(lengths.sum()))
    return total / denominator, stats


def _check_aggregation(aggregation: str) -> None:
    if aggregation not in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        raise ValueError(
            f"aggregation must be 'token-mean', 'seq-mean-token-mean' or 'seq-mean-token-sum', got {aggregation!r}"
        )
