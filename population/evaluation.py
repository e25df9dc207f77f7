"""Held-out evaluation of every member on the configured benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from population.config import BenchmarkConfig, RunConfig
from population.encoding import PromptIds, encode_for_all
from population.errors import MemberError
from population.member import build_engine, load_tokenizer, positions_of
from population.placement import Local, wait
from population.prompts import Problem, load_problems
from server.rewards import RewardService
from server.rollouts.engine import SamplingParams, TokenPrompt
from server.rollouts.tokenizer import MemberTokenizer
from server.store.records import EvaluationRecord


class Measured(Protocol):
    """What evaluation needs of a member."""

    @property
    def tokenizer(self) -> MemberTokenizer: ...

    @property
    def engine(self) -> Local: ...


@dataclass(frozen=True)
class ExportedMember:
    """A trained member read back from its folder: it samples, it does not train."""

    tokenizer: MemberTokenizer
    engine: Local


@contextmanager
def load_exported(config: RunConfig, folder: Path) -> Iterator[dict[str, ExportedMember]]:
    """The members of a configuration from ``folder/<member name>``, as a run exports them. Raises MemberError."""
    with ExitStack() as stack:
        members = {}
        for member in config.members:
            path = folder / member.name
            if not (path / "config.json").is_file():
                raise MemberError(f"member {member.name!r}: {path} holds no model; give the members folder of a run")
            tokenizer = load_tokenizer(member.name, path)
            engine = Local(build_engine, path, tokenizer, config, threads=config.update.threads)
            stack.callback(engine.close)
            wait(engine.ready, config.deadlines.load_s, member=member.name, phase="load", step=None)
            members[member.name] = ExportedMember(tokenizer, engine)
        yield members


def encode_benchmarks(
    config: RunConfig, folder: Path, members: Mapping[str, ExportedMember], benchmarks: Sequence[Benchmark]
) -> dict[str, PromptIds]:
    """Every benchmark prompt in the tokens of exported members."""
    return encode_for_all(
        {name: member.tokenizer for name, member in members.items()},
        {name: positions_of(folder / name) for name in members},
        [problem for benchmark in benchmarks for problem in benchmark.problems],
        max_prompt_tokens=config.rollouts.max_prompt_tokens,
        max_response_tokens=config.rollouts.max_response_tokens,
    )


@dataclass(frozen=True)
class Benchmark:
    """A benchmark with its problems."""

    settings: BenchmarkConfig
    problems: tuple[Problem, ...]
    skipped: tuple[Problem, ...] = ()


def load_benchmarks(config: RunConfig, rewards: RewardService) -> list[Benchmark]:
    """Read all benchmarks before any work, so that a bad file costs nothing."""
    found = []
    for settings in config.evaluation.benchmarks:
        problems, skipped = load_problems(settings, rewards.unparsable)
        found.append(Benchmark(settings, tuple(problems[: settings.limit]), tuple(skipped)))
    return found


def evaluate(
    step: int,
    members: Mapping[str, Measured],
    prompt_ids: Mapping[str, Mapping[int, tuple[int, ...]]],
    benchmarks: Sequence[Benchmark],
    rewards: RewardService,
    config: RunConfig,
) -> list[EvaluationRecord]:
    """Sample and grade every benchmark for every member at its present weights.

    The random numbers depend on the seed, the member and the problem but not on the step, so that two steps are
    compared on common random numbers.
    """
    records = []
    for benchmark in benchmarks:
        settings = benchmark.settings
        sampling = {
            name: member.engine.call(
                "sample",
                [TokenPrompt(p.key, prompt_ids[name][p.key]) for p in benchmark.problems],
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
            grading = rewards.submit(pairs)
            verdicts = wait(grading, config.deadlines.grade_s, member=name, phase="grade the evaluation", step=step)
            n = settings.responses_per_prompt
            counts = tuple(
                (p.key, sum(v.reward > 0 for v in verdicts[i * n : (i + 1) * n]), n)
                for i, p in enumerate(benchmark.problems)
            )
            records.append(EvaluationRecord(name, settings.name, step, counts, settings.temperature, config.seed))
    return records
