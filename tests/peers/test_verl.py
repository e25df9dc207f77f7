"""The same numbers as verl 0.9 (verl.trainer.ppo.core_algos), and by how much it differs where it means to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from graft.advantages import group_advantages
from graft.losses import k3

pytestmark = pytest.mark.peers
SEEDS = range(20)
AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
NO_DUAL_CLIP = 1e9


@pytest.fixture(scope="module")
def core() -> Any:
    from verl.trainer.ppo import core_algos

    return core_algos


def actor(**options: Any) -> Any:
    from verl.workers.config import ActorConfig

    ready = {"strategy": "fsdp", "rollout_n": 8, "ppo_micro_batch_size_per_gpu": 1}
    return ActorConfig(clip_ratio_low=0.2, clip_ratio_high=0.28, **ready, **options)


def outcome_advantages(function: Any, groups: list[list[float]], dtype: torch.dtype, **options: Any) -> np.ndarray:
    """verl's advantages [groups, n] of rewards that stand on the last token of each response."""
    rewards = torch.tensor(groups, dtype=dtype).flatten()
    placed = torch.zeros(len(rewards), 3, dtype=dtype)
    placed[:, 2] = rewards
    index = np.repeat(np.arange(len(groups)), len(groups[0]))
    found, _ = function(placed, torch.ones(len(rewards), 3, dtype=dtype), index, **options)
    assert (found == found[:, :1]).all()
    return found[:, 0].reshape(len(groups), -1).double().numpy()


@pytest.mark.parametrize("name", ["compute_grpo_outcome_advantage", "compute_grpo_vectorized_outcome_advantage"])
@pytest.mark.parametrize(("scaled", "std"), [(True, "sample"), (False, "none")])
def test_group_advantages_are_verls(core, random_groups, differences, name, scaled, std):
    for seed in SEEDS:
        groups = random_groups(seed)
        ours = np.array([group_advantages(rewards, std=std) for rewards in groups])
        theirs = outcome_advantages(getattr(core, name), groups, torch.float64, norm_adv_by_std_in_grpo=scaled)
        differences(f"verl {name}, std={std}", abs(ours - theirs).max())
        # The vectorised one computes in single precision whatever it is given.
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-6 if "vectorized" in name else 1e-12)


def test_group_advantages_are_verls_in_single_precision_too(core, random_groups, differences):
    for seed in SEEDS:
        groups = random_groups(seed)
        ours = np.array([group_advantages(rewards) for rewards in groups])
        theirs = outcome_advantages(core.compute_grpo_outcome_advantage, groups, torch.float32)
        differences("verl compute_grpo_outcome_advantage, std=sample, float32", abs(ours - theirs).max())
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-6)


def test_a_group_of_one_has_advantage_zero_here_and_its_own_reward_in_verl(core):
    assert group_advantages([0.7]).tolist() == [0.0]
    found = outcome_advantages(core.compute_grpo_outcome_advantage, [[0.7]], torch.float64)
    assert found.item() == pytest.approx(0.7 / (1 + 1e-6), rel=1e-7)


def test_equal_rewards_give_exactly_zero_here_and_rounding_over_eps_in_verl(core):
    rewards = [0.1] * 7
    assert group_advantages(rewards).tolist() == [0.0] * 7
    found = outcome_advantages(core.compute_grpo_outcome_advantage, [rewards], torch.float32)
    # One unit in the last place of 0.1 in single precision, over eps = 1e-6.
    assert abs(found).max() <= 2**-27 / 1e-6


def verls(batch: Any, aggregation: str) -> Any:
    """The batch with verl's denominator: for seq-mean-token-mean it adds 1e-8 to the token count of each response."""
    lengths = batch.mask.sum(dim=1).double()
    factor = lengths / (lengths + 1e-8) if aggregation == "seq-mean-token-mean" else 1.0
    return replace(batch, weights=batch.weights * factor)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_clipped_loss_and_its_gradient_are_verls(core, random_batch, differences, aggregation, weighted):
    for seed in SEEDS:
        batch = random_batch(seed, weighted=weighted)
        leaf = batch.logprobs.clone().requires_grad_()
        mask = batch.mask.double()
        theirs, metrics = core.compute_policy_loss_vanilla(
            batch.old, leaf, batch.advantages[:, None].expand_as(leaf), mask, aggregation,
            actor(clip_ratio_c=NO_DUAL_CLIP), rollout_is_weights=batch.weights[:, None],
        )  # fmt: skip
        theirs.backward()
        loss, gradient, stats = verls(batch, aggregation).ours(aggregation=aggregation)
        differences(f"verl clipped loss, {aggregation}", abs(theirs.item() - loss))
        differences(f"verl gradient of it, {aggregation}", (leaf.grad - gradient).abs().max())
        assert theirs.item() == pytest.approx(loss, rel=1e-12, abs=1e-15)
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-12, atol=1e-15)
        assert metrics["actor/pg_clipfrac"] == pytest.approx(stats.fraction, rel=1e-6)


def test_the_clipped_loss_is_verls_in_single_precision_too(core, random_batch, differences):
    for seed in SEEDS:
        batch = random_batch(seed, weighted=True)
        single = [tensor.float() for tensor in (batch.old, batch.logprobs, batch.advantages, batch.weights)]
        theirs, _ = core.compute_policy_loss_vanilla(
            single[0], single[1], single[2][:, None].expand_as(single[1]), batch.mask.float(), "token-mean",
            actor(clip_ratio_c=NO_DUAL_CLIP), rollout_is_weights=single[3][:, None],
        )  # fmt: skip
        loss, _, _ = type(batch)(single[1], single[0], batch.mask, single[2], single[3]).ours()
        differences("verl clipped loss, token-mean, float32", abs(theirs.item() - loss))
        assert theirs.item() == pytest.approx(loss, rel=1e-5, abs=1e-6)


def test_verls_dual_clip_takes_off_exactly_what_bad_tokens_lose_beyond_a_ratio_of_three(core, random_batch):
    # verl's default: where a < 0 a token costs at most 3 |a|. The paper has no such bound, so neither have we.
    acted = 0
    for seed in SEEDS:
        batch = random_batch(seed, spread=1.5)
        mask, tokens = batch.mask.double(), int(batch.mask.sum())
        advantages = batch.advantages[:, None].expand_as(batch.logprobs)
        theirs, _ = core.compute_policy_loss_vanilla(batch.old, batch.logprobs, advantages, mask, "token-mean", actor())
        ratio = (batch.logprobs - batch.old).exp()
        beyond = ((ratio - 3.0).clamp(min=0) * (-advantages).clamp(min=0) * mask).sum().item()
        loss, _, _ = batch.ours()
        assert loss - theirs.item() == pytest.approx(beyond / tokens, rel=1e-9, abs=1e-12)
        acted += beyond > 0
    assert acted > 10


def test_extreme_ratios_are_bounded_as_in_verl(core, random_batch):
    for seed in SEEDS:
        batch = random_batch(seed, spread=30.0)
        theirs, _ = core.compute_policy_loss_vanilla(
            batch.old, batch.logprobs, batch.advantages[:, None].expand_as(batch.old), batch.mask.double(),
            "token-mean", actor(clip_ratio_c=NO_DUAL_CLIP),
        )  # fmt: skip
        assert theirs.item() == pytest.approx(batch.ours()[0], rel=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS[:2])
def test_the_sequence_ratio_is_verls_gspo_in_value_and_gradient(core, random_batch, differences, aggregation):
    for seed in SEEDS:
        batch = random_batch(seed)
        leaf = batch.logprobs.clone().requires_grad_()
        theirs, _ = core.compute_policy_loss_gspo(
            batch.old, leaf, batch.advantages[:, None].expand_as(leaf), batch.mask.double(), aggregation, actor()
        )
        theirs.backward()
        loss, gradient = batch.ours_by_sequence(aggregation)
        differences(f"verl gspo, {aggregation}", abs(theirs.item() - loss))
        # Relative to single terms; their sum is smaller. 1e-8 is what verl adds to each token count.
        assert theirs.item() == pytest.approx(loss, abs=1e-8)
        torch.testing.assert_close(leaf.grad[batch.mask], gradient, rtol=1.1e-8, atol=1e-15)


def test_k3_is_verls_up_to_the_ten_that_verl_bounds_it_by(core, differences):
    generator = torch.Generator().manual_seed(0)
    logprobs, reference = -8 * torch.rand(2, 2000, generator=generator, dtype=torch.float64)
    ours, theirs = k3(logprobs, reference), core.kl_penalty(logprobs, reference, "k3")
    small = ours < 10
    differences("verl k3 where it is below 10", (ours - theirs)[small].abs().max())
    torch.testing.assert_close(theirs[small], ours[small], rtol=1e-12, atol=1e-15)
    assert (theirs[~small] == 10).all()
    assert (~small).any()
