"""The trainer's side of a weight group: its rank 0 sends the weights in buckets to the ranks of SGLang servers.

The group lies beside the trainer's own process group, with gloo between CPUs and NCCL between GPUs. The other side is
`server.rollouts.sglang_engine`: both go through the same buckets in the same order.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

from population.updates import TrainerError
from population.weights import Gather, WholeTensor, merged_tensors, reading, whole_tensors
from server.rollouts.engine import EngineError
from server.rollouts.sglang_control import Bucket
from server.rollouts.sglang_group import GroupPlace, address_towards
from server.rollouts.sglang_weights import HeldWeights, prove


@dataclass(frozen=True)
class Meeting:
    """Where and as what a weight group meets."""

    name: str
    address: str
    port: int
    backend: str


class Broadcaster:
    """Sends one model's weights. With several trainer ranks every rank makes the same calls; rank 0 alone sends."""

    def __init__(self, model: Any, gathered: Gather | None, rank: int, device: torch.device) -> None:
        self._model, self._gathered, self._rank, self._device = model, gathered, rank, device
        self._store: Any = None
        self._group: dist.ProcessGroup | None = None
        self._meeting: Meeting | None = None

    def open(self, place: GroupPlace, deadline_s: float) -> Meeting:
        """Begin a new group that the engines of `place` can join."""
        self.close()
        # Among processes of one machine nothing of it is to be reached from outside.
        address = "127.0.0.1" if place.machine == socket.gethostname() else address_towards(place.address)
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        port = 0
        if self._rank == 0:
            # On the given address alone: a store of torch would listen on all of them.
            listener = socket.create_server((address, 0))
            port = int(listener.getsockname()[1])
            self._store = TCPStore(
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=deadline_s),
                master_listen_fd=listener.detach(),
            )
        self._meeting = Meeting(f"weights-{secrets.token_hex(8)}", address, port, backend)
        return self._meeting

    def join(self, ranks: int, deadline_s: float) -> None:
        """Wait for `ranks` ranks of engines. Raises TrainerError when they do not come in time."""
        if self._rank != 0:
            return
        if self._store is None or self._meeting is None:
            raise TrainerError("a weight group must be opened before it is joined")
        meeting, timeout = self._meeting, timedelta(seconds=deadline_s)
        try:
            # The engines build their side with the same function, so that both find each other in the store.
            self._group, _ = c10d._new_process_group_helper(
                1 + ranks,
                0,
                [],
                c10d.Backend(meeting.backend),
                PrefixStore(meeting.name, self._store),
                group_name=c10d.GroupName(meeting.name),
                timeout=timeout,
            )
            # What torch looks up when the group is ended; it fills this in itself for groups made of its default one.
            c10d._world.pg_group_ranks[self._group] = {rank: rank for rank in range(1 + ranks)}
        except RuntimeError as error:
            self.close()
            raise TrainerError(f"weight group with {ranks} engine ranks: {_short(error)}") from error

    def buckets(self, max_bytes: int) -> list[Bucket]:
        """All tensors in buckets of at most `max_bytes`; a larger tensor has one of its own."""
        return [_bucket(part) for part in self._parts(max_bytes)]

    def send(self, max_bytes: int, deadline_s: float) -> None:
        """Broadcast all buckets. Raises TrainerError when the engines do not take part; the group is closed then."""
        if self._rank == 0 and self._group is None:
            raise TrainerError("there is no weight group: join one first")
        for part in self._parts(max_bytes):
            size = sum(_bytes(whole) for whole in part)
            buffer = torch.empty(size if self._rank == 0 else 0, dtype=torch.uint8, device=self._device)
            start = 0
            for whole in part:
                with reading(whole, self._gathered) as value:
                    if self._rank == 0:
                        end = start + _bytes(whole)
                        buffer[start:end] = value.contiguous().reshape(-1).view(torch.uint8)
                        start = end
            if self._rank == 0:
                self._send(buffer, deadline_s)

    def proof(self, held: Sequence[HeldWeights]) -> str:
        """What differs in what servers hold from this trainer's weights; empty when nothing does."""
        weights = merged_tensors(self._model, self._gathered, keep=self._rank == 0)
        if self._rank == 0:
            try:
                for one in held:
                    prove(one, weights, None)
            except EngineError as error:
                return str(error)
        return ""

    def close(self) -> None:
        """Leave the group, if there is one."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = self._store = self._meeting = None

    def _send(self, buffer: torch.Tensor, deadline_s: float) -> None:
        assert self._group is not None
        try:
            work = self._group.broadcast(buffer, 0)
            work.wait(timedelta(seconds=deadline_s))
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError as error:
            self.close()
            raise TrainerError(f"broadcast of weights: {_short(error)}") from error

    def _parts(self, max_bytes: int) -> list[list[WholeTensor]]:
        """Tensors of one bucket each, in order. A bucket begins anew where a tensor would not lie on a multiple of its
        element size.
        """
        parts: list[list[WholeTensor]] = []
        filled = 0
        for whole in whole_tensors(self._model):
            size = _bytes(whole)
            if not parts or filled + size > max_bytes or filled % whole.dtype.itemsize:
                parts.append([])
                filled = 0
            parts[-1].append(whole)
            filled += size
        return parts


def _bucket(part: Sequence[WholeTensor]) -> Bucket:
    return Bucket(
        tuple(whole.name for whole in part),
        tuple(str(whole.dtype).removeprefix("torch.") for whole in part),
        tuple(whole.shape for whole in part),
    )


def _bytes(whole: WholeTensor) -> int:
    size = whole.dtype.itemsize
    for length in whole.shape:
        size *= length
    return size


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
