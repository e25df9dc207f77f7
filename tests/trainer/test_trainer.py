"""Updates: exact gradients however a minibatch is cut, one denominator, reports, refusals that name the place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from population.trainer import Trainer, TrainerError, TrainerSpec, TrainingResponse
from population.updates import Mismatch
from population.weights import load_causal_lm
from server.rollouts.engine import trainable_tensors, weights_checksum
from tests.trainer.helpers import (
    FAMILIES,
    exact_spec,
    largest_gap,
    reference_gradient,
    reference_logprobs,
    reference_loss,
    responses,
)


@pytest.fixture
def build() -> Iterator[Any]:
    """Trainers that are closed at the end of the test."""
    built: list[Trainer] = []

    def make(spec: TrainerSpec) -> Trainer:
        built.append(Trainer(spec))
        return built[-1]

    yield make
    for trainer in built:
        trainer.close()


def copies(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.weights().items()}


def first_step(trainer: Trainer, minibatch: list[TrainingResponse]) -> dict[str, torch.Tensor]:
    """What the first optimiser step subtracts from the weights; the gradient, under `exact_spec`."""
    before = copies(trainer)
    trainer.update(1, [minibatch])
    after = trainer.weights()
    return {name: before[name] - after[name] for name in before}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3", {}),
        ("qwen3", {"max_tokens_per_pack": 1}),
        ("qwen3", {"max_tokens_per_pack": 40, "share_tokens": 20}),
        ("llama", {"max_tokens_per_pack": 60, "share_tokens": 0}),
        ("llama", {"layout": "packed", "max_tokens_per_pack": 50}),
        ("llama", {"gradient_checkpointing": True}),
        ("llama", {"aggregation": "seq-mean-token-mean", "temperature": 0.7}),
        ("gpt_neox", {"aggregation": "seq-mean-token-sum", "max_tokens_per_pack": 30}),
        ("gpt_neox", {"zero_stage": 2, "max_tokens_per_pack": 30}),
        ("qwen3", {"zero_stage": 3, "max_tokens_per_pack": 30}),
        ("llama", {"zero_stage": 3}),
        ("llama", {"offload_optimizer": True, "max_tokens_per_pack": 60}),
    ],
)
def test_the_gradient_is_that_of_the_whole_minibatch(
    models: dict[str, Path], build: Any, family: str, changes: dict[str, Any]
) -> None:
    spec = exact_spec(models[family], **changes)
    minibatch = responses(0)
    minibatch[2] = replace(minibatch[2], weight=0.0)
    minibatch[3] = replace(minibatch[3], advantage=0.0)
    trainer = build(spec)
    assert largest_gap(first_step(trainer, minibatch), reference_gradient(models[family], minibatch, spec)) < 1e-6


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_loss_and_clip_statistics_are_the_objective_s(models: dict[str, Path], build: Any, aggregation: str) -> None:
    spec = exact_spec(models["llama"], aggregation=aggregation, max_tokens_per_pack=40)
    minibatch = responses(1)
    minibatch[0] = replace(minibatch[0], advantage=0.0)
    minibatch[5] = replace(minibatch[5], weight=0.0)
    model = load_causal_lm(models["llama"], torch.float32)
    report = build(spec).update(1, [minibatch]).minibatches[0]
    loss, both = reference_loss(model, minibatch, spec)
    own = [replace(response, weight=0.0) if response.grafted else response for response in minibatch]
    _, own_stats = reference_loss(model, own, spec)
    assert report.loss == pytest.approx(loss.item(), abs=1e-6)
    assert report.denominator == both.tokens
    assert (report.own_clipped, report.own_tokens) == (own_stats.clipped, own_stats.tokens)
    assert report.own_clipped + report.peer_clipped == both.clipped > 0
    assert report.own_tokens + report.peer_tokens == both.tokens
    assert report.skipped_tokens == len(minibatch[0].response_ids)
    assert report.trained_tokens + report.skipped_tokens == report.denominator
    assert report.packs > 1


def test_leaving_out_responses_without_advantage_changes_no_bit(
    models: dict[str, Path], build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = TrainerSpec(str(models["llama"]), learning_rate=1e-2, device="cpu", share_tokens=0, max_tokens_per_pack=1)
    mixed = [replace(r, advantage=0.0) if i % 3 == 0 else r for i, r in enumerate(responses(2))]
    silent = [replace(response, advantage=0.0) for response in responses(3)]
    minibatches = [mixed, silent, responses(4), silent]
    skipping = build(spec)
    reports = [skipping.update(step, minibatches) for step in (1, 2)]
    monkeypatch.setattr(TrainingResponse, "trained", lambda response, spec: response.weight != 0)
    full = build(spec)
    for step, report in enumerate(reports, 1):
        complete = full.update(step, minibatches)
        for left, right in zip(report.minibatches, complete.minibatches, strict=True):
            assert left.loss == pytest.approx(right.loss, abs=1e-7)
            assert left.grad_norm == pytest.approx(right.grad_norm, abs=1e-7)
            assert left.denominator == right.denominator
    assert reports[0].minibatches[1].trained_tokens == 0
    assert reports[0].minibatches[1].grad_norm == 0.0
    assert largest_gap(copies(skipping), copies(full)) == 0.0


def test_a_minibatch_without_advantage_still_steps_by_momentum_and_one_without_responses_does_not(
    models: dict[str, Path], build: Any
) -> None:
    trainer = build(TrainerSpec(str(models["llama"]), learning_rate=1e-2, device="cpu"))
    trainer.update(1, [responses(2)])
    before = copies(trainer)
    report = trainer.update(2, [[replace(response, weight=0.0) for response in responses(2)], []])
    assert [entry.denominator for entry in report.minibatches] == [0, 0]
    assert largest_gap(copies(trainer), before) == 0.0
    trainer.update(3, [[replace(response, advantage=0.0) for response in responses(2)]])
    assert largest_gap(copies(trainer), before) > 1e-4


@pytest.mark.parametrize("budget", [16384, 40])
def test_theta_old_is_computed_where_it_is_unknown(models: dict[str, Path], build: Any, budget: int) -> None:
    spec = TrainerSpec(str(models["gpt_neox"]), learning_rate=3e-2, device="cpu", max_tokens_per_pack=budget)
    minibatches = [responses(seed, old=False) for seed in (5, 6, 7)]
    asked, given = build(spec), build(spec)
    known = [
        [
            replace(response, old_logprobs=values)
            for response, values in zip(minibatch, given.score([r.pair for r in minibatch]), strict=True)
        ]
        for minibatch in minibatches
    ]
    left, right = asked.update(1, minibatches), given.update(1, known)
    assert sum(entry.own_clipped + entry.peer_clipped for entry in right.minibatches) > 0
    for one, other in zip(left.minibatches, right.minibatches, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-5)
        assert one.own_clipped == other.own_clipped
    assert left.minibatches[0].own_clipped == 0
    assert largest_gap(copies(asked), copies(given)) < 2e-3


def test_the_gap_to_the_engine_is_that_of_own_trained_tokens_at_theta_old(models: dict[str, Path], build: Any) -> None:
    trainer = build(TrainerSpec(str(models["llama"]), learning_rate=3e-2, device="cpu"))
    first, second = responses(8, old=False), responses(9, old=False)
    said = [
        replace(response, engine_logprobs=values + 0.25)
        for response, values in zip(first, trainer.score([r.pair for r in first]), strict=True)
    ]
    said[0] = replace(said[0], advantage=0.0)
    report = trainer.update(1, [said, second])
    assert report.mismatch.tokens == sum(len(r.response_ids) for r in said[1:] if not r.grafted)
    assert report.mismatch.gap / report.mismatch.tokens == pytest.approx(0.25, abs=1e-4)
    silent = trainer.update(2, [second])
    assert silent.mismatch == Mismatch()


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_come_in_the_order_of_the_sequences(models: dict[str, Path], build: Any, family: str) -> None:
    trainer = build(TrainerSpec(str(models[family]), device="cpu", temperature=0.8, max_tokens_per_pack=50))
    batch = responses(10, prompts=4)[::-1]
    hf = load_causal_lm(models[family], torch.float32)
    found = trainer.score([response.pair for response in batch])
    for values, response in zip(found, batch, strict=True):
        assert values.dtype == np.float32
        with torch.no_grad():
            np.testing.assert_allclose(values, reference_logprobs(hf, response, 0.8).numpy(), atol=1e-5)
    assert trainer.score([]) == []


def test_the_learning_rate_warms_up_by_population_steps(models: dict[str, Path], build: Any) -> None:
    trainer = build(TrainerSpec(str(models["llama"]), learning_rate=4e-3, warmup_steps=4, device="cpu"))
    rates = [trainer.update(step, [responses(step)] * 2).learning_rate for step in range(1, 7)]
    assert rates == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3, 4e-3, 4e-3])


def test_a_repeated_step_gives_its_report_and_a_gap_is_refused(models: dict[str, Path], build: Any) -> None:
    trainer = build(TrainerSpec(str(models["llama"]), member="ada", learning_rate=1e-2, device="cpu"))
    report = trainer.update(1, [responses(11)])
    held = trainer.checksum()
    assert trainer.update(1, [responses(11)]) is report
    assert trainer.checksum() == held
    with pytest.raises(TrainerError, match=r"member ada, step 3: the last update was step 1; the next must be step 2"):
        trainer.update(3, [responses(12)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_ids": np.array([3, 40])}, r"response has the token id 40; this model's ids are 0 to 39"),
        ({"prompt_ids": np.array([-1, 4])}, r"prompt has the token id -1"),
        ({"response_ids": np.array([], dtype=np.int32)}, r"at least one token"),
        ({"old_logprobs": np.zeros(50)}, r"but 50 old log-probabilities"),
        ({"advantage": float("nan")}, r"its advantage is nan"),
        ({"weight": -0.5}, r"its weight is -0.5"),
    ],
)
def test_a_response_that_cannot_be_trained_on_is_named_before_any_step(
    models: dict[str, Path], build: Any, change: dict[str, Any], message: str
) -> None:
    trainer = build(TrainerSpec(str(models["llama"]), member="ada", device="cpu"))
    held = trainer.checksum()
    bad = responses(13)
    bad[4] = replace(bad[4], **change)
    with pytest.raises(TrainerError, match=rf"member ada, step 1, minibatch 1, response 4: .*{message}"):
        trainer.update(1, [responses(12), bad])
    assert trainer.checksum() == held
    assert trainer.update(1, [responses(12)]).minibatches


def test_ids_that_the_tokenizer_does_not_know_are_named(models: dict[str, Path], build: Any) -> None:
    trainer = build(TrainerSpec(str(models["llama"]), member="ada", device="cpu", vocab_limit=39, excluded_ids=(7, 20)))
    known = np.setdiff1d(np.arange(39), (7, 20))
    assert trainer.score([(known[:5], known[5:])])[0].shape == (32,)
    with pytest.raises(TrainerError, match=r"member ada, score, .* response has the token id 20, which the tokenizer"):
        trainer.score([(known[:5], np.array([3, 20]))])
    with pytest.raises(TrainerError, match=r"member ada, score, .* the token id 39; this model's ids are 0 to 38"):
        trainer.score([(known[:5], np.array([3, 39]))])


@pytest.mark.parametrize("changes", [{}, {"zero_stage": 3}, {"dtype": "bfloat16"}])
def test_a_loss_that_is_not_finite_stops_before_the_optimiser_step(
    models: dict[str, Path], build: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    spec = TrainerSpec(str(models["llama"]), member="ada", device="cpu", max_tokens_per_pack=60, **changes)
    trainer = build(spec)
    good, bad = responses(14), responses(15)
    bad[5] = replace(bad[5], advantage=1e38, weight=1e30, old_logprobs=bad[5].old_logprobs - 9)
    trainer.save(tmp_path / "start")
    trainer.update(1, [good])
    after_first = trainer.checksum()
    trainer.load(tmp_path / "start")
    with pytest.raises(TrainerError, match=r"member ada, step 1, minibatch 1: the loss is -?inf"):
        trainer.update(1, [good, bad])
    assert trainer.checksum() == after_first
    with pytest.raises(TrainerError, match=r"an update failed before .* load a checkpoint first"):
        trainer.update(1, [good])
    trainer.load(tmp_path / "start")
    trainer.update(1, [good])
    assert trainer.checksum() == after_first


def test_a_gradient_that_is_not_finite_stops_before_the_optimiser_step(
    models: dict[str, Path], build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = build(TrainerSpec(str(models["llama"]), member="ada", device="cpu"))
    held = trainer.checksum()
    weight = next(trainer._model.parameters())
    handle = weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(TrainerError, match=r"member ada, step 1, minibatch 0: the gradient norm is inf"):
        trainer.update(1, [responses(14)])
    handle.remove()
    assert trainer.checksum() == held


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_weights_have_the_model_s_names_and_survive_export(
    models: dict[str, Path], build: Any, tmp_path: Path, family: str
) -> None:
    trainer = build(TrainerSpec(str(models[family]), learning_rate=1e-2, device="cpu"))
    original = load_causal_lm(models[family], torch.float32)
    assert trainer.checksum() == weights_checksum(trainable_tensors(original))
    assert trainer.parameters == sum(parameter.numel() for parameter in original.parameters())
    trainer.update(1, [responses(16)])
    trainer.export(tmp_path / "out")
    exported = load_causal_lm(tmp_path / "out", torch.float32)
    assert weights_checksum(trainable_tensors(exported)) == trainer.checksum()
    assert ("lm_head.weight" in trainer.weights()) == (family == "llama")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_missing_device_and_a_missing_rendezvous_are_named(models: dict[str, Path], build: Any) -> None:
    build(TrainerSpec(str(models["llama"]), device="cpu"))
    with pytest.raises(TrainerError, match=r"this process is rank 0 of 1; a trainer of rank 1 of 2"):
        Trainer(TrainerSpec(str(models["llama"]), device="cpu"), rank=1, world=2)
    if not torch.cuda.is_available():
        with pytest.raises(TrainerError, match="torch sees no CUDA device"):
            Trainer(TrainerSpec(str(models["llama"]), device="cuda"))


def importance_loss(weights: list[float]) -> float:
    """-mean_t w_t rho_t A_t with rho = 1 and A = 1."""
    return -float(np.mean(weights))


@pytest.mark.parametrize(("cap", "expected"), [(None, [1.0, 1.0]), (2.0, [0.5, 2.0]), (8.0, [0.5, 4.0])])
def test_own_tokens_carry_the_ratio_of_trainer_to_engine_up_to_the_cap(
    models: dict[str, Path], build: Any, cap: float | None, expected: list[float]
) -> None:
    spec = TrainerSpec(str(models["llama"]), device="cpu", importance_cap=cap)
    trainer = build(spec)
    pair = np.arange(4, dtype=np.int32) + 2, np.array([5, 6], dtype=np.int32)
    (old,) = trainer.score([pair])
    engine = old + np.log(np.array([2.0, 0.25], dtype=np.float32))
    own = TrainingResponse(*pair, None, 1.0, engine_logprobs=engine)
    report = trainer.update(1, [[own]])
    assert report.minibatches[0].loss == pytest.approx(importance_loss(expected), abs=1e-5)
    assert report.mismatch.weighted == (0 if cap is None else 2)
    assert report.mismatch.capped == (1 if cap == 2.0 else 0)
    assert report.mismatch.far == 2
    d = -np.log(np.array([2.0, 0.25]))
    assert report.mismatch.kl == pytest.approx(float(np.sum(np.exp(d) - d - 1)), rel=1e-4)


def test_grafted_tokens_and_unknown_engine_values_carry_no_importance_weight(
    models: dict[str, Path], build: Any
) -> None:
    pair = np.arange(4, dtype=np.int32) + 2, np.array([5, 6], dtype=np.int32)
    trainer = build(TrainerSpec(str(models["llama"]), device="cpu", importance_cap=2.0))
    (old,) = trainer.score([pair])
    peer = TrainingResponse(*pair, old, 1.0, grafted=True, engine_logprobs=old - 1.0)
    unknown = TrainingResponse(*pair, old, 1.0)
    report = trainer.update(1, [[peer, unknown]])
    assert report.minibatches[0].loss == pytest.approx(-1.0, abs=1e-5)
    assert (report.mismatch.weighted, report.mismatch.capped) == (0, 0)


def test_the_kl_term_is_not_weighted_by_importance(models: dict[str, Path], build: Any) -> None:
    pair = np.arange(4, dtype=np.int32) + 2, np.array([5, 6], dtype=np.int32)
    losses = []
    for cap in (None, 1.0):
        trainer = build(TrainerSpec(str(models["llama"]), device="cpu", importance_cap=cap, kl_coefficient=0.5))
        (old,) = trainer.score([pair])
        own = TrainingResponse(*pair, None, 0.0, engine_logprobs=old + 1.0)
        other = TrainingResponse(*pair, None, 0.0, engine_logprobs=old)
        trainer.update(1, [[own, other]])
        trainer.update(2, [[replace(own, advantage=1e-6)]])
        losses.append(trainer.update(3, [[own, other]]).minibatches[0].loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=1e-9)
