"""Objects that tests place in actors. Importable there, as everything that is placed must be."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


class Thing:
    """Says where it is, fails on demand, and gives and takes tensors."""

    def __init__(self, start: int = 0, *, rank: int = 0, world: int = 1, rendezvous: str = "") -> None:
        if start < 0:
            raise ValueError("start is negative")
        self.calls = [start]
        self.rank, self.world = rank, world
        if world > 1:
            dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)

    def add(self, value: int) -> list[int]:
        self.calls.append(value)
        return list(self.calls)

    def where(self) -> dict[str, Any]:
        names = ("OMP_NUM_THREADS", "LOCAL_RANK")
        return {"pid": os.getpid(), "threads": torch.get_num_threads()} | {name: os.environ[name] for name in names}

    def total(self, values: np.ndarray) -> tuple[float, bool]:
        """The sum over the ranks of values and rank, and whether the values could be written to."""
        sums = torch.tensor(float(values.sum()) + self.rank)
        if self.world > 1:
            dist.all_reduce(sums)
        return float(sums), values.flags.writeable

    def fail(self) -> None:
        raise KeyError("disk on fire")

    def fail_alone(self) -> None:
        if self.rank == 1:
            raise KeyError("disk on fire")
        dist.barrier()

    def weights(self) -> dict[str, torch.Tensor]:
        return tensors()

    def check(self, weights: dict[str, torch.Tensor]) -> bool:
        """Whether these are the tensors that `weights` gave, bit for bit."""
        return all(
            weights[name].dtype == tensor.dtype and torch.equal(bits(weights[name]), bits(tensor))
            for name, tensor in tensors().items()
        )

    def hang(self) -> None:
        time.sleep(3600)

    def say_and_die(self) -> None:
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(3)


def tensors() -> dict[str, torch.Tensor]:
    """One tensor of every kind that a model may have, one of them larger than what travels inside a message."""
    torch.manual_seed(3)
    return {
        "bfloat16": torch.randn(2, 3).bfloat16(),
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
        "odd": torch.tensor([float("nan"), -0.0, float("inf")]).bfloat16(),
        "large": torch.randn(400, 300),
        "turned": torch.randn(3, 4).t(),
        "int": torch.arange(5),
        "bool": torch.tensor([True, False]),
        "half": torch.randn(4).half(),
    }


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
