"""A DeepSpeed trainer that is lost and built anew repeats its updates bit for bit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from population.config import parse
from population.failures import Failures
from population.trainer import LoraSpec, Trainer, TrainerSpec, UpdateReport
from tests.population.small_run import Losable, Loss, Sabotage, SmallMember
from tests.trainer.helpers import responses

STEPS = 4
CONFIG = parse(
    {
        "name": "r", "steps": STEPS, "method": "grpo", "members": [{"name": "a", "model": "m"}],
        "data": {"source": "d", "prompts_per_step": 32},
    }
)  # fmt: skip


def trained(
    spec: TrainerSpec, folder: Path, *losses: Loss
) -> tuple[list[UpdateReport], dict[str, torch.Tensor], list[str]]:
    """Reports and weights of some steps, saved after the second one, and what was told."""
    told: list[str] = []
    failures = Failures(CONFIG, lambda message, member, step: told.append(message))
    build = lambda: Losable(lambda name: Trainer(spec), "a", "trainer", sabotage)  # noqa: E731
    sabotage = Sabotage(list(losses))
    member = cast(Any, SmallMember(name="a", trainer=build(), new_trainer=build))
    ask = partial(failures.ask, member, "trainer", deadline_s=300, phase="update")
    reports = []
    for step in range(1, STEPS + 1):
        # theta_old of the second minibatch is not given, so the trainer computes it from its own weights.
        batch = [responses(step), [replace(one, old_logprobs=None) for one in responses(step + 100)]]
        reports.append(ask("update", step, batch, step=step))
        failures.updated(member, step, batch)
        if step == 2:
            ask("save", folder / "saved", step=step)
            failures.saved(step, {"a": folder / "saved"})
    weights = {name: tensor.clone() for name, tensor in ask("weights", step=STEPS).items()}
    member.trainer.close()
    return reports, weights, told


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=4, alpha=8.0)])
def test_updates_are_repeated_from_the_model_and_from_a_checkpoint(
    models: dict[str, Path], tmp_path: Path, lora: LoraSpec | None
) -> None:
    spec = TrainerSpec(str(models["llama"]), member="a", learning_rate=1e-2, device="cpu", lora=lora)
    (tmp_path / "lost").mkdir()
    expected, weights, nothing = trained(spec, tmp_path)
    losses = [Loss("a", "trainer", "update", 2, "after"), Loss("a", "trainer", "weights", 1)]
    reports, repeated, told = trained(spec, tmp_path / "lost", *losses)
    assert nothing == []
    assert [text.split(";")[1] for text in told] == [
        " restarted, loaded as of step 0, 1 update(s) repeated",
        " restarted, loaded as of step 2, 2 update(s) repeated",
    ]
    assert reports == expected
    assert repeated.keys() == weights.keys()
    assert all(torch.equal(repeated[name], weights[name]) for name in weights)
