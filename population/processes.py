"""A trainer's process: its device, the group of ranks it joins, and what it asks of DeepSpeed. Imports no DeepSpeed."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from population.updates import TrainerError, TrainerSpec


def choose_device(wanted: str) -> torch.device:
    """The device for auto, cpu or cuda. Raises TrainerError for a CUDA device that is not there."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise TrainerError("device is cuda, but torch sees no CUDA device; use device auto or cpu")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def join_group(spec: TrainerSpec, device: torch.device, rank: int, world: int, rendezvous: str | None) -> None:
    """Join the process group, once per process; a single rank needs neither file nor port.

    Raises TrainerError when this process already is another rank, or when ranks have no address to meet at.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    if dist.is_initialized():
        if dist.get_world_size() != world or dist.get_rank() != rank:
            raise TrainerError(
                f"this process is rank {dist.get_rank()} of {dist.get_world_size()}; "
                f"a trainer of rank {rank} of {world} needs a process of its own"
            )
        return
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=spec.timeout_s)
    if world == 1 and rendezvous is None:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
        return
    if rendezvous is None:
        raise TrainerError(f"{world} ranks need a rendezvous address, such as file:///shared/folder/name")
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world, timeout=timeout)


def engine_config(spec: TrainerSpec, world: int, device: torch.device) -> dict[str, Any]:
    """DeepSpeed's configuration; accumulation is 1 because the loss is normalised before the backward."""
    zero: dict[str, Any] = {"stage": spec.zero_stage, "overlap_comm": False}
    if spec.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": device.type == "cuda"}
    config: dict[str, Any] = {
        "train_batch_size": world,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": spec.max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if spec.dtype == "bfloat16":
        # Stage 1 with float32 accumulation is another optimiser class; stage 2 shards the same states and has it.
        zero["stage"] = max(spec.zero_stage, 2)
        config["bf16"] = {"enabled": True, "check_grad_overflow": True}
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config
