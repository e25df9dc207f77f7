"""What one token adds to the loss: each term against its formula in double precision, value and gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.losses import (
    LossTokens,
    clipped_ratio,
    importance_weight,
    k3,
    negative_log_likelihood,
    sequence_clip,
    sequence_ratio,
    shaped,
)
from graft.objective import token_surrogate

LOSSES = [clipped_ratio, sequence_ratio, shaped, negative_log_likelihood, sequence_clip]
seeds = st.integers(0, 100_000)


def random_tokens(seed, responses=4, spread=0.4):
    """Log-probs with gradient, and all a loss asks for, of responses of random lengths in float64."""
    rng = np.random.default_rng(seed)
    lengths = torch.from_numpy(rng.integers(1, 8, responses))
    tokens = int(lengths.sum())

    def per_response(values):
        return torch.from_numpy(values).repeat_interleave(lengths)

    old = torch.from_numpy(-rng.uniform(0, 2, tokens))
    logprobs = old + torch.from_numpy(spread * rng.standard_normal(tokens))
    return logprobs.requires_grad_(), LossTokens(
        old_logprobs=old,
        advantages=per_response(rng.standard_normal(responses)),
        scale=per_response(rng.uniform(0.1, 1, responses)),
        response=torch.arange(responses).repeat_interleave(lengths),
        source_mean=per_response(-rng.uniform(0.7, 1.3, responses)),
        responses=responses,
        clip_low=0.2,
        clip_high=0.28,
        updates=0,
    )


def each_response(logprobs, tokens):
    """(log-probs, old, scale, advantage, source mean) of every response in turn."""
    for number in range(tokens.responses):
        of = tokens.response == number
        yield (
            logprobs[of], tokens.old_logprobs[of], tokens.scale[of],
            float(tokens.advantages[of][0]), float(tokens.source_mean[of][0]),
        )  # fmt: skip


def clip(value, low, high):
    bounds = [torch.tensor(bound, dtype=torch.float64) for bound in (low, high)]
    return torch.minimum(torch.maximum(value, bounds[0]), bounds[1])


def by_hand(name, logprobs, tokens):
    """The loss from the papers' formulas, one response at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for lp, old, scale, a, source_mean in each_response(logprobs, tokens):
        if name == "clipped_ratio":
            rho = torch.exp(lp - old)
            term = torch.minimum(rho * a, clip(rho, 0.8, 1.28) * a)
        elif name == "sequence_ratio":
            s = torch.exp((lp - old).sum() / len(lp))
            term = torch.minimum(s * a, clip(s, 0.8, 1.28) * a).expand(len(lp))
        elif name == "shaped":
            term = torch.exp(lp) / (torch.exp(lp) + 0.1) * a
        elif name == "negative_log_likelihood":
            term = lp
        else:
            s = torch.exp(lp.sum() / len(lp) - source_mean)
            inside = clip(s, 0.8 + 0.025 * tokens.updates, 1.0)
            term = (inside * float(inside.detach()) * a).expand(len(lp))
        total = total - (scale * term).sum()
    return total


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=40)
@given(seed=seeds)
def test_value_and_gradient_are_the_papers(loss, seed):
    logprobs, tokens = random_tokens(seed)
    found, expected = loss(logprobs, tokens)[0].sum(), by_hand(loss.__name__, logprobs, tokens)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12, abs=1e-14)
    gradients = [torch.autograd.grad(value, logprobs)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-14)


@settings(max_examples=30)
@given(seeds)
def test_the_clipped_ratio_is_the_trainers_surrogate_bit_for_bit(seed):
    logprobs, tokens = random_tokens(seed)
    terms, clipped = clipped_ratio(logprobs, tokens)
    expected = token_surrogate(logprobs, tokens.old_logprobs, tokens.advantages, tokens.scale)
    assert torch.equal(terms, expected[0])
    assert torch.equal(clipped, expected[1])


@pytest.mark.parametrize("loss", [clipped_ratio, sequence_ratio, sequence_clip])
@settings(max_examples=40)
@given(seed=seeds)
def test_clipped_says_where_the_gradient_is_held_at_zero(loss, seed):
    logprobs, tokens = random_tokens(seed)
    terms, clipped = loss(logprobs, tokens)
    gradient = torch.autograd.grad(terms.sum(), logprobs)[0]
    assert torch.equal(gradient == 0, clipped)


def test_one_token_responses_make_the_sequence_ratio_the_token_ratio():
    logprobs, tokens = random_tokens(3)
    alone = replace(tokens, response=torch.arange(len(logprobs)), responses=len(logprobs))
    torch.testing.assert_close(sequence_ratio(logprobs, alone)[0], clipped_ratio(logprobs, tokens)[0])


def test_shaping_is_steepest_for_tokens_of_probability_gamma():
    probability = torch.tensor([1e-3, 0.1, 0.9], dtype=torch.float64)
    logprobs = probability.log().requires_grad_()
    tokens = replace(random_tokens(0)[1], advantages=torch.full((3,), 2.0), scale=torch.full((3,), 0.5))
    terms, clipped = shaped(logprobs, tokens)
    terms.sum().backward()
    expected = [-0.5 * 2.0 * 0.1 * p / (p + 0.1) ** 2 for p in probability.tolist()]
    assert logprobs.grad.tolist() == pytest.approx(expected, rel=1e-12)
    assert logprobs.grad.argmin() == 1
    assert not clipped.any()


def test_the_likelihood_term_reads_no_advantage():
    logprobs, tokens = random_tokens(1)
    silent = replace(tokens, advantages=torch.zeros_like(tokens.advantages))
    terms, clipped = negative_log_likelihood(logprobs, silent)
    assert torch.equal(torch.autograd.grad(terms.sum(), logprobs)[0], -tokens.scale)
    assert not clipped.any()


@pytest.mark.parametrize(("updates", "lower"), [(0, 0.8), (1, 0.825), (3, 0.875), (8, 1.0), (20, 1.0)])
def test_the_peer_window_closes_with_every_update(updates, lower):
    logs = torch.log(torch.tensor([lower - 0.01, lower + 1e-9, (lower + 1) / 2, 1 + 1e-9], dtype=torch.float64))
    logprobs = (logs - 1.0).requires_grad_()
    ones = torch.ones(4, dtype=torch.float64)
    tokens = replace(
        random_tokens(0)[1], advantages=ones, scale=ones, source_mean=-ones, response=torch.arange(4), responses=4,
        updates=updates,
    )  # fmt: skip
    terms, clipped = sequence_clip(logprobs, tokens)
    terms.sum().backward()
    window = logs.exp().clamp(lower, 1.0)
    torch.testing.assert_close(terms.detach(), -(window**2))  # clip(s) times clip(s) to the power alpha = 1
    inside = [False, lower < 1, True, False]  # a ratio of exactly 1 is inside even a closed window
    assert clipped.tolist() == [not one for one in inside]
    # The second factor is a constant: d/dlog pi is s * c, half of what c squared would give.
    assert logprobs.grad.tolist() == pytest.approx(
        [-(float(c) ** 2) * one for c, one in zip(window, inside, strict=True)]
    )


def test_the_peer_term_has_no_minimum_with_the_unclipped_ratio():
    # PPO would let a bad response above the window be pushed down; here its gradient is gone, as the formula has it.
    logprobs = torch.tensor([-0.5, -0.5], dtype=torch.float64, requires_grad=True)
    ones = torch.ones(2, dtype=torch.float64)
    tokens = replace(
        random_tokens(0)[1], advantages=-ones, scale=ones, source_mean=-ones, response=torch.zeros(2).long(),
        responses=1,
    )  # fmt: skip
    terms, clipped = sequence_clip(logprobs, tokens)
    terms.sum().backward()
    assert terms.tolist() == [1.0, 1.0]
    assert clipped.all()
    assert (logprobs.grad == 0).all()


def test_peer_ratios_far_apart_stay_finite():
    logprobs = torch.tensor([-500.0, -math.inf, -1.0], dtype=torch.float64, requires_grad=True)
    ones = torch.ones(3, dtype=torch.float64)
    tokens = replace(
        random_tokens(0)[1], advantages=ones, scale=ones, source_mean=torch.tensor([-1.0, -1.0, -300.0]),
        response=torch.arange(3), responses=3,
    )  # fmt: skip
    terms, _ = sequence_clip(logprobs, tokens)
    terms.sum().backward()
    torch.testing.assert_close(terms.detach(), torch.tensor([-0.64, -0.64, -1.0]).double())
    assert (logprobs.grad == 0).all()


def test_own_responses_among_peers_leave_no_nan_behind():
    logprobs, tokens = random_tokens(2)
    own = tokens.response % 2 == 0
    mixed = replace(tokens, source_mean=tokens.source_mean.masked_fill(own, math.nan))
    terms, _ = sequence_clip(logprobs, mixed)
    gradient = torch.autograd.grad(terms.where(~own, clipped_ratio(logprobs, mixed)[0]).sum(), logprobs)[0]
    alone = [
        torch.autograd.grad(loss(logprobs, tokens)[0].sum(), logprobs)[0] for loss in (clipped_ratio, sequence_clip)
    ]
    torch.testing.assert_close(gradient, torch.where(own, *alone))


@pytest.mark.parametrize("loss", [sequence_ratio, sequence_clip])
def test_a_response_number_without_tokens_does_no_harm(loss):
    logprobs, tokens = random_tokens(5)
    gaps = replace(tokens, response=tokens.response * 2 + 1, responses=2 * tokens.responses + 1)
    assert torch.equal(loss(logprobs, gaps)[0], loss(logprobs, tokens)[0])


@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_is_computed_in_single(loss):
    logprobs, tokens = random_tokens(6)
    single = {name: getattr(tokens, name).float() for name in ("old_logprobs", "advantages", "scale", "source_mean")}
    terms, clipped = loss(logprobs.detach().bfloat16(), replace(tokens, **single))
    assert terms.dtype == torch.float32
    assert clipped.dtype == torch.bool


@settings(max_examples=40)
@given(seeds)
def test_k3_is_its_formula_and_never_negative(seed):
    rng = np.random.default_rng(seed)
    logprobs = torch.from_numpy(-rng.uniform(0, 3, 20)).requires_grad_()
    reference = torch.from_numpy(-rng.uniform(0, 3, 20))
    terms = k3(logprobs, reference)
    expected = [math.exp(r - p) - (r - p) - 1 for p, r in zip(logprobs.tolist(), reference.tolist(), strict=True)]
    assert terms.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert (terms >= 0).all()
    gradient = torch.autograd.grad(terms.sum(), logprobs)[0]
    torch.testing.assert_close(gradient, 1 - (reference - logprobs.detach()).exp(), rtol=1e-12, atol=1e-14)


def test_k3_is_zero_with_zero_gradient_where_the_models_agree_and_finite_where_they_cannot():
    logprobs = torch.tensor([-1.0, -500.0, -1.0], requires_grad=True)
    terms = k3(logprobs, torch.tensor([-1.0, -1.0, -500.0]))
    terms.sum().backward()
    assert terms[0] == 0
    assert torch.isfinite(terms).all()
    assert logprobs.grad[0] == 0
    assert torch.isfinite(logprobs.grad).all()


def test_k3_estimates_the_divergence_of_two_distributions_without_bias():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-12)


def test_importance_weights_are_truncated_ratios_and_one_where_the_engine_is_unknown() -> None:
    old = torch.tensor([-1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    engine = torch.tensor([-1.0, -1.5, -0.5, math.nan], dtype=torch.float64)
    weights = importance_weight(old, engine, 1.2)
    assert weights.tolist() == pytest.approx([1.0, 1.2, math.exp(-0.5), 1.0])
