"""The parts of the check, each run by `main` in a process of its own; facts go to standard output as JSON lines."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from population.config import RunConfig, parse
from population.gpu_check.report import SGLANG_PYTHON
from population.gpu_check.scale import FULL, SMALL, Scale
from population.memory import decoder, trainer_footprint
from population.plan import model_config, stored_parameters
from server.rollouts.engine import SamplingParams, TokenPrompt

Facts = dict[str, Any]
FAMILIES = ("qwen3", "llama")


def matmul(device: torch.device, scale: Scale, _family: str) -> Facts:
    """TFLOP/s of one square bfloat16 product, the peak that the other parts are measured against."""
    size = scale.matmul
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    with clock(device) as seconds:
        for _ in range(20):
            left @ right
    return {"matmul_tflops": 20 * 2 * size**3 / seconds() / 1e12, "device": name_of(device)}


def train(device: torch.device, scale: Scale, family: str) -> Facts:
    """Updates of one random member: tokens per second, share of the model's FLOPs, peak memory and its estimate."""
    from population.trainer import Trainer, TrainerSpec, TrainingResponse

    attention = "flash_attention_2" if flash_attention() else "sdpa"
    with random_member(family, scale) as folder:
        spec = TrainerSpec(
            str(folder),
            dtype="bfloat16",
            device=device.type,  # type: ignore[arg-type]
            attention=attention,
            max_tokens_per_pack=scale.pack,
            gradient_checkpointing=True,
        )
        trainer = Trainer(spec)
        rng = np.random.default_rng(0)

        def ids(length: int) -> np.ndarray:
            return rng.integers(3, scale.vocabulary, length).astype(np.int32)

        batch = [
            TrainingResponse(ids(scale.prompt), ids(scale.response), None, float((-1) ** row))
            for row in range(scale.rows)
        ]
        trainer.update(1, [batch])
        with clock(device) as seconds:
            reports = [trainer.update(2 + number, [batch]) for number in range(scale.updates)]
        length = scale.prompt + scale.response
        tokens = scale.rows * length * scale.updates
        # 6 for every weight, and the causal half of the attention's 12.
        flops = tokens * (6 * trainer.parameters + 6 * scale.layers * scale.hidden * length)
        facts: Facts = {
            "parameters": trainer.parameters,
            "attention": attention,
            "layout": trainer.layout,
            "notes": list(trainer.notes),
            "loss": reports[-1].minibatches[0].loss,
            "grad_norm": reports[-1].minibatches[0].grad_norm,
            "tokens_per_second": tokens / seconds(),
            "tflops": flops / seconds() / 1e12,
            "estimated_bytes": estimated_bytes(folder, scale),
        }
        if device.type == "cuda":
            facts["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        trainer.close()
    return facts


def sample(device: torch.device, scale: Scale, family: str) -> Facts:
    """Tokens per second of the embedded engine, all rows at once, and that its log-probabilities are finite."""
    from population.weights import load_causal_lm
    from server.rollouts.embedded import EmbeddedEngine

    with random_member(family, scale) as folder:
        model = load_causal_lm(folder, torch.bfloat16).to(device)
        engine = EmbeddedEngine(model, tokenizer(scale), max_batch_rows=scale.rows)
        prompts, params = requests(scale)
        engine.sample(prompts[:1], params)
        with clock(device) as seconds:
            rows = engine.sample(prompts, params)
        tokens = sum(len(sample.ids) for row in rows for sample in row)
        return {"tokens_per_second": tokens / seconds(), "tokens": tokens, "notes": list(engine.notes)}


def sglang(device: torch.device, scale: Scale, family: str) -> Facts:
    """One SGLang server: samples, sleeps, wakes with other weights and samples again; free memory awake and asleep."""
    from population.weights import load_causal_lm
    from server.rollouts.engine import EngineError, trainable_tensors
    from server.rollouts.sglang_engine import SglangEngine
    from server.rollouts.sglang_process import ServerSpec, SglangServer

    on_gpu = device.type == "cuda"
    with random_member(family, scale) as folder, tempfile.TemporaryDirectory() as place:
        tokenizer(scale).hf.save_pretrained(folder)
        weights = trainable_tensors(load_causal_lm(folder, torch.bfloat16))
        spec = ServerSpec(
            name="the check's server",
            folder=Path(place) / "server",
            context_length=scale.prompt + scale.new_tokens,
            python=os.environ.get(SGLANG_PYTHON, sys.executable),
            device="cuda" if on_gpu else "cpu",
            dtype="bfloat16",
            memory_fraction=0.3,
            memory_saver=on_gpu,
            start_s=150.0,
        )
        server = SglangServer(spec)
        server.start(folder)
        engine = SglangEngine([server], tokenizer(scale), folder, Path(place) / "weights")
        try:
            prompts, params = requests(scale)
            engine.load_weights(1, weights)
            with clock(device) as seconds:
                rows = engine.sample(prompts, params)
            tokens = sum(len(sample.ids) for row in rows for sample in row)
            awake = free_memory(device)
            engine.sleep()
            asleep = free_memory(device)
            try:
                engine.sample(prompts[:1], params)
            except EngineError:
                refused = True
            else:
                refused = False
            engine.load_weights(2, weights)
            again = engine.sample(prompts[:1], params)
        finally:
            engine.close()
    return {
        "tokens_per_second": tokens / seconds(),
        "freed_by_sleep": None if awake is None or asleep is None else asleep - awake,
        "refused_asleep": refused,
        "version_after_waking": again[0][0].weight_version,
        "notes": list(engine.notes),
    }


PARTS: Mapping[str, Callable[[torch.device, Scale, str], Facts]] = {
    "matmul": matmul,
    "train": train,
    "sample": sample,
    "sglang": sglang,
}


def main() -> None:
    """Run one part: the argument is JSON of part, device, scale and family."""
    asked = json.loads(sys.argv[1])
    device = torch.device(asked["device"])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device")
    torch.manual_seed(0)
    scale = FULL if asked["scale"] == "full" else SMALL
    print(json.dumps(PARTS[asked["part"]](device, scale, asked["family"])), flush=True)


@contextmanager
def clock(device: torch.device) -> Iterator[Callable[[], float]]:
    """Seconds from entering to leaving, the device's queue emptied at both ends."""
    settle(device)
    started, ended = time.perf_counter(), 0.0

    def seconds() -> float:
        return ended - started

    yield seconds
    settle(device)
    ended = time.perf_counter()


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def name_of(device: torch.device) -> str:
    """What the device is called."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def free_memory(device: torch.device) -> int | None:
    """Free bytes of the whole GPU, whoever holds the rest; None for a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def flash_attention() -> bool:
    """Whether transformers can use FlashAttention 2 here."""
    from transformers.utils import is_flash_attn_2_available

    return bool(is_flash_attn_2_available())


@contextmanager
def random_member(family: str, scale: Scale) -> Iterator[Path]:
    """The folder of a model of the family with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family,
        hidden_size=scale.hidden,
        num_hidden_layers=scale.layers,
        num_attention_heads=scale.heads,
        num_key_value_heads=scale.kv_heads,
        head_dim=scale.hidden // scale.heads,
        intermediate_size=scale.inner,
        vocab_size=scale.vocabulary,
        max_position_embeddings=2 * (scale.prompt + scale.response),
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    with tempfile.TemporaryDirectory() as place:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(place)
        del model
        yield Path(place)


def tokenizer(scale: Scale) -> Any:
    """A tokenizer of as many words as the member has ids."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from server.rollouts.tokenizer import MemberTokenizer

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(scale.vocabulary)}, unk_token="w0"))
    return MemberTokenizer(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", unk_token="w0"))


def requests(scale: Scale) -> tuple[list[TokenPrompt], SamplingParams]:
    """A prompt for each row, and one sample of each."""
    rng = np.random.default_rng(1)
    drawn = rng.integers(3, scale.vocabulary, (scale.rows, scale.prompt)).tolist()
    return [TokenPrompt(key, tuple(ids)) for key, ids in enumerate(drawn)], SamplingParams(1, scale.new_tokens)


def estimated_bytes(folder: Path, scale: Scale) -> int:
    """The trainer's peak by `graft plan`'s estimate."""
    config = check_config(folder, scale)
    sizes = decoder(model_config(folder), stored_parameters(folder))
    assert sizes is not None
    footprint = trainer_footprint(config, config.members[0], sizes)
    return sum((footprint.held | footprint.training).values())


def check_config(folder: Path, scale: Scale) -> RunConfig:
    """A run's configuration with the settings that `train` uses."""
    return parse(
        {
            "name": "gpu-check",
            "method": "grpo",
            "steps": 1,
            "members": [{"name": "member", "model": str(folder)}],
            "data": {"source": "demo:train", "prompts_per_step": 1},
            "update": {
                "prompts_per_minibatch": 1,
                "dtype": "bfloat16",
                "gradient_checkpointing": True,
                "max_tokens_per_pack": scale.pack,
            },
        }
    )
