"""What one rank, or a trainer alone, does in every case of test_ranks.py, and what it finds.

As a program it is one rank of two: rank, rendezvous, model folder, output folder.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from population.trainer import LoraSpec, Trainer, TrainerSpec, TrainingResponse, UpdateReport
from tests.trainer.helpers import exact_spec, responses

# Packs this small give the two ranks different numbers of them.
SMALL = {"max_tokens_per_pack": 50, "share_tokens": 20}
CASES: dict[str, dict[str, Any]] = {
    "zero 1": SMALL,
    "zero 2": {**SMALL, "zero_stage": 2},
    "zero 3": {**SMALL, "zero_stage": 3},
    "zero 2, offload": {"zero_stage": 2, "offload_optimizer": True},
    "zero 3, offload, checkpointing": {"zero_stage": 3, "offload_optimizer": True, "gradient_checkpointing": True},
    "zero 3, lora": {"zero_stage": 3, "lora": LoraSpec(rank=4)},
    "zero 2, bfloat16": {**SMALL, "zero_stage": 2, "dtype": "bfloat16"},
    "zero 3, bfloat16, lora": {**SMALL, "zero_stage": 3, "dtype": "bfloat16", "lora": LoraSpec(rank=4)},
    "zero 3, kl": {"zero_stage": 3, "kl_coefficient": 0.1},
}

# Those whose weights are broadcast to engines, bucket by bucket.
SENT = ("zero 3", "zero 3, lora")


@dataclass
class Found:
    """What one trainer reported and held after three steps."""

    reports: list[UpdateReport]
    scores: list[NDArray[np.float32]]
    checksum: str

    @property
    def packs(self) -> list[int]:
        """This rank's packs in each minibatch."""
        return [minibatch.packs for report in self.reports for minibatch in report.minibatches]


def spec_of(model: Path, name: str) -> TrainerSpec:
    """The spec of a case."""
    return TrainerSpec(str(model), learning_rate=1e-2, device="cpu", timeout_s=180.0, **CASES[name])


def course(model: Path, name: str, folder: Path, **group: Any) -> Found:
    """Three steps, a checkpoint after the second, and an export into `folder`."""
    spec = spec_of(model, name)
    trainer = Trainer(spec, **group)
    # The second step has one response, which leaves the second rank without any; the last minibatch leaves all without.
    first = trainer.update(1, [responses(1, old=False), responses(2, old=False)])
    second = trainer.update(2, [responses(4)[:1]])
    trainer.save(folder / "checkpoint")
    third, held = trainer.update(3, last_step()), trainer.checksum()
    scores = trainer.score([response.pair for response in responses(3)])
    trainer.export(folder / "exported")
    trainer.close()
    return Found([first, second, third], scores, held)


def last_step() -> list[list[TrainingResponse]]:
    """The minibatches of the third step, of which the last one has no gradient."""
    return [responses(6), [replace(response, advantage=0.0) for response in responses(5)]]


def resumed(model: Path, name: str, folder: Path, **group: Any) -> tuple[UpdateReport, str]:
    """Report and checksum of the third step, done again from the checkpoint."""
    trainer = Trainer(spec_of(model, name), **group)
    trainer.load(folder / "checkpoint")
    found = trainer.update(3, last_step()), trainer.checksum()
    trainer.close()
    return found


def gradient(model: Path, stage: int, **group: Any) -> dict[str, torch.Tensor]:
    """The gradient of one minibatch, read off its optimiser step; nothing on the second rank of ZeRO-3."""
    trainer = Trainer(exact_spec(model, zero_stage=stage, timeout_s=180.0, **SMALL), **group)
    before = {name: tensor.clone() for name, tensor in trainer.weights().items()}
    trainer.update(1, [responses(0)])
    found = {name: before[name] - tensor for name, tensor in trainer.weights().items()}
    trainer.close()
    return found


def sending(model: Path, name: str, **group: Any) -> tuple[str, str]:
    """SHA-256 of the bytes that a rank broadcasts to engines, in buckets, and of those of the weights it holds."""
    trainer = Trainer(spec_of(model, name), **group)
    buffers: list[bytes] = []
    trainer._broadcaster._group = dist.group.WORLD
    with patch.object(trainer._broadcaster, "_send", lambda buffer, _: buffers.append(buffer.numpy().tobytes())):
        trainer.send_weights(20_000, 60.0)
    trainer._broadcaster._group = None
    assert not buffers or len(buffers) == len(trainer.buckets(20_000)) > 2
    held = [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in trainer.weights().values()]
    trainer.close()
    return hashlib.sha256(b"".join(buffers)).hexdigest(), hashlib.sha256(b"".join(held)).hexdigest()


def main(rank: int, rendezvous: str, model: Path, output: Path) -> None:
    """Every case, one after the other, in one group."""
    torch.set_num_threads(1)
    group = {"rank": rank, "world": 2, "rendezvous": rendezvous}
    gradients = {stage: gradient(model, stage, **group) for stage in (1, 2, 3)}
    found, again = {}, {}
    for name in CASES:
        found[name] = asdict(course(model, name, output / name, **group))
        again[name] = resumed(model, name, output / name, **group)
    sent = {name: sending(model, name, **group) for name in SENT}
    torch.save({"gradients": gradients, "found": found, "again": again, "sent": sent}, output / f"rank{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
