"""Held-out evaluation of every member on the configured benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from population.config import BenchmarkConfig, RunConfig
from population.member import Member
from population.placement import wait
from population.prompts import Problem, load_problems
from server.rewards import RewardService
from server.rollouts.engine import SamplingParams, TokenPrompt
from server.store.records import EvaluationRecord


@dataclass(frozen=True)
class Benchmark:
    """A benchmark with its problems."""

    settings: BenchmarkConfig
    problems: tuple[Problem, ...]


def load_benchmarks(config: RunConfig, rewards: RewardService) -> list[Benchmark]:
    """Read all benchmarks before any work, so that a bad file costs nothing."""
    found = []
    for settings in config.evaluation.benchmarks:
        problems, _ = load_problems(settings, rewards.unparsable)
        found.append(Benchmark(settings, tuple(problems[: settings.limit])))
    return found


def evaluate(
    step: int,
    members: Mapping[str, Member],
    benchmarks: Sequence[Benchmark],
    rewards: RewardService,
    config: RunConfig,
) -> list[EvaluationRecord]:
    """Sample and grade every benchmark for every member at its present weights.

    The random numbers depend on the seed, the member and the problem but not on the step, so that two steps are compared on
    common random numbers.
    """
    records = []
    for benchmark in benchmarks:
        settings = benchmark.settings
        sampling = {
            name: member.engine.call(
                "sample",
                [TokenPrompt(p.key, tuple(member.tokenizer.encode_prompt(p.prompt))) for p in benchmark.problems],
                SamplingParams(
                    n=settings.responses_per_prompt,
                    max_new_tokens=config.rollouts.max_response_tokens,
                    temperature=settings.temperature,
                    top_p=settings.top_p,
                    seed=config.seed,
                    step=0,
                    member=name,
                    purpose=f"evaluate {settings.name}",
                ),
            )
            for name, member in members.items()
        }
        for name, future in sampling.items():
            rows = wait(future, config.deadlines.evaluate_s, member=name, phase="evaluate", step=step)
            pairs = [(p.answer, s.text) for p, row in zip(benchmark.problems, rows, strict=True) for s in row]
            verdicts = rewards.submit(pairs).result(timeout=config.deadlines.grade_s)
            n = settings.responses_per_prompt
            counts = tuple(
                (p.key, sum(v.reward > 0 for v in verdicts[i * n : (i + 1) * n]), n) for i, p in enumerate(benchmark.problems)
            )
            records.append(EvaluationRecord(name, settings.name, step, counts, settings.temperature, config.seed))
    return records
