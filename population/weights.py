"""A member's weights: from a folder, with adapters, as whole tensors by their HF names, and back into a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from population.errors import MemberError
from population.updates import LoraSpec, TrainerSpec
from server.rollouts.engine import trainable_tensors

Gather = Callable[[list[torch.Tensor]], AbstractContextManager[Any]]


# Loading a model and building a training engine change process-wide state: torch's default dtype, progress bars,
# DeepSpeed's registries. Whoever loads a model beside others in threads holds this.
LOADING = threading.RLock()


def load_causal_lm(folder: str | Path, dtype: torch.dtype, attention: str | None = None) -> Any:
    """The causal LM of a local folder in evaluation mode, loaded without a progress bar and one at a time.

    `attention`: transformers' name of an attention implementation; None leaves the choice to transformers.
    """
    from transformers import AutoModelForCausalLM

    chosen = {"attn_implementation": attention} if attention else {}
    with LOADING, _no_progress_bar():
        try:
            return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, **chosen).eval()
        except (SafetensorError, OSError) as error:
            reason = " ".join(str(error).split())
            raise MemberError(f"{folder}: its weights cannot be loaded ({reason[:200]}); fetch them again") from error


def load_model(spec: TrainerSpec, device: torch.device) -> Any:
    """The model of a spec on its device, or in CPU memory where ZeRO-3 is to shard it."""
    model = load_causal_lm(spec.model_path, getattr(torch, spec.dtype), spec.attention)
    if spec.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model if spec.zero_stage == 3 else model.to(device)


def load_reference(spec: TrainerSpec, device: torch.device) -> Any:
    """The model of a spec, frozen and whole on the device whatever the ZeRO stage: no engine shards it."""
    dtype = getattr(torch, spec.dtype)
    return load_causal_lm(spec.model_path, dtype, spec.attention).requires_grad_(False).to(device)


def inject_lora(model: Any, lora: LoraSpec, seed: int) -> None:
    """Put adapters into the model in place and freeze the rest; the adapters start from `seed`, whatever ran before."""
    from peft import LoraConfig, inject_adapter_in_model

    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, bias="none", target_modules=targets)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise MemberError(f"update.lora.target_modules: {reason[:200]}") from error


@dataclass(frozen=True)
class WholeTensor:
    """A tensor of the merged model before it is read: its Hugging Face name, and its shape over all ranks."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    source: torch.Tensor
    adapter: Any = None


def whole_tensors(model: Any) -> list[WholeTensor]:
    """What the merged model consists of, in a fixed order, a tied tensor once; adapters are not listed."""
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    found = []
    for name, tensor in trainable_tensors(model).items():
        owner = next((prefix for prefix in adapted if name.startswith(f"{prefix}.")), None)
        if owner is not None and not name.startswith(f"{owner}.base_layer."):
            continue
        shape = tuple(getattr(tensor, "ds_shape", tensor.shape))
        merged = name.replace(".base_layer.", ".")
        found.append(WholeTensor(merged, tensor.dtype, shape, tensor, adapted.get(owner or "")))
    return found


@contextmanager
def reading(whole: WholeTensor, gathered: Gather | None) -> Iterator[torch.Tensor]:
    """The tensor's detached value, its adapter added in a copy; it may not be used after the block.

    Under ZeRO-3 every rank must read the same tensors in the same order; `gathered` is its context.
    """
    layer = whole.adapter
    related = list(layer.parameters()) if layer is not None else [whole.source]
    with torch.no_grad(), gathered(_sharded(related)) if gathered else nullcontext():
        value = whole.source.detach()
        if layer is not None and whole.name.endswith(".weight"):
            value = value + layer.get_delta_weight("default").to(value.dtype)
        yield value


def merged_tensors(model: Any, gathered: Gather | None, *, keep: bool = True) -> dict[str, torch.Tensor]:
    """Whole, detached tensors by HF name. Under ZeRO-3 every rank must call this; they are gathered one by one and
    copied to the CPU. Who only takes part in that (`keep` false) gets none: a whole model in every rank may be more
    than a node has memory for.
    """
    merged: dict[str, torch.Tensor] = {}
    for whole in whole_tensors(model):
        with reading(whole, gathered) as value:
            if keep or not gathered:
                merged[whole.name] = value.to("cpu", copy=True) if gathered else value
    return merged


def _sharded(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [parameter for parameter in parameters if hasattr(parameter, "ds_id")]


def export_model(model: Any, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Safetensors (a tied tensor once) and configuration."""
    with LOADING, _no_progress_bar():
        model.save_pretrained(folder, state_dict={name: tensor.contiguous().cpu() for name, tensor in tensors.items()})


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers' progress bars are a switch of the whole process; it is put back."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
