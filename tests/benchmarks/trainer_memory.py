"""The memory estimate of `graft plan` against what a trainer holds: python -m tests.benchmarks.trainer_memory

Counts bytes of tensors, not of the process: held = all tensor storage after an update, activations = what autograd
saves for the backward pass, parameters apart. Both are those of a GPU as well; what an allocator adds is not in them.
"""

from __future__ import annotations

import gc
import platform
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from population.config import load
from population.memory import decoder, trainer_footprint
from population.plan import model_config
from population.trainer import Trainer, TrainerSpec, TrainingResponse

PACK = 512
VOCABULARY = 1000
# Family, hidden, layers, inner, dtype.
CASES = [
    ("qwen3", 256, 4, 768, "float32"),
    ("qwen3", 512, 8, 1536, "float32"),
    ("qwen3", 512, 8, 1536, "bfloat16"),
    ("llama", 512, 8, 1536, "bfloat16"),
]


def storages() -> dict[int, int]:
    """{address: bytes} of every tensor's storage that is alive."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = [item for item in gc.get_objects() if isinstance(item, torch.Tensor)]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def measure(case: tuple[str, int, int, int, str], folder: Path) -> str:
    """One row: bytes held and kept, measured and estimated."""
    family, hidden, layers, inner, dtype = case
    config = AutoConfig.for_model(
        family,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=inner,
        vocab_size=VOCABULARY,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(folder)
    del model
    before = sum(storages().values())
    trainer = Trainer(
        TrainerSpec(
            str(folder),
            dtype=dtype,
            device="cpu",
            max_tokens_per_pack=PACK,
            logprob_chunk_tokens=256,
            layout="packed",
        )
    )
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    rng = np.random.default_rng(0)
    half = PACK // 8
    batch = [
        TrainingResponse(rng.integers(3, VOCABULARY, half), rng.integers(3, VOCABULARY, half), None, 1.0)
        for _ in range(4)
    ]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.update(1, [batch])
    parameter_storage = {parameter.untyped_storage().data_ptr() for parameter in trainer._model.parameters()}
    kept = sum(size for address, size in saved.items() if address not in parameter_storage)
    held = sum(storages().values()) - before
    trainer.close()
    settings = load(
        "configs/paper/pair_1.yaml",
        [
            f"update.dtype={dtype}",
            "update.gradient_checkpointing=false",
            f"update.max_tokens_per_pack={PACK}",
        ],
    )
    sizes = decoder(model_config(folder), parameters)
    assert sizes is not None
    expected: Any = trainer_footprint(settings, settings.members[0], sizes)
    planned, activations = sum(expected.held.values()), expected.training["activations"]
    return (
        f"| {family} {parameters / 1e6:.1f} M, {dtype} | {held / 2**20:.1f} | {planned / 2**20:.1f} | "
        f"{planned / held:.2f} | {kept / 2**20:.1f} | {activations / 2**20:.1f} | {activations / kept:.2f} |"
    )


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    print(f"{platform.machine()}, torch {torch.__version__}, one update of a pack of {PACK} tokens")
    print("| model | held, MiB | estimated | ratio | kept for the backward, MiB | estimated | ratio |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(case, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
