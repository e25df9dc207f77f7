"""The trainer's gradient under every method's loss is the one that autograd finds for the method's formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graft.methods import METHODS
from population.trainer import LoraSpec, Trainer, TrainerSpec, TrainingResponse
from population.weights import load_causal_lm, load_reference
from tests.trainer.helpers import exact_spec, largest_gap, reference_logprobs, responses

Loss = Callable[[list[tuple[TrainingResponse, torch.Tensor]]], torch.Tensor]


@pytest.fixture
def build() -> Iterator[Callable[[TrainerSpec], Trainer]]:
    built: list[Trainer] = []

    def make(spec: TrainerSpec) -> Trainer:
        built.append(Trainer(spec))
        return built[-1]

    yield make
    for trainer in built:
        trainer.close()


def spec_of(method: str, folder: Path, **changes: Any) -> TrainerSpec:
    """The method's losses on a trainer whose first step moves the weights by minus the gradient."""
    how, row = METHODS[method].how, METHODS[method].settings
    fixed = {key.removeprefix("update."): value for key, value in row.items() if key.startswith("update.")}
    return exact_spec(
        folder,
        **{
            **fixed,
            "own_loss": how.own_loss,
            "peer_loss": how.peer_loss,
            "peer_coefficient": how.coefficient,
            "shared_denominator": how.shared_denominator,
            "max_tokens_per_pack": 60,
            **changes,
        },
    )


def minibatch(seed: int = 0) -> list[TrainingResponse]:
    """Two own prompts and one grafted, whose weights and source means differ; one response has no advantage."""
    draw = np.random.default_rng(seed)
    found = [
        replace(r, source_mean=float(draw.normal(-3.6, 0.2))) if r.grafted else r for r in responses(seed, grafted=1)
    ]
    return [replace(found[0], advantage=0.0), *found[1:]]


def moved(trainer: Trainer, batches: Sequence[Sequence[TrainingResponse]]) -> dict[str, torch.Tensor]:
    """What the step subtracts from the weights."""
    before = {name: tensor.clone() for name, tensor in trainer.weights().items()}
    trainer.update(1, batches)
    return {name: before[name] - tensor for name, tensor in trainer.weights().items()}


def gradient(folder: Path, batch: Sequence[TrainingResponse], loss: Loss) -> dict[str, torch.Tensor]:
    model = load_causal_lm(folder, torch.float32)
    loss([(r, reference_logprobs(model, r)) for r in batch]).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def old(response: TrainingResponse) -> torch.Tensor:
    return torch.tensor(response.old_logprobs)


def pessimistic(ratio: torch.Tensor, advantage: float, low: float, high: float) -> torch.Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def tokens(rows: Sequence[tuple[TrainingResponse, torch.Tensor]]) -> int:
    return sum(len(row) for _, row in rows)


def grpo(rows: list[tuple[TrainingResponse, torch.Tensor]]) -> torch.Tensor:
    total = sum(r.weight * pessimistic((row - old(r)).exp(), r.advantage, 0.2, 0.28).sum() for r, row in rows)
    return -total / tokens(rows)


def sequence_level(rows: list[tuple[TrainingResponse, torch.Tensor]]) -> torch.Tensor:
    total = sum(
        r.weight * len(row) * pessimistic((row - old(r)).mean().exp(), r.advantage, 0.2, 0.28) for r, row in rows
    )
    return -total / tokens(rows)


def split(rows: list[tuple[TrainingResponse, torch.Tensor]]) -> tuple[list[Any], list[Any]]:
    return [pair for pair in rows if not pair[0].grafted], [pair for pair in rows if pair[0].grafted]


def imitation(rows: list[tuple[TrainingResponse, torch.Tensor]]) -> torch.Tensor:
    own, peers = split(rows)
    return grpo(own) - 0.1 * sum(row.sum() for _, row in peers) / tokens(peers)


def shaping(rows: list[tuple[TrainingResponse, torch.Tensor]]) -> torch.Tensor:
    own, peers = split(rows)
    total = sum((row.exp() / (row.exp() + 0.1)).sum() * r.advantage for r, row in peers)
    return (grpo(own) * tokens(own) - total) / tokens(rows)


def window(response: TrainingResponse, row: torch.Tensor, lower: float = 0.8) -> torch.Tensor:
    assert response.source_mean is not None
    s = (row.mean() - response.source_mean).exp()
    clipped = s.clamp(lower, 1.0)
    return clipped * clipped.detach() * response.advantage


def hacpo(rows: list[tuple[TrainingResponse, torch.Tensor]]) -> torch.Tensor:
    own, peers = split(rows)
    total = sum(pessimistic((row - old(r)).mean().exp(), r.advantage, 3e-4, 4e-4) for r, row in own)
    return -(total + sum(window(r, row) for r, row in peers)) / len(rows)


def hacpo_peers_beside_grpo(rows: list[tuple[TrainingResponse, torch.Tensor]]) -> torch.Tensor:
    own, peers = split(rows)
    total = sum(len(row) * window(r, row) for r, row in peers)
    return (grpo(own) * tokens(own) - total) / tokens(rows)


@pytest.mark.parametrize(
    ("method", "loss"),
    [
        ("graft", grpo),
        ("graft-no-token-ratio", sequence_level),
        ("sgt", imitation),
        ("graft-sgt", imitation),
        ("graft-luffy", shaping),
        ("hacpo", hacpo),
        ("graft-hacpo", hacpo_peers_beside_grpo),
    ],
)
def test_the_gradient_is_that_of_the_method_s_formula(
    models: dict[str, Path], build: Any, method: str, loss: Loss
) -> None:
    batch = [replace(r, weight=1.0) if r.grafted and method != "graft" else r for r in minibatch()]
    if loss is imitation:
        batch = [replace(r, advantage=1.0) if r.grafted else r for r in batch]
    trainer = build(spec_of(method, models["llama"]))
    assert largest_gap(moved(trainer, [batch]), gradient(models["llama"], batch, loss)) < 2e-6


def test_the_window_of_hacpo_narrows_with_every_update_of_the_step(models: dict[str, Path], build: Any) -> None:
    own = [r for r in minibatch() if not r.grafted]
    peer = next(r for r in minibatch() if r.grafted)
    spec = spec_of("hacpo", models["llama"], learning_rate=1e-9, kl_coefficient=0.0)
    (row,) = build(spec).score([peer.pair])
    inside = replace(peer, advantage=1.0, weight=1.0, source_mean=float(row.mean() - np.log(0.85)))  # s = 0.85
    reports = build(spec).update(1, [own, [inside], own, own, [inside]]).minibatches
    assert [report.peer_clipped for report in reports] == [0, 0, 0, 0, len(row)]  # 0.825 at u = 1, 0.9 at u = 4
    np.testing.assert_allclose([reports[1].loss, reports[4].loss], [-(0.85**2), -(0.9**2)], rtol=1e-4)


def test_the_kl_term_pulls_towards_the_model_the_run_began_with(models: dict[str, Path], build: Any) -> None:
    folder = models["gpt_neox"]
    spec = exact_spec(folder, kl_coefficient=0.5, max_tokens_per_pack=60, learning_rate=1e6)
    trainer = build(spec)
    first, second = responses(1, grafted=0), [replace(r, advantage=0.0) for r in responses(2, grafted=0)]
    trainer.update(1, [first])
    initial, now = load_causal_lm(folder, torch.float32), load_causal_lm(folder, torch.float32)
    now.load_state_dict(trainer.weights(), strict=False)
    before = {name: tensor.clone() for name, tensor in trainer.weights().items()}
    report = trainer.update(2, [second])

    def divergence(r: TrainingResponse) -> torch.Tensor:
        d = reference_logprobs(initial, r).detach() - reference_logprobs(now, r)
        return (d.exp() - d - 1).sum()

    loss = 0.5 * sum(divergence(r) for r in second) / sum(len(r.response_ids) for r in second)
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    assert report.minibatches[0].loss == pytest.approx(float(loss), rel=1e-4)
    assert report.minibatches[0].trained_tokens == report.minibatches[0].denominator
    # AdamW's moments mix the second gradient with the first; its part is (1 - beta1) g under a huge eps.
    change = {name: before[name] - tensor for name, tensor in trainer.weights().items()}
    first_gradient = _first_gradient(build(replace(spec)), first)
    for name, parameter in now.named_parameters():
        b1 = spec.betas[0]
        expected = ((1 - b1) * parameter.grad + b1 * (1 - b1) * first_gradient[name]) / (1 - b1**2)
        torch.testing.assert_close(change[name], expected, atol=3e-6, rtol=1e-3)


@pytest.mark.parametrize("stage", [1, 3])
def test_the_reference_of_the_kl_term_is_whole_on_the_device_at_every_zero_stage(
    models: dict[str, Path], stage: int
) -> None:
    spec = exact_spec(models["qwen3"], zero_stage=stage, kl_coefficient=0.5)
    found = list(load_reference(spec, torch.device("meta")).parameters())
    assert {(parameter.device.type, parameter.requires_grad) for parameter in found} == {("meta", False)}


@pytest.mark.parametrize("change", [{"zero_stage": 3}, {"lora": LoraSpec(rank=2)}])
def test_the_kl_term_is_measured_against_the_initial_model_under_sharding_and_adapters(
    models: dict[str, Path], build: Any, change: dict[str, Any]
) -> None:
    spec = exact_spec(models["qwen3"], kl_coefficient=0.5, learning_rate=3e5, **change)
    trainer = build(spec)
    trainer.update(1, [responses(1, grafted=0)])
    now = load_causal_lm(models["qwen3"], torch.float32)
    initial = load_causal_lm(models["qwen3"], torch.float32)
    now.load_state_dict(trainer.weights(), strict=False)
    silent = [replace(r, advantage=0.0) for r in responses(2, grafted=0)]
    total = sum(
        float((d.exp() - d - 1).sum())
        for d in ((reference_logprobs(initial, r) - reference_logprobs(now, r)).detach() for r in silent)
    )
    expected = 0.5 * total / sum(len(r.response_ids) for r in silent)
    assert expected > 1e-6
    assert trainer.update(2, [silent]).minibatches[0].loss == pytest.approx(expected, rel=1e-2)


def _first_gradient(trainer: Trainer, batch: Sequence[TrainingResponse]) -> dict[str, torch.Tensor]:
    return moved(trainer, [batch])


def test_peers_that_never_come_leave_grpo_bit_for_bit_whatever_the_method(models: dict[str, Path], build: Any) -> None:
    batches = [responses(seed, grafted=0) for seed in (3, 4)]
    plain = moved(build(spec_of("grpo", models["qwen3"], learning_rate=1e-2, eps=1e-8)), batches)
    for method in ("graft", "graft-pooled", "sgt", "graft-luffy", "graft-hacpo"):
        other = moved(build(spec_of(method, models["qwen3"], learning_rate=1e-2, eps=1e-8)), batches)
        assert largest_gap(plain, other) == 0.0
