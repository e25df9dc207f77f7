"""The clipped surrogate: golden values and gradients, and what must not change them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.objective import clipped_surrogate, minibatch_denominator, response_scale, token_surrogate

AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
seeds = st.integers(0, 100_000)


def random_batch(seed, rows=5, tokens=7):
    """logprobs (with gradient), old, mask, advantages, weights in float64; masked tails of any length."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, tokens, generator=generator, dtype=torch.float64) * 3
    logprobs = old + 0.4 * torch.randn(rows, tokens, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, tokens + 1, (rows,), generator=generator)
    mask = torch.arange(tokens)[None] < lengths[:, None]
    advantages = torch.randn(rows, generator=generator, dtype=torch.float64)
    weights = 0.8 + 0.2 * torch.rand(rows, generator=generator, dtype=torch.float64)
    return logprobs.requires_grad_(), old, mask, advantages, weights


def loss_and_gradient(logprobs, *rest, **options):
    leaf = logprobs.detach().clone().requires_grad_()
    loss, stats = clipped_surrogate(leaf, *rest, **options)
    loss.backward()
    return loss.item(), leaf.grad, stats


def test_golden_losses_gradients_and_clip_fractions(golden):
    for case in golden("objective"):
        tensors = [
            torch.tensor(case[name], dtype=torch.float64)
            for name in ("logprobs", "old_logprobs", "mask", "advantages", "weights")
        ]
        options = {name: case[name] for name in ("clip_low", "clip_high", "aggregation")}
        loss, gradient, stats = loss_and_gradient(*tensors, **options)
        assert loss == pytest.approx(case["loss"], rel=1e-12, abs=1e-14)
        np.testing.assert_allclose(gradient.numpy(), case["gradient"], rtol=1e-10, atol=1e-15)
        assert stats.fraction == pytest.approx(case["clip_fraction"])


def test_the_loss_is_the_papers_equation():
    logprobs, old, mask, advantages, weights = (tensor.detach() for tensor in random_batch(3))
    total = 0.0
    for j in range(5):
        for t in range(int(mask[j].sum())):
            rho, a = math.exp(logprobs[j, t] - old[j, t]), float(advantages[j])
            total += float(weights[j]) * min(rho * a, min(max(rho, 0.8), 1.28) * a)
    loss, _ = clipped_surrogate(logprobs, old, mask, advantages, weights)
    assert loss.item() == pytest.approx(-total / int(mask.sum()), rel=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("behind", [math.nan, math.inf, -math.inf, 1e30])
def test_values_behind_the_mask_reach_neither_loss_nor_gradient(aggregation, behind):
    logprobs, old, mask, advantages, weights = random_batch(1)
    clean = loss_and_gradient(logprobs, old, mask, advantages, weights, aggregation=aggregation)
    dirty = loss_and_gradient(
        torch.where(mask, logprobs, behind), torch.where(mask, old, -behind), mask, advantages, weights,
        aggregation=aggregation,
    )  # fmt: skip
    assert dirty[0] == clean[0]
    assert torch.equal(dirty[1], clean[1])
    assert dirty[2] == clean[2]


def test_extreme_ratios_stay_finite_and_pass_no_gradient():
    logprobs = torch.tensor([[0.0, -500.0, -math.inf, 300.0]], requires_grad=True)
    old = torch.tensor([[-500.0, 0.0, -1.0, -300.0]])
    for advantage in (1.0, -1.0):
        logprobs.grad = None
        loss, _ = clipped_surrogate(logprobs, old, torch.ones(1, 4), torch.tensor([advantage]), torch.ones(1))
        loss.backward()
        assert math.isfinite(loss.item())
        assert (logprobs.grad == 0).all()


def test_zero_advantage_gives_zero_loss_and_gradient_but_counts_in_the_denominator():
    logprobs, old, mask, advantages, weights = random_batch(2)
    silent = advantages.clone()
    silent[1:] = 0.0
    loss, gradient, stats = loss_and_gradient(logprobs, old, mask, silent, weights)
    alone, _, _ = loss_and_gradient(logprobs[:1], old[:1], mask[:1], silent[:1], weights[:1])
    assert (gradient[1:] == 0).all()
    assert stats.tokens == int(mask.sum())
    assert loss == pytest.approx(alone * int(mask[0].sum()) / int(mask.sum()))


@settings(max_examples=50)
@given(seeds, st.sampled_from(AGGREGATIONS))
def test_a_refused_response_is_as_if_it_were_not_there(seed, aggregation):
    logprobs, old, mask, advantages, weights = random_batch(seed)
    weights[2] = 0.0
    kept = [0, 1, 3, 4]
    loss, gradient, stats = loss_and_gradient(logprobs, old, mask, advantages, weights, aggregation=aggregation)
    rest = loss_and_gradient(
        logprobs[kept], old[kept], mask[kept], advantages[kept], weights[kept], aggregation=aggregation
    )
    assert loss == pytest.approx(rest[0], rel=1e-12, abs=1e-14)
    assert (gradient[2] == 0).all()
    torch.testing.assert_close(gradient[kept], rest[1])
    assert stats == rest[2]


@settings(max_examples=50)
@given(seeds, st.sampled_from(AGGREGATIONS), st.integers(1, 4))
def test_micro_batches_with_one_denominator_add_up_to_the_minibatch(seed, aggregation, cut):
    batch = random_batch(seed)
    whole, gradient, stats = loss_and_gradient(*batch, aggregation=aggregation)
    denominator = minibatch_denominator(batch[2].sum(dim=1), aggregation)
    parts = [
        loss_and_gradient(*(tensor[rows] for tensor in batch), aggregation=aggregation, denominator=denominator)
        for rows in (slice(0, cut), slice(cut, None))
    ]
    assert parts[0][0] + parts[1][0] == pytest.approx(whole, rel=1e-12, abs=1e-14)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), gradient, rtol=1e-12, atol=1e-15)
    assert sum(part[2].clipped for part in parts) == stats.clipped


@settings(max_examples=50)
@given(seeds, st.sampled_from(AGGREGATIONS))
def test_packed_tokens_give_the_padded_loss_and_gradient(seed, aggregation):
    logprobs, old, mask, advantages, weights = random_batch(seed)
    whole, gradient, stats = loss_and_gradient(logprobs, old, mask, advantages, weights, aggregation=aggregation)
    lengths = mask.sum(dim=1)
    flat = logprobs.detach()[mask].requires_grad_()
    scale = response_scale(lengths, aggregation, dtype=torch.float64)
    scaled = (weights * scale).repeat_interleave(lengths)
    terms, clipped = token_surrogate(flat, old[mask], advantages.repeat_interleave(lengths), scaled)
    loss = terms.sum() / minibatch_denominator(lengths, aggregation)
    loss.backward()
    assert loss.item() == pytest.approx(whole, rel=1e-12, abs=1e-14)
    torch.testing.assert_close(flat.grad, gradient[mask], rtol=1e-12, atol=1e-15)
    assert int(clipped.sum()) == stats.clipped


def test_at_theta_old_the_gradient_is_the_weighted_advantage_and_nothing_is_clipped():
    _, old, mask, advantages, weights = random_batch(7)
    _, gradient, stats = loss_and_gradient(old, old, mask, advantages, weights)
    torch.testing.assert_close(gradient, -(weights * advantages)[:, None] * mask / mask.sum())
    assert stats.clipped == 0


def test_clip_is_asymmetric_and_acts_only_on_the_side_the_advantage_pushes_to():
    ratios = torch.tensor([[0.79, 0.81, 1.27, 1.29]])
    for advantage, expected in ((1.0, [False, False, False, True]), (-1.0, [True, False, False, False])):
        logprobs = ratios.log().requires_grad_()
        terms, clipped = token_surrogate(logprobs, torch.zeros(1, 4), torch.tensor([[advantage]]), torch.ones(1, 1))
        terms.sum().backward()
        assert clipped[0].tolist() == expected
        assert ((logprobs.grad[0] == 0) == clipped[0]).all()


def test_half_precision_is_computed_in_single():
    logprobs, old, mask, advantages, weights = (tensor.detach() for tensor in random_batch(4))
    loss, _ = clipped_surrogate(logprobs.bfloat16(), old.bfloat16(), mask, advantages.float(), weights.float())
    assert loss.dtype == torch.float32


def test_an_empty_minibatch_has_zero_loss_and_an_undefined_clip_fraction():
    logprobs, old, mask, advantages, weights = random_batch(4)
    loss, gradient, stats = loss_and_gradient(logprobs, old, torch.zeros_like(mask), advantages, weights)
    assert loss == 0.0
    assert (gradient == 0).all()
    assert math.isnan(stats.fraction)


def test_unknown_aggregation_and_empty_denominator_are_refused():
    batch = random_batch(4)
    with pytest.raises(ValueError, match="aggregation must be"):
        clipped_surrogate(*batch, aggregation="mean")
    with pytest.raises(ValueError, match="denominator must be positive"):
        clipped_surrogate(*batch, denominator=0)
