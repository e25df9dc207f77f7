"""Our side of `make bench`: one member's whole GRPO step, CPU-seconds for each step as JSON lines.

Sampling, grading, update, weight sync and the commit to the store are inside the figure. The last step also writes the
final checkpoint and the exported model, which a step does not: it is run and not reported.

    .venv/bin/python tests/benchmarks/grpo_step.py MODEL_FOLDER PROMPTS.jsonl --batches 3
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from population.config import load
from population.coordinator import StepReport
from population.run import Watch, train

CONFIG = Path(__file__).with_name("grpo_step.yaml")


class Meter:
    """Prints one JSON line for every step but the last."""

    def __init__(self, warmup: int, last_step: int) -> None:
        self.warmup, self.last_step = warmup, last_step

    def begin(self, uid: str, first_step: int, steps: int) -> None:
        self.start()

    def start(self) -> None:
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def step(self, report: StepReport) -> None:
        cpu, wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
        if report.step == self.last_step:
            return
        (groups,) = (list(own.values()) for own in report.rollouts.groups.values())
        (update,) = report.updates.values()
        lengths = [len(response.ids) for group in groups for response in group.responses]
        rewards = [float(reward) for group in groups for reward in group.rewards]
        trained = sum(part.trained_tokens for part in update.minibatches)
        skipped = sum(part.skipped_tokens for part in update.minibatches)
        line = {
            "batch": report.step,
            "warmup": report.step <= self.warmup,
            "cpu_seconds": round(cpu, 4),
            "wall_seconds": round(wall, 4),
            "mean_tokens": round(sum(lengths) / len(lengths), 2),
            "mixed_groups": sum(group.mixed for group in groups) / len(groups),
            "mean_reward": sum(rewards) / len(rewards),
            "skipped_share": round(skipped / (trained + skipped), 4),
            "seconds": {phase: round(seconds, 4) for phase, seconds in report.seconds.items()},
        }
        print(json.dumps(line), flush=True)
        self.start()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"members=[{{name: one, model: {args.model.absolute()}}}]",
            f"data.source={args.prompts.absolute()}",
            f"steps={args.batches + 1}",
            f"seed={args.seed}",
            f"folder={folder}",
        ]
        meter = Meter(args.warmup, args.batches + 1)
        train(load(CONFIG, overrides), Watch(lambda *_: None, lambda _: None, meter.begin, meter.step))
    return 0


if __name__ == "__main__":
    sys.exit(main())
