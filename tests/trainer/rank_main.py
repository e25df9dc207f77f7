"""One rank of a group of two, started by test_ranks.py: rank, rendezvous, model folder, output folder."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from population.trainer import Trainer, TrainerSpec
from tests.trainer.helpers import exact_spec, responses


def main(rank: int, rendezvous: str, model: Path, output: Path) -> None:
    """Gradients at stages 1 and 3, then a run that is saved and continued."""
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    for stage in (1, 3):
        spec = exact_spec(model, zero_stage=stage, max_tokens_per_pack=50, share_tokens=20, timeout_s=180.0)
        trainer = Trainer(spec, rank=rank, world=2, rendezvous=rendezvous)
        before = {name: tensor.clone() for name, tensor in trainer.weights().items()}
        found[f"scores {stage}"] = trainer.score([response.pair for response in responses(3)])
        found[f"report {stage}"] = trainer.update(1, [responses(0)])
        found[f"gradient {stage}"] = {name: before[name] - tensor for name, tensor in trainer.weights().items()}
        trainer.close()

    spec = TrainerSpec(str(model), learning_rate=1e-2, device="cpu", timeout_s=180.0)
    trainer = Trainer(spec, rank=rank, world=2)
    # One response leaves the second rank without work, none leaves both.
    for step, batch in enumerate(([responses(1, old=False), responses(2, old=False)], [responses(4)[:1]]), 1):
        trainer.update(step, batch)
    trainer.save(output / "checkpoint")
    silent = [replace(response, advantage=0.0) for response in responses(5)]
    found["straight"] = (trainer.update(3, [responses(6), silent]), trainer.checksum())
    trainer.close()
    resumed = Trainer(spec, rank=rank, world=2)
    resumed.load(output / "checkpoint")
    found["resumed"] = (resumed.update(3, [responses(6), silent]), resumed.checksum())
    resumed.export(output / "exported")
    resumed.close()
    torch.save(found, output / f"rank{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
