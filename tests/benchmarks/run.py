"""`make bench`: one GRPO step here against TRL's GRPOTrainer, equal work, in alternating runs.

Both sides start from the same warm-started member, so that groups are mixed and the zero-advantage share is a real one,
and train at a learning rate of 1e-6, so that it stays what it is. A run is one process; the order changes from pair to
pair; the figure of a run is the median CPU time of its batches after the first; the result is the median ratio.

    make bench ARGS="--pairs 5 --sizes tiny large"
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
WORK = ROOT / "runs" / "bench"
RUN_DEADLINE_S = 900
MEMBER = "qwen3"
QUIET_SINGLE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
VERSIONS = "import importlib.metadata as m; print(', '.join(f'{n} {m.version(n)}' for n in %r))"


@dataclass(frozen=True)
class Side:
    """One of the two: its interpreter, its script and its prompts file."""

    name: str
    python: Path
    script: Path
    prompts: Path
    packages: tuple[str, ...]


OURS = Side(
    "ours",
    ROOT / ".venv/bin/python",
    HERE / "grpo_step.py",
    WORK / "prompts.jsonl",
    ("torch", "transformers", "deepspeed"),
)
PEER = Side(
    "TRL",
    ROOT / ".venv-bench/bin/python",
    HERE / "trl_step.py",
    WORK / "prompts.json",
    ("torch", "transformers", "trl"),
)


def prepare(size: str, seed: int) -> Path:
    """The warm-started member of a size (cached), and both sides' prompts files."""
    from population.demo import tasks, warmstart

    rows = [{"prompt": p.prompt, "answer": p.answer} for p in tasks.training_problems()]
    WORK.mkdir(parents=True, exist_ok=True)
    PEER.prompts.write_text(json.dumps(rows))
    OURS.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return warmstart.prepare(MEMBER, seed=seed, size=size, cache_dir=WORK / "warm-start")


def run_side(side: Side, model: Path, batches: int, seed: int) -> list[dict[str, float]]:
    """One process of a side; its measured batches."""
    command = [str(side.python), str(side.script), str(model), str(side.prompts)]
    command += ["--batches", str(batches), "--seed", str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **QUIET_SINGLE_THREAD}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_DEADLINE_S)
    if done.returncode:
        raise SystemExit(f"{side.name} failed:\n{done.stderr[-3000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if not line["warmup"]]


def median_of(batches: Sequence[dict[str, float]], key: str) -> float:
    return statistics.median(batch[key] for batch in batches)


def measure(size: str, pairs: int, batches: int, seed: int, log: Path) -> list[float]:
    """Alternating pairs at one size; prints each and returns the ratios ours / TRL of CPU-seconds."""
    model = prepare(size, seed)
    ratios = []
    for pair in range(pairs):
        order = (PEER, OURS) if pair % 2 == 0 else (OURS, PEER)
        found = {side.name: run_side(side, model, batches, seed + pair) for side in order}
        with log.open("a") as file:
            file.write(json.dumps({"size": size, "pair": pair, "first": order[0].name, **found}) + "\n")
        ours, peer = found[OURS.name], found[PEER.name]
        ratios.append(median_of(ours, "cpu_seconds") / median_of(peer, "cpu_seconds"))
        print(
            f"{size} pair {pair + 1}: ours {median_of(ours, 'cpu_seconds'):.3f} CPU-s, "
            f"TRL {median_of(peer, 'cpu_seconds'):.3f} CPU-s, ratio {ratios[-1]:.3f}; tokens a response "
            f"{median_of(ours, 'mean_tokens'):.1f} and {median_of(peer, 'mean_tokens'):.1f}, mixed groups "
            f"{median_of(ours, 'mixed_groups'):.2f} and {median_of(peer, 'mixed_groups'):.2f}, "
            f"skipped tokens {median_of(ours, 'skipped_share'):.2f}",
            flush=True,
        )
    return ratios


def machine() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"


def versions(side: Side) -> str:
    code = VERSIONS % (side.packages,)
    return subprocess.run(
        [side.python, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--batches", type=int, default=4, help="batches of a run; the first is not counted")
    parser.add_argument("--sizes", nargs="+", default=["tiny", "large"], choices=["tiny", "large"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(f"machine: {machine()}")
    for side in (OURS, PEER):
        print(f"{side.name}: {versions(side)}")
    WORK.mkdir(parents=True, exist_ok=True)
    log = WORK / "pairs.jsonl"
    for size in args.sizes:
        ratios = measure(size, args.pairs, args.batches, args.seed, log)
        low, high = min(ratios), max(ratios)
        print(f"{size}: median ratio ours / TRL {statistics.median(ratios):.3f} (from {low:.3f} to {high:.3f})")
    print(f"every batch of every run: {log.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
