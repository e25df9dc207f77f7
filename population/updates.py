"""What a trainer is told and what it reports: plain records, and the tensors of one minibatch. No DeepSpeed here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from graft.losses import LossTokens, TokenLoss, clipped_ratio, importance_weight, k3
from graft.objective import Aggregation, minibatch_denominator, response_scale
from population.errors import RunError
from population.packing import MicroBatch, Pair

# A token is far off where engine and trainer differ by more than this many nats.
FAR = 0.1
# Loss, clipped own and peer tokens, then the fields of `Mismatch`, summed over micro-batches and ranks.
NUMBERS = 9


class TrainerError(RunError, RuntimeError):
    """A trainer cannot go on; the message names member, step and minibatch, or the file, and what to do."""


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Low-rank adapters (peft) instead of all weights."""

    rank: int = 16
    alpha: float = 32.0
    target_modules: str | Sequence[str] = "all-linear"


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """All that decides one member's training. The defaults are those of paper table 3.

    `model_path`: a folder with safetensors and config. `warmup_steps`: population steps of linear warm-up, after which
    the learning rate is constant. `max_tokens_per_pack`: input tokens of one forward. `share_tokens`: longest row in
    which responses share their prompt (0: never). `logprob_chunk_tokens`: tokens whose logits exist at one time.
    `vocab_limit`, `excluded_ids`: ids from the limit on, and these below it, are outside the softmax, as in the engine.
    `layout` "auto" takes packs where the attention kernel takes variable lengths, padded rows elsewhere. `attention`:
    transformers' name of an attention implementation. `threads`: CPU threads. `timeout_s`: of a collective call.
    `own_loss`, `peer_loss`: the loss of own and of grafted tokens; `peer_coefficient` multiplies the latter, which
    shares the minibatch's denominator or has its own (`shared_denominator`). `kl_coefficient`: of the k3 estimator
    against the model in `model_path`. `importance_cap`: of the weight pi_old / pi_engine on own tokens; None: weight 1.
    """

    model_path: str
    member: str = ""
    seed: int = 0
    learning_rate: float = 1e-6
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    zero_stage: Literal[1, 2, 3] = 1
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_tokens_per_pack: int = 16384
    share_tokens: int = 512
    logprob_chunk_tokens: int = 1024
    temperature: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    aggregation: Aggregation = "token-mean"
    own_loss: TokenLoss = clipped_ratio
    peer_loss: TokenLoss = clipped_ratio
    peer_coefficient: float = 1.0
    shared_denominator: bool = True
    kl_coefficient: float = 0.0
    importance_cap: float | None = None
    gradient_checkpointing: bool = False
    offload_optimizer: bool = False
    lora: LoraSpec | None = None
    threads: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    vocab_limit: int | None = None
    excluded_ids: tuple[int, ...] = ()
    layout: Literal["auto", "packed", "rows"] = "auto"
    attention: str | None = None
    timeout_s: float = 1800.0

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of population step `step` (from 1): linear warm-up, then constant."""
        return self.learning_rate * min(1.0, step / self.warmup_steps) if self.warmup_steps else self.learning_rate


@dataclass(frozen=True)
class TrainingResponse:
    """One response that a member trains on, in the member's own tokens.

    prompt_ids [P], response_ids [T] (T >= 1, with the end token when the response finished). old_logprobs [T]: the
    member's theta_old, or None where the trainer is to compute it. weight 0: refused, in neither sum nor denominator.
    engine_logprobs [T]: what the sampling engine said, for the mismatch and its correction. source_mean: of a grafted
    response, the mean log-probability per token under its source's theta_old, in the source's own tokens.
    initial_logprobs [T]: under the model the run began with; the trainer fills it in where a KL term needs it.
    """

    prompt_ids: NDArray[np.integer]
    response_ids: NDArray[np.integer]
    old_logprobs: NDArray[np.floating] | None
    advantage: float
    weight: float = 1.0
    grafted: bool = False
    engine_logprobs: NDArray[np.floating] | None = None
    source_mean: float | None = None
    initial_logprobs: NDArray[np.floating] | None = None

    @property
    def pair(self) -> Pair:
        """Prompt and response ids."""
        return self.prompt_ids, self.response_ids

    def trained(self, spec: TrainerSpec) -> bool:
        """False where the gradient is exactly zero, so that forward and backward may be left out."""
        return self.weight != 0 and (self.advantage != 0 or spec.kl_coefficient != 0)


@dataclass(frozen=True, slots=True)
class MinibatchReport:
    """One optimiser step. Token counts are of retained responses (weight > 0).

    `denominator`: tokens of the whole minibatch; `trained_tokens` + `skipped_tokens` (advantage 0) = denominator.
    `own_*` and `peer_*`: tokens on which the clip acted and tokens counted, for own and grafted responses. `packs`: of
    this rank. A minibatch without any retained token has loss 0 and makes no optimiser step.
    """

    loss: float
    grad_norm: float
    denominator: int
    trained_tokens: int
    skipped_tokens: int
    own_clipped: int
    own_tokens: int
    peer_clipped: int
    peer_tokens: int
    packs: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What the sampling engine said against the trainer, on own trained tokens; sums over `tokens`.

    Measured before the first optimiser step, where both are of theta_old. `gap`: |trainer - engine| log-probability;
    `kl`: the k3 estimator of KL(engine, trainer); `far`: tokens that differ by more than FAR nats. `weighted`: tokens
    of all minibatches that carried an importance weight; `capped`: those at whose weight the cap acted.
    """

    weighted: int = 0
    capped: int = 0
    tokens: int = 0
    gap: float = 0.0
    kl: float = 0.0
    far: int = 0

    def plus(self, sums: Sequence[float]) -> Mismatch:
        """With the sums [6] of one more minibatch, in the order of the fields."""
        weighted, capped, tokens, gap, kl, far = sums
        return Mismatch(
            self.weighted + round(weighted),
            self.capped + round(capped),
            self.tokens + round(tokens),
            self.gap + gap,
            self.kl + kl,
            self.far + round(far),
        )


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One step of one member."""

    learning_rate: float
    minibatches: tuple[MinibatchReport, ...]
    mismatch: Mismatch

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> UpdateReport:
        """The inverse of `as_dict`."""
        minibatches = tuple(MinibatchReport(**entry) for entry in values["minibatches"])
        return cls(values["learning_rate"], minibatches, Mismatch(**values["mismatch"]))


@dataclass(frozen=True, slots=True)
class PackTokens:
    """Per-token tensors [N] of one micro-batch of `responses` responses.

    `scale` is coefficient x weight x aggregation factor / denominator; `response` the number of the token's response;
    `old`, `engine`, `initial` and `source_mean` are NaN where unknown.
    """

    advantages: torch.Tensor
    scale: torch.Tensor
    old: torch.Tensor
    engine: torch.Tensor
    initial: torch.Tensor
    source_mean: torch.Tensor
    grafted: torch.Tensor
    response: torch.Tensor
    responses: int


@dataclass(frozen=True, slots=True)
class PackSums:
    """Sums over one micro-batch: `numbers` [NUMBERS] float64."""

    loss: torch.Tensor
    numbers: torch.Tensor


class Minibatch:
    """The responses of one minibatch that have a gradient, and the one denominator of all that are retained.

    `pairs`: prompt and response ids of the former, whose numbers are the items of micro-batches made of them.
    """

    def __init__(self, responses: Sequence[TrainingResponse], spec: TrainerSpec) -> None:
        retained = [response for response in responses if response.weight != 0]
        lengths = torch.tensor([len(response.response_ids) for response in retained], dtype=torch.int64)
        self.denominator = int(lengths.sum())
        self.trained = [response for response in retained if response.trained(spec)]
        self.pairs = [response.pair for response in self.trained]
        self.trained_tokens = sum(len(response.response_ids) for response in self.trained)
        self.peer_tokens = sum(len(response.response_ids) for response in retained if response.grafted)
        self.own_tokens = self.denominator - self.peer_tokens
        grafted = torch.tensor([response.grafted for response in retained], dtype=torch.bool)
        counted = [lengths, lengths] if spec.shared_denominator else [lengths[~grafted], lengths[grafted]]
        divisors = [minibatch_denominator(part, spec.aggregation) or 1.0 for part in counted]
        factors = response_scale(lengths, spec.aggregation).tolist()
        self._scale = [
            (spec.peer_coefficient if response.grafted else 1.0) * response.weight * factor / divisors[response.grafted]
            for response, factor in zip(retained, factors, strict=True)
            if response.trained(spec)
        ]

    def tokens(self, batch: MicroBatch, device: torch.device) -> PackTokens:
        """The per-token tensors of a micro-batch on its device."""
        chosen = [self.trained[item] for item in batch.items]

        def spread(values: Sequence[float], dtype: Any = np.float32) -> torch.Tensor:
            return torch.from_numpy(np.repeat(np.asarray(values, dtype=dtype), batch.lengths)).to(device)

        def join(parts: Sequence[NDArray[np.floating] | None]) -> torch.Tensor:
            filled = [
                np.full(length, np.nan, dtype=np.float32) if part is None else part.astype(np.float32)
                for part, length in zip(parts, batch.lengths, strict=True)
            ]
            return torch.from_numpy(np.concatenate(filled)).to(device)

        return PackTokens(
            advantages=spread([response.advantage for response in chosen]),
            scale=spread([self._scale[item] for item in batch.items]),
            old=join([response.old_logprobs for response in chosen]),
            engine=join([response.engine_logprobs for response in chosen]),
            initial=join([response.initial_logprobs for response in chosen]),
            source_mean=spread([math.nan if r.source_mean is None else r.source_mean for r in chosen]),
            grafted=spread([response.grafted for response in chosen], bool),
            response=spread(range(len(chosen)), np.int64),
            responses=len(chosen),
        )


def pack_loss(
    logprobs: torch.Tensor, tokens: PackTokens, spec: TrainerSpec, *, at_theta_old: bool, updates: int = 0
) -> PackSums:
    """Loss and statistics of one micro-batch's log-probabilities [N].

    `at_theta_old`: no optimiser step was made yet in this population step, so an unknown old log-probability is the
    current one and the mismatch with the engine can be read off. `updates`: optimiser steps made so far in this
    population step.
    """
    if at_theta_old:
        tokens = replace(tokens, old=torch.where(tokens.old.isnan(), logprobs.detach(), tokens.old))
    drawn = ~(tokens.grafted | tokens.engine.isnan())
    weights = _importance(tokens, drawn, spec)
    terms, clipped = _terms(logprobs, replace(tokens, scale=tokens.scale * weights), spec, updates)
    loss = terms.sum()
    if spec.kl_coefficient:
        loss = loss + spec.kl_coefficient * (tokens.scale * k3(logprobs, tokens.initial)).sum()
    with torch.no_grad():
        peer_clipped = (clipped & tokens.grafted).sum()
        weighted = drawn.sum() if spec.importance_cap is not None else drawn.new_zeros(())
        capped = (weights >= (spec.importance_cap or math.inf)).sum()
        numbers = [loss, clipped.sum() - peer_clipped, peer_clipped, weighted, capped]
        measured = drawn if at_theta_old else torch.zeros_like(drawn)
        here, engine = logprobs[measured], tokens.engine[measured]
        gap = (here - engine).abs()
        numbers += [measured.sum(), gap.sum(), k3(engine, here).sum(), (gap > FAR).sum()]
        return PackSums(loss, torch.stack([number.double() for number in numbers]))


def _importance(tokens: PackTokens, drawn: torch.Tensor, spec: TrainerSpec) -> torch.Tensor:
    """Weights [N] of the tokens that the engine drew, 1 for the others."""
    if spec.importance_cap is None:
        return torch.ones_like(tokens.scale)
    return importance_weight(tokens.old, tokens.engine, spec.importance_cap).where(drawn, 1.0)


def _terms(
    logprobs: torch.Tensor, tokens: PackTokens, spec: TrainerSpec, updates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss terms and clip mask [N]: own tokens by the own loss, grafted ones by the peer loss."""
    if spec.own_loss is spec.peer_loss:
        return spec.own_loss(logprobs, _loss_tokens(tokens, spec, updates))
    terms, clipped = torch.zeros_like(logprobs), torch.zeros_like(tokens.grafted)
    for loss, part in ((spec.own_loss, ~tokens.grafted), (spec.peer_loss, tokens.grafted)):
        # Chosen before the loss: a NaN of one kind's missing numbers must not reach the other's gradient.
        place = part.nonzero().squeeze(1)
        if len(place):
            found, acted = loss(logprobs[place], _loss_tokens(tokens, spec, updates, place))
            terms, clipped = terms.index_add(0, place, found), clipped.index_put((place,), acted)
    return terms, clipped


def _loss_tokens(
    tokens: PackTokens, spec: TrainerSpec, updates: int, place: torch.Tensor | slice = slice(None)
) -> LossTokens:
    return LossTokens(
        old_logprobs=tokens.old[place],
        advantages=tokens.advantages[place],
        scale=tokens.scale[place],
        response=tokens.response[place],
        source_mean=tokens.source_mean[place],
        responses=tokens.responses,
        clip_low=spec.clip_low,
        clip_high=spec.clip_high,
        updates=updates,
    )


def check_responses(
    minibatches: Sequence[Sequence[TrainingResponse]], where: str, limit: int, excluded: Sequence[int] = ()
) -> None:
    """Raise TrainerError for a response whose ids, lengths or numbers cannot be trained on, naming which one it is."""
    for number, minibatch in enumerate(minibatches):
        if not minibatch or _sound(minibatch, limit, excluded):
            continue
        for index, response in enumerate(minibatch):
            problem = _problem(response, limit, excluded)
            if problem:
                raise TrainerError(f"{where}, minibatch {number}, response {index}: {problem}")


def _sound(minibatch: Sequence[TrainingResponse], limit: int, excluded: Sequence[int]) -> bool:
    """Whether all responses pass `_problem`, looked at together."""
    for response in minibatch:
        length = len(response.response_ids)
        given = [values for values in (response.old_logprobs, response.engine_logprobs) if values is not None]
        if length == 0 or len(response.prompt_ids) == 0 or any(len(values) != length for values in given):
            return False
    ids = np.concatenate([part for response in minibatch for part in response.pair])
    numbers = np.array([(response.advantage, response.weight) for response in minibatch], dtype=np.float64)
    old = [response.old_logprobs for response in minibatch if response.old_logprobs is not None]
    return bool(
        ids.min() >= 0
        and ids.max() < limit
        and not (excluded and np.isin(ids, excluded).any())
        and np.isfinite(numbers).all()
        and numbers[:, 1].min() >= 0
        and (not old or np.isfinite(np.concatenate(old)).all())
    )


def _problem(response: TrainingResponse, limit: int, excluded: Sequence[int]) -> str:
    """What is wrong with one response; empty when nothing is."""
    length = len(response.response_ids)
    if length == 0 or len(response.prompt_ids) == 0:
        return "prompt and response need at least one token each"
    for name, ids in (("prompt", response.prompt_ids), ("response", response.response_ids)):
        low, high = int(np.min(ids)), int(np.max(ids))
        if low < 0 or high >= limit:
            return f"its {name} has the token id {low if low < 0 else high}; this model's ids are 0 to {limit - 1}"
        if excluded and np.isin(ids, excluded).any():
            return f"its {name} has the token id {ids[np.isin(ids, excluded)][0]}, which the tokenizer does not know"
    for name, values in (("old", response.old_logprobs), ("engine", response.engine_logprobs)):
        if values is not None and len(values) != length:
            return f"it has {length} tokens but {len(values)} {name} log-probabilities"
    if response.old_logprobs is not None and not np.isfinite(response.old_logprobs).all():
        return "its old log-probabilities are not all finite"
    if not np.isfinite(response.advantage):
        return f"its advantage is {response.advantage}"
    if not (np.isfinite(response.weight) and response.weight >= 0):
        return f"its weight is {response.weight}; it must be finite and not negative"
    return ""
