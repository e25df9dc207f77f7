"""CPU time of a trainer's step against a plain torch loop over the same micro-batches.

    python tests/benchmarks/trainer_overhead.py [--rounds 15] [--threads 1] [--family qwen3]

Demo sizes: d = 64, 3 layers, about 0.16 M parameters; 4 minibatches of 64 responses (8 prompts x 8), 25 + 10 tokens.
The plain loop runs the same `LogpModel` and loss with AdamW and gradient clipping. It is timed twice: with the
micro-batches cut in each step, as the trainer does, and with micro-batches that were cut before.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

import numpy as np
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from population.head import HeadOptions
from population.packing import MicroBatch, micro_batches
from population.scoring import LogpModel, token_logprobs
from population.trainer import Trainer, TrainerSpec, TrainingResponse
from population.updates import Minibatch, PackTokens, pack_loss
from population.weights import load_model

CPU = torch.device("cpu")


def tiny_model(family: str, vocabulary: int = 100) -> torch.nn.Module:
    """A random model of the demo's size."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 192,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**sizes, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True))
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes))
    return GPTNeoXForCausalLM(GPTNeoXConfig(**{**sizes, "intermediate_size": 256}, rotary_pct=0.5))


def random_minibatches(seed: int, vocabulary: int = 100) -> list[list[TrainingResponse]]:
    """4 minibatches x 8 prompts x 8 responses of about 25 + 10 tokens, all with a gradient."""
    draw = np.random.default_rng(seed)

    def group() -> list[TrainingResponse]:
        prompt = draw.integers(0, vocabulary, int(draw.integers(22, 29)))
        lengths = draw.integers(7, 14, 8)
        return [
            TrainingResponse(
                prompt, draw.integers(0, vocabulary, n), -4.6 + 0.1 * draw.normal(size=n), float(draw.normal()) or 1.0
            )
            for n in lengths
        ]

    return [[response for _ in range(8) for response in group()] for _ in range(4)]


class PlainLoop:
    """What a trainer's step costs without DeepSpeed."""

    def __init__(self, spec: TrainerSpec) -> None:
        self.spec = spec
        options = HeadOptions(spec.logprob_chunk_tokens, spec.temperature)
        self.model = LogpModel(load_model(spec, CPU), options, chunked_head=True)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=spec.learning_rate, betas=spec.betas, weight_decay=spec.weight_decay
        )

    def cut(self, responses: Sequence[TrainingResponse]) -> list[tuple[MicroBatch, PackTokens]]:
        """Micro-batches of one minibatch with their token tensors."""
        minibatch = Minibatch(responses, self.spec.aggregation)
        batches = micro_batches(
            minibatch.pairs,
            layout="rows",
            max_tokens=self.spec.max_tokens_per_pack,
            share_tokens=self.spec.share_tokens,
        )
        return [(batch, minibatch.tokens(batch, CPU)) for batch in batches if batch is not None]

    def step(self, cut: Sequence[Sequence[tuple[MicroBatch, PackTokens]]]) -> None:
        """One optimiser step per minibatch."""
        for packs in cut:
            for batch, tokens in packs:
                pack_loss(token_logprobs(self.model, batch), tokens, self.spec, at_theta_old=False).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of all threads of the process for one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def measure(spec: TrainerSpec, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each arm, alternating; the first two rounds warm up and are dropped."""
    trainer, plain = Trainer(spec), PlainLoop(spec)
    times: dict[str, list[float]] = {"trainer": [], "plain": [], "plain, cut before": []}
    for round_number in range(1, rounds + 3):
        minibatches = random_minibatches(round_number)
        ready = [plain.cut(minibatch) for minibatch in minibatches]
        arms: dict[str, Callable[[], object]] = {
            "trainer": lambda step=round_number, data=minibatches: trainer.update(step, data),
            "plain": lambda data=minibatches: plain.step([plain.cut(minibatch) for minibatch in data]),
            "plain, cut before": lambda data=ready: plain.step(data),
        }
        order = list(arms) if round_number % 2 else list(arms)[::-1]
        for name in order:
            seconds = cpu_seconds(arms[name])
            if round_number > 2:
                times[name].append(seconds)
    trainer.close()
    return times


def main() -> None:
    """Print the machine, the versions and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--family", choices=("qwen3", "llama", "gpt_neox"), default="qwen3")
    parser.add_argument("--max-tokens-per-pack", type=int, default=16384)
    parser.add_argument("--share-tokens", type=int, default=512)
    options = parser.parse_args()
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "deepspeed", "transformers", "numpy"))
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, {options.threads} thread(s); {packages}")
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(options.family)
        model.save_pretrained(folder)
        spec = TrainerSpec(
            folder,
            learning_rate=3e-4,
            threads=options.threads,
            device="cpu",
            max_tokens_per_pack=options.max_tokens_per_pack,
            share_tokens=options.share_tokens,
        )
        times = measure(spec, options.rounds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, value in medians.items():
        low, high = min(times[name]), max(times[name])
        print(f"{name:18s} {value * 1e3:7.1f} ms CPU a step (from {low * 1e3:.1f} to {high * 1e3:.1f})")
    for arm in ("plain", "plain, cut before"):
        ratios = [a / b for a, b in zip(times["trainer"], times[arm], strict=True)]
        print(f"trainer / {arm}: {statistics.median(ratios):.3f} (median of {len(ratios)} pairs)")


if __name__ == "__main__":
    main()
