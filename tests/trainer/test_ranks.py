"""Two ranks train as one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from population.trainer import Trainer, TrainerSpec
from population.weights import load_causal_lm
from server.rollouts.engine import trainable_tensors, weights_checksum
from tests.trainer.helpers import exact_spec, largest_gap, reference_gradient, responses

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240


@pytest.fixture(scope="module")
def ranks(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """What both ranks found, and the folder they wrote into."""
    output = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(ROOT / "tests/trainer/rank_main.py")]
    rest = [f"file://{output}/rendezvous", str(models["qwen3"]), str(output)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [*command, str(rank), *rest], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [torch.load(output / f"rank{rank}.pt", weights_only=False) for rank in range(2)], output


@pytest.mark.parametrize("stage", [1, 3])
def test_two_ranks_give_the_gradient_of_the_whole_minibatch(
    models: dict[str, Path], ranks: tuple[list[dict[str, Any]], Path], stage: int
) -> None:
    spec = exact_spec(models["qwen3"])
    expected = reference_gradient(models["qwen3"], responses(0), spec)
    trainer = Trainer(spec)
    alone = trainer.update(1, [responses(0)]).minibatches[0]
    trainer.close()
    for found in ranks[0]:
        assert largest_gap(found[f"gradient {stage}"], expected) < 1e-6
        report = found[f"report {stage}"].minibatches[0]
        assert report.loss == pytest.approx(alone.loss, abs=1e-6)
        assert report.grad_norm == pytest.approx(alone.grad_norm, rel=1e-5)
        assert (report.denominator, report.own_clipped, report.peer_clipped) == (
            alone.denominator,
            alone.own_clipped,
            alone.peer_clipped,
        )


@pytest.mark.parametrize("stage", [1, 3])
def test_two_ranks_score_as_one_does(
    models: dict[str, Path], ranks: tuple[list[dict[str, Any]], Path], stage: int
) -> None:
    trainer = Trainer(TrainerSpec(str(models["qwen3"]), device="cpu"))
    expected = trainer.score([response.pair for response in responses(3)])
    trainer.close()
    for found in ranks[0]:
        for left, right in zip(found[f"scores {stage}"], expected, strict=True):
            np.testing.assert_allclose(left, right, atol=1e-5)


def test_two_ranks_resume_bit_for_bit_and_hold_the_same_weights(ranks: tuple[list[dict[str, Any]], Path]) -> None:
    first, second = ranks[0]
    assert first["straight"] == first["resumed"]
    assert second["straight"] == second["resumed"]
    assert first["straight"][1] == second["straight"][1]
    exported = load_causal_lm(ranks[1] / "exported", torch.float32)
    assert weights_checksum(trainable_tensors(exported)) == first["straight"][1]
