"""The peer of `make bench`: TRL's GRPOTrainer over one model, CPU-seconds for each generation batch as JSON lines.

Runs in .venv-bench and imports nothing of the project. Every generation batch is `--prompts-per-step` prompts times
`--rollouts` responses, spent in `--minibatches` optimiser steps (per-device batch = prompts x rollouts / minibatches,
accumulation 1, one pass), in float32, without gradient checkpointing or loggers. The reward is 1 for a boxed integer
equal to the answer. The first batches (`--warmup`) pay for imports and allocations and are marked so.

    .venv-bench/bin/python tests/benchmarks/trl_step.py MODEL_FOLDER PROMPTS.json --batches 3

PROMPTS.json is a list of {"prompt": str, "answer": str}.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from datasets import disable_progress_bars as disable_dataset_bars
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

BOXED = re.compile(r"\\boxed\{(-?\d+)\}")


class Grader:
    """TRL's reward function, which also remembers what the last generation batch looked like."""

    __name__ = "boxed_integer"

    def __init__(self, group_size: int) -> None:
        self.group_size = group_size
        self.mixed_groups = 0.0
        self.mean_reward = 0.0

    def __call__(self, completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
        texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
        rewards = [right(text, gold) for text, gold in zip(texts, answer, strict=True)]
        groups = [rewards[i : i + self.group_size] for i in range(0, len(rewards), self.group_size)]
        self.mixed_groups = sum(0 < sum(group) < len(group) for group in groups) / len(groups)
        self.mean_reward = sum(rewards) / len(rewards)
        return rewards


def right(text: str, gold: str) -> float:
    found = BOXED.findall(text)
    return float(bool(found) and int(found[-1]) == int(gold))


class Meter(TrainerCallback):
    """Prints one JSON line for every generation batch, that is every `minibatches` optimiser steps."""

    def __init__(self, grader: Grader, minibatches: int, warmup: int) -> None:
        self.grader, self.minibatches, self.warmup = grader, minibatches, warmup
        self.trainer: GRPOTrainer | None = None
        self.start()

    def start(self) -> None:
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.start()

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step % self.minibatches:
            return
        batch = state.global_step // self.minibatches
        line = {
            "batch": batch,
            "warmup": batch <= self.warmup,
            "cpu_seconds": round(time.process_time() - self.cpu, 4),
            "wall_seconds": round(time.perf_counter() - self.wall, 4),
            "mean_tokens": mean_completion_length(self.trainer),
            "mixed_groups": self.grader.mixed_groups,
            "mean_reward": self.grader.mean_reward,
        }
        print(json.dumps(line), flush=True)
        self.start()


def mean_completion_length(trainer: GRPOTrainer | None) -> float | None:
    lengths = trainer._metrics["train"].get("completions/mean_length") if trainer else None
    return round(lengths[-1], 2) if lengths else None


def configuration(args: argparse.Namespace, folder: str) -> GRPOConfig:
    """What both sides do: the same prompts, responses, minibatches, precision and optimiser steps."""
    return GRPOConfig(
        output_dir=folder,
        max_steps=args.batches * args.minibatches,
        per_device_train_batch_size=args.prompts_per_step * args.rollouts // args.minibatches,
        gradient_accumulation_steps=1,
        steps_per_generation=args.minibatches,
        num_iterations=1,
        num_generations=args.rollouts,
        max_completion_length=args.max_new_tokens,
        temperature=1.0,
        learning_rate=args.learning_rate,
        lr_scheduler_type="constant",
        seed=args.seed,
        bf16=False,
        fp16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def read_prompts(path: Path, templated: bool) -> Dataset:
    """The data set; a tokenizer with a chat template gets every prompt as one user message."""
    rows = json.loads(path.read_text())
    as_prompt = (lambda text: [{"role": "user", "content": text}]) if templated else (lambda text: text)
    return Dataset.from_list([{"prompt": as_prompt(row["prompt"]), "answer": str(row["answer"])} for row in rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--prompts-per-step", type=int, default=32)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    disable_progress_bar()
    disable_dataset_bars()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    grader = Grader(args.rollouts)
    meter = Meter(grader, args.minibatches, args.warmup)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=grader,
            args=configuration(args, folder),
            train_dataset=read_prompts(args.prompts, tokenizer.chat_template is not None),
            processing_class=tokenizer,
            callbacks=[meter],
        )
        meter.trainer = trainer
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return 0


if __name__ == "__main__":
    sys.exit(main())
