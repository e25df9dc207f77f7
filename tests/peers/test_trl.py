"""The same numbers as TRL 1.16 (trl.GRPOTrainer), and by how much it differs where it means to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graft.advantages import group_advantages
from graft.losses import k3

pytestmark = pytest.mark.peers
SEEDS = range(20)


def tiny_model(folder: Path) -> tuple[Any, Any]:
    """A model of some thousand random weights, saved where TRL looks for its reference, and a tokenizer of words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    words = Tokenizer(
        WordLevel({word: i for i, word in enumerate(["<end>", "<pad>", "<unk>", "a", "b", "c"])}, "<unk>")
    )
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", pad_token="<pad>", unk_token="<unk>", bos_token="<end>"
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=6, pad_token_id=1, eos_token_id=0, bos_token_id=0, **sizes))
    model.save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder), tokenizer


class Rewards:
    """A reward function that gives out the rewards it was told, in order."""

    __name__ = "told"

    def __init__(self) -> None:
        self.told: list[float] = []

    def __call__(self, completions: list[Any], **_: Any) -> list[float]:
        assert len(completions) == len(self.told)
        return self.told


@pytest.fixture(scope="module")
def rewards() -> Rewards:
    return Rewards()


def new_trainer(rewards: Rewards, folder: Path, **settings: Any) -> Any:
    """A trainer ready to compute losses, with the paper's clip and no reference unless the settings say otherwise."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = tiny_model(folder)
    options: dict[str, Any] = {"epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0} | settings
    made = GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=3,
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            **options,
        ),
        train_dataset=Dataset.from_list([{"prompt": "a b"}] * 4),
        processing_class=tokenizer,
    )
    made.current_gradient_accumulation_steps = 1
    made.model.train()
    return made


@pytest.fixture(scope="module")
def trainer(rewards: Rewards, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Trainers by their settings, each made once."""
    folder = tmp_path_factory.mktemp("trl")
    return cache(partial(new_trainer, rewards, folder))


def trl_advantages(trainer: Any, rewards: Rewards, group: list[float]) -> np.ndarray:
    """What TRL computes for one group after sampling it."""
    rewards.told = group
    found = trainer._generate_and_score_completions([{"prompt": "a b"} for _ in group])
    return found["advantages"].double().numpy()


def trl_loss(trainer: Any, batch: Any, reference: torch.Tensor | None = None) -> tuple[float, torch.Tensor]:
    """TRL's loss of a batch and its gradient, with the log-probs put in the place of its model's."""
    leaf = batch.logprobs.clone().requires_grad_()
    ids = torch.zeros(leaf.shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": batch.mask.long(),
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": batch.mask.sum().double(),
    }
    given = trainer._get_per_token_logps_and_entropies
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (leaf, torch.zeros_like(leaf), None)
    try:
        loss = trainer._compute_loss(trainer.model, inputs)
    finally:
        trainer._get_per_token_logps_and_entropies = given
    loss.backward()
    return loss.item(), leaf.grad


@pytest.mark.parametrize(("scale", "std"), [("group", "sample"), ("none", "none")])
def test_group_advantages_are_trls_with_its_eps(trainer, rewards, random_groups, differences, scale, std):
    peer = trainer(scale_rewards=scale)
    for group in random_groups(0):
        theirs = trl_advantages(peer, rewards, group)
        ours = group_advantages(group, std=std, eps=1e-4)
        differences(f"trl advantages, std={std}, float32", abs(theirs - ours).max())
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-6)


def test_trls_larger_eps_makes_its_advantages_smaller_by_exactly_that(trainer, rewards, random_groups):
    peer = trainer(scale_rewards="group")
    for group in random_groups(1)[:8]:
        deviation = float(np.std(group, ddof=1))
        expected = group_advantages(group) * (deviation + 1e-6) / (deviation + 1e-4)
        np.testing.assert_allclose(trl_advantages(peer, rewards, group), expected, rtol=0, atol=2e-6)


# TRL's name of a loss, our aggregation: bnpo and dapo are both the mean over tokens, of a micro-batch and of the batch.
@pytest.mark.parametrize(
    ("loss_type", "aggregation"), [("dapo", "token-mean"), ("bnpo", "token-mean"), ("grpo", "seq-mean-token-mean")]
)
def test_the_clipped_loss_and_its_gradient_are_trls(trainer, random_batch, differences, loss_type, aggregation):
    peer = trainer(loss_type=loss_type, steps_per_generation=1)
    for seed in SEEDS:
        batch = random_batch(seed)
        theirs, their_gradient = trl_loss(peer, batch)
        loss, gradient, _ = batch.ours(aggregation=aggregation)
        differences(f"trl clipped loss, {loss_type}", abs(theirs - loss))
        differences(f"trl gradient of it, {loss_type}", (their_gradient - gradient).abs().max())
        assert theirs == pytest.approx(loss, rel=1e-12, abs=1e-15)
        torch.testing.assert_close(their_gradient, gradient, rtol=1e-12, atol=1e-15)


def test_trls_dr_grpo_is_our_token_sum_over_its_fixed_denominator(trainer, random_batch):
    peer = trainer(loss_type="dr_grpo")
    for seed in SEEDS:
        batch = random_batch(seed)
        theirs, their_gradient = trl_loss(peer, batch)
        loss, gradient, _ = batch.ours(denominator=len(batch.mask) * 3.0)  # max_completion_length is 3
        assert theirs == pytest.approx(loss, rel=1e-12, abs=1e-15)
        torch.testing.assert_close(their_gradient, gradient, rtol=1e-12, atol=1e-15)


def test_the_sequence_ratio_is_trls_in_value_and_gradient(trainer, random_batch, differences):
    peer = trainer(loss_type="grpo", importance_sampling_level="sequence")
    for seed in SEEDS:
        batch = random_batch(seed)
        theirs, their_gradient = trl_loss(peer, batch)
        loss, gradient = batch.ours_by_sequence("seq-mean-token-mean")
        differences("trl loss of importance_sampling_level=sequence", abs(theirs - loss))
        assert theirs == pytest.approx(loss, rel=1e-12, abs=1e-15)
        torch.testing.assert_close(their_gradient[batch.mask], gradient, rtol=1e-12, atol=1e-15)


# TRL's default multiplies the estimator by the ratio; without that it is ours.
@pytest.mark.parametrize("corrected", [False, True])
def test_the_divergence_from_the_reference_is_trls(trainer, random_batch, differences, corrected):
    with_kl = trainer(loss_type="bnpo", beta=0.04, use_bias_correction_kl=corrected)
    for seed in SEEDS:
        batch = random_batch(seed)
        reference = random_batch(seed + 1000).old
        leaf = batch.logprobs.clone().requires_grad_()
        terms = k3(leaf[batch.mask], reference[batch.mask])
        penalty = 0.04 * (terms * (leaf - batch.old).exp()[batch.mask] if corrected else terms).mean()
        penalty.backward()
        theirs = [trl_loss(peer, batch, reference) for peer in (with_kl, trainer(loss_type="bnpo"))]
        differences(
            f"trl k3 penalty{', times the ratio' * corrected}", abs(theirs[0][0] - theirs[1][0] - penalty.item())
        )
        assert theirs[0][0] - theirs[1][0] == pytest.approx(penalty.item(), rel=1e-10)
        torch.testing.assert_close(theirs[0][1] - theirs[1][1], leaf.grad, rtol=1e-9, atol=1e-14)


def test_trl_leaves_the_log_ratio_unbounded_where_ours_stops_at_20(trainer, random_batch):
    batch = random_batch(0, rows=1, tokens=1)
    far = replace(batch, old=batch.logprobs - 800.0, advantages=-torch.ones_like(batch.advantages))
    assert trl_loss(trainer(loss_type="bnpo"), far)[0] == float("inf")
    assert far.ours()[0] == pytest.approx(np.exp(20.0))
