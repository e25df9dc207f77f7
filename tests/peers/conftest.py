"""What both peers are compared on: random groups of rewards, and random batches of log-probs in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graft.losses import LossTokens, sequence_ratio
from graft.objective import Aggregation, clipped_surrogate, minibatch_denominator, response_scale


@dataclass(frozen=True)
class Batch:
    """Log-probs under theta and theta_old, mask [R, T]; advantages and weights [R]. Masked tails of any length."""

    logprobs: Tensor
    old: Tensor
    mask: Tensor
    advantages: Tensor
    weights: Tensor

    def ours(self, **options: Any) -> tuple[float, Tensor, Any]:
        """Our clipped loss, its gradient by log-prob [R, T] and its clip statistics."""
        leaf = self.logprobs.clone().requires_grad_()
        loss, stats = clipped_surrogate(leaf, self.old, self.mask, self.advantages, self.weights, **options)
        loss.backward()
        return loss.item(), leaf.grad, stats

    def ours_by_sequence(self, aggregation: Aggregation) -> tuple[float, Tensor]:
        """Our loss with one ratio per response, unweighted, and its gradient by log-prob of the unmasked tokens [N]."""
        lengths = self.mask.sum(dim=1)
        scale = response_scale(lengths, aggregation, dtype=torch.float64) / minibatch_denominator(lengths, aggregation)
        leaf = self.logprobs[self.mask].requires_grad_()
        tokens = LossTokens(
            old_logprobs=self.old[self.mask],
            advantages=self.advantages.repeat_interleave(lengths),
            scale=scale.repeat_interleave(lengths),
            response=torch.arange(len(lengths)).repeat_interleave(lengths),
            source_mean=torch.full_like(leaf, torch.nan),
            responses=len(lengths),
            clip_low=0.2,
            clip_high=0.28,
            updates=0,
        )
        loss = sequence_ratio(leaf, tokens)[0].sum()
        loss.backward()
        return loss.item(), leaf.grad


@pytest.fixture(scope="session")
def random_batch() -> Callable[..., Batch]:
    """Batches by seed: ratios on both sides of the clip, further from it with a larger spread; all weights 1 or not."""

    def make(seed: int, *, spread: float = 0.4, weighted: bool = False, rows: int = 12, tokens: int = 9) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        old = -3 * torch.rand(rows, tokens, generator=generator, dtype=torch.float64)
        logprobs = old + spread * torch.randn(rows, tokens, generator=generator, dtype=torch.float64)
        lengths = torch.randint(1, tokens + 1, (rows,), generator=generator)
        weights = 0.8 + 0.2 * torch.rand(rows, generator=generator, dtype=torch.float64)
        return Batch(
            logprobs,
            old,
            torch.arange(tokens)[None] < lengths[:, None],
            torch.randn(rows, generator=generator, dtype=torch.float64),
            weights if weighted else torch.ones_like(weights),
        )

    return make


@pytest.fixture(scope="session")
def random_groups() -> Callable[[int], list[list[float]]]:
    """Groups of 8 rewards by seed, all with variance: right or wrong in half of them, any number in the other half."""

    def make(seed: int) -> list[list[float]]:
        rng = np.random.default_rng(seed)
        graded = [rng.permutation([1.0] * k + [0.0] * (8 - k)).tolist() for k in rng.integers(1, 8, 16)]
        return graded + rng.normal(size=(16, 8)).tolist()

    return make


@pytest.fixture(scope="session")
def differences() -> Iterator[Callable[[str, Any], None]]:
    """Takes (name of a comparison, a difference); the largest of each is printed when all tests are done."""
    found: dict[str, float] = {}

    def note(name: str, value: Any) -> None:
        found[name] = max(found.get(name, 0.0), float(value))

    yield note
    print("\n\nlargest difference from")
    for name, value in found.items():
        print(f"  {name:76} {value:.1e}")
