"""What one token adds to the loss: the paper's clipped ratio, and the terms that other methods put in its place.

A `TokenLoss` turns the log-probs [N] of one micro-batch into loss terms [N], which are to be summed; lower is better.
A response lies whole in one micro-batch, so a ratio of sequences can be formed from its tokens. Written with tensor
methods only: torch is not imported, so that `graft.methods` can name these functions where no torch is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
# LUFFY's regulariser (arXiv 2504.14945, f(x) = x / (x + gamma)).
SHAPING_GAMMA = 0.1
# HACPO's window for peers, [lower + step * updates, 1], and its guard on log s (arXiv 2603.02604, appendix E).
PEER_CLIP_LOWER = 0.8
PEER_CLIP_STEP = 0.025
PEER_MAX_LOG_RATIO = 10.0


@dataclass(frozen=True, slots=True)
class LossTokens:
    """What a loss needs besides the log-probs: per-token tensors [N] of one micro-batch, and numbers.

    `old_logprobs`: under the learner's own theta_old, for a peer's tokens too. `advantages`: the response's, repeated.
    `scale`: weight x aggregation factor / denominator x coefficient of the term. `response` int64: number of the
    response a token belongs to, in 0..`responses` - 1. `source_mean`: mean log pi_source,old of the response over the
    source's own tokens, repeated; NaN for own responses. `clip_low`, `clip_high`: the clip is 1 - low .. 1 + high.
    `updates`: optimiser updates made so far in this population step.
    """

    old_logprobs: Tensor
    advantages: Tensor
    scale: Tensor
    response: Tensor
    source_mean: Tensor
    responses: int
    clip_low: float
    clip_high: float
    updates: int


TokenLoss = Callable[["Tensor", LossTokens], tuple["Tensor", "Tensor"]]
"""(logprobs [N], tokens) -> (terms [N], clipped [N] bool: where the clip holds the gradient at zero)."""


def clipped_ratio(logprobs: Tensor, tokens: LossTokens) -> tuple[Tensor, Tensor]:
    """-scale * min(rho a, clip(rho) a) with a ratio rho for every token (paper eq. 10)."""
    return ratio_terms(
        log_ratio(logprobs, tokens.old_logprobs),
        tokens.advantages,
        tokens.scale,
        clip_low=tokens.clip_low,
        clip_high=tokens.clip_high,
    )


def sequence_ratio(logprobs: Tensor, tokens: LossTokens) -> tuple[Tensor, Tensor]:
    """The same with one ratio exp(mean_t log rho_t) for all tokens of a response.

    The paper's ablation without the token ratio, and HACPO's term for own responses (GSPO, arXiv 2507.18071).
    """
    mean = response_means(log_ratio(logprobs, tokens.old_logprobs), tokens)
    return ratio_terms(mean, tokens.advantages, tokens.scale, clip_low=tokens.clip_low, clip_high=tokens.clip_high)


def shaped(logprobs: Tensor, tokens: LossTokens) -> tuple[Tensor, Tensor]:
    """-scale * f(pi) a with f(x) = x / (x + 0.1): LUFFY's policy shaping, neither a ratio nor a clip.

    Its gradient 0.1 pi / (pi + 0.1)^2 a is largest at pi = 0.1, so tokens the learner finds unlikely count.
    """
    probability = full_precision(logprobs).exp()
    terms = -tokens.scale * (probability / (probability + SHAPING_GAMMA)) * tokens.advantages
    return terms, _never(logprobs)


def negative_log_likelihood(logprobs: Tensor, tokens: LossTokens) -> tuple[Tensor, Tensor]:
    """-scale * log pi: SGT's imitation of correct peer responses. Advantages are not read."""
    return -tokens.scale * full_precision(logprobs), _never(logprobs)


def sequence_clip(logprobs: Tensor, tokens: LossTokens) -> tuple[Tensor, Tensor]:
    """-scale * c * sg[c] * a with c = clip(s, 0.8 + 0.025 updates, 1): HACPO's term for peer responses.

    s = exp(mean_t log pi - source_mean), each mean over its own tokens, |log s| <= 10. There is no minimum with the
    unclipped term, so the gradient is zero on both sides outside the window. The lower edge stops at 1. A response
    without a source (source_mean NaN) has s = 1, without gradient.
    """
    difference = response_means(full_precision(logprobs), tokens) - tokens.source_mean
    # Replaced before exp is formed, whose gradient would be NaN.
    difference = difference.where(~tokens.source_mean.isnan(), difference.new_zeros(()))
    s = difference.clamp(-PEER_MAX_LOG_RATIO, PEER_MAX_LOG_RATIO).exp()
    lower = min(1.0, PEER_CLIP_LOWER + PEER_CLIP_STEP * tokens.updates)
    window = s.clamp(lower, 1.0)
    return -tokens.scale * window * window.detach() * tokens.advantages, (s < lower) | (s > 1.0)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Unscaled terms [N] of the KL estimator k3 against a fixed model: exp(d) - d - 1, d = reference - logprobs.

    Non-negative, zero where the two agree. d is clamped to +-20.
    """
    difference = log_ratio(reference, logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1.0


def importance_weight(old_logprobs: Tensor, engine_logprobs: Tensor, cap: float) -> Tensor:
    """Truncated importance weights [N], min(pi_old / pi_engine, cap), of tokens that the engine drew.

    The engine that samples and the trainer hold the same weights, but their arithmetic differs; this corrects the
    policy loss for it. 1 where the two agree, and where the engine's log-probability is unknown (NaN).
    """
    ratio = log_ratio(old_logprobs, engine_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ratio.clamp(max=cap).where(~engine_logprobs.isnan(), 1.0).detach()


def ratio_terms(
    log_ratios: Tensor, advantages: Tensor, weights: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """-w * min(rho a, clip(rho, 1 - clip_low, 1 + clip_high) a), rho = exp(log ratio clamped to +-20), and where the
    clip acts: a > 0 and rho above it, or a < 0 and rho below it. All tensors have, or broadcast to, one shape.
    """
    ratio = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    terms = -weights * (ratio * advantages).minimum(bounded * advantages)
    above = (advantages > 0) & (ratio > 1.0 + clip_high)
    below = (advantages < 0) & (ratio < 1.0 - clip_low)
    return terms, above | below


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """log pi - log pi_old, at least in single precision."""
    return full_precision(logprobs) - full_precision(old_logprobs)


def response_means(values: Tensor, tokens: LossTokens) -> Tensor:
    """Mean of `values` [N] over each response's tokens, repeated for each of them [N]."""
    sums = values.new_zeros(tokens.responses).index_add(0, tokens.response, values)
    counts = values.new_zeros(tokens.responses).index_add(0, tokens.response, values.detach().new_ones(len(values)))
    return (sums / counts.clamp(min=1.0))[tokens.response]


def full_precision(values: Tensor) -> Tensor:
    """The values in single precision where they are in half, as they are otherwise."""
    return values.float() if values.element_size() < 4 else values


def _never(logprobs: Tensor) -> Tensor:
    return logprobs.new_zeros(logprobs.shape).bool()
