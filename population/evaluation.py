"""Evaluation of every member on the configured benchmarks (protocol: docs/evaluation.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from population.calls import all_of, begin
from population.config import BenchmarkConfig, RunConfig
from population.encoding import PromptIds, encode_for_all
from population.errors import DataError, MemberError
from population.grading import Rewards, require_reward, reward_service, to_grade
from population.member import build_embedded, load_tokenizer, positions_of
from population.placement import Local, Placement, wait
from population.prompts import Problem, load_problems
from server.rewards.rules import decide
from server.rewards.verdicts import Verdict
from server.rollouts.engine import Sample, SamplingParams, TokenPrompt
from server.rollouts.tokenizer import MemberTokenizer
from server.store.records import EvaluationRecord

Draw = Callable[[str, int, Sequence[TokenPrompt], SamplingParams], Sequence[Sequence[Sample]]]
"""(member, step of its weights, prompts, how) -> samples [prompts][n]; it waits for them, under a deadline."""

MANIFEST = "checkpoint.json"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Whose weights a model folder holds and how they were selected; None where no run kept them as its best.

    MemberError when the file is no JSON object.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        facts = json.loads(path.read_text())
    except ValueError as error:
        raise MemberError(f"{path}: is not valid JSON ({error}); remove it, or take another folder") from None
    if not isinstance(facts, dict):
        raise MemberError(f"{path}: holds no object; remove it, or take another folder")
    return facts


@dataclass(frozen=True)
class ExportedMember:
    """A trained member read back from its folder: it samples, it does not train."""

    tokenizer: MemberTokenizer
    engine: Placement


@contextmanager
def load_exported(config: RunConfig, folder: Path) -> Iterator[dict[str, ExportedMember]]:
    """The members of a configuration from ``folder/<member name>``, as a run exports them. Raises MemberError."""
    with ExitStack() as stack:
        members = {}
        for member in config.trained:
            path = folder / member.name
            if not (path / "config.json").is_file():
                raise MemberError(
                    f"member {member.name!r}: {path} holds no model; give the members or the best folder of a run"
                )
            tokenizer = load_tokenizer(member.name, path)
            engine = Local(build_embedded, config, path, tokenizer, threads=config.update.threads)
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


def load_benchmarks(config: RunConfig, rewards: Rewards) -> list[Benchmark]:
    """Read all benchmarks before any work, so that a bad file costs nothing.

    DataError when nothing is left of one after ``skip``, or when a benchmark that selects checkpoints shares problems
    with one that reports.
    """
    found = []
    for settings in config.evaluation.benchmarks:
        require_reward(settings, f"evaluation.benchmarks.{settings.name}", rewards)
        problems, unreadable = load_problems(settings, rewards.unparsable)
        end = None if settings.limit is None else settings.skip + settings.limit
        chosen = tuple(problems[settings.skip : end])
        if not chosen:
            raise DataError(
                f"benchmark {settings.name!r}: skip = {settings.skip} leaves none of the {len(problems)} problems of "
                f"{settings.source}; lower it"
            )
        found.append(Benchmark(settings, chosen, tuple(unreadable)))
    _refuse_shared(found)
    return found


def _refuse_shared(benchmarks: Sequence[Benchmark]) -> None:
    """A test problem that helped to select the checkpoint would make its figure optimistic without a word."""
    for held_out in (b for b in benchmarks if b.settings.role == "validation"):
        texts = {(problem.prompt, problem.answer) for problem in held_out.problems}
        for test in (b for b in benchmarks if b.settings.role == "test"):
            shared = sum((problem.prompt, problem.answer) in texts for problem in test.problems)
            if shared:
                raise DataError(
                    f"benchmark {held_out.settings.name!r} (role: validation) shares {shared} problems with "
                    f"{test.settings.name!r} (role: test); part them with skip and limit"
                )


def evaluate(
    steps: Mapping[str, int],
    draw: Draw,
    prompt_ids: Mapping[str, Mapping[int, tuple[int, ...]]],
    benchmarks: Sequence[Benchmark],
    rewards: Rewards,
    config: RunConfig,
    *,
    repeat: int = 0,
) -> list[EvaluationRecord]:
    """Sample and grade every benchmark for the members in ``steps`` ({member: step of its weights}).

    The random numbers depend on the seed, the member, the benchmark, the problem and the repeat but not on the step, so
    that two steps, and two runs of one seed, are compared on common random numbers. Repeat 0 is the evaluation in the
    course of training; no other repeat shares its samples.
    """

    def sampled(benchmark: Benchmark, name: str, step: int) -> Future[list[Verdict]]:
        prompts = [TokenPrompt(p.key, prompt_ids[name][p.key]) for p in benchmark.problems]
        found = draw(name, step, prompts, _params(config, benchmark.settings, name, repeat))
        rows = zip(benchmark.problems, found, strict=True)
        return rewards.submit([to_grade(p, s.text) for p, row in rows for s in row])

    records = []
    for benchmark in benchmarks:
        grading = all_of({name: begin(partial(sampled, benchmark, name, step)) for name, step in steps.items()})
        for name, step in steps.items():
            limit = config.deadlines.grade_s
            verdicts = wait(grading[name], limit, member=name, phase="grade the evaluation", step=step)
            records.append(evaluation_record(benchmark, name, step, verdicts, config.seed, repeat))
    return records


def _params(config: RunConfig, benchmark: BenchmarkConfig, member: str, repeat: int) -> SamplingParams:
    return SamplingParams(
        n=benchmark.responses_per_prompt,
        max_new_tokens=config.rollouts.max_response_tokens,
        temperature=benchmark.temperature,
        top_p=benchmark.top_p,
        seed=config.seed,
        step=repeat,
        member=member,
        purpose=f"evaluate {benchmark.name}",
    )


def evaluate_exported(config: RunConfig, folder: Path, repeats: int) -> list[EvaluationRecord]:
    """Measure the members exported to ``folder`` on all benchmarks, ``repeats`` times with other random numbers each;
    0: once, with those of the evaluations in the course of training. DataError when there is no benchmark.
    """
    if not config.evaluation.benchmarks:
        raise DataError("evaluation.benchmarks: there are none; name one to evaluate on")
    with ExitStack() as stack:
        rewards = stack.enter_context(reward_service(config.rewards))
        benchmarks = load_benchmarks(config, rewards)
        members = stack.enter_context(load_exported(config, folder))
        prompt_ids = encode_benchmarks(config, folder, members, benchmarks)
        kept = {name: read_manifest(folder / name) for name in members}

        def draw(name: str, step: int, prompts: Sequence[TokenPrompt], params: SamplingParams) -> list[list[Sample]]:
            call = members[name].engine.call("sample", prompts, params)
            return wait(call, config.deadlines.evaluate_s, member=name, phase="evaluate", step=step)

        steps = {name: 0 if facts is None else int(facts["step"]) for name, facts in kept.items()}
        return [
            record
            for repeat in range(1, repeats + 1) or [0]
            for record in evaluate(steps, draw, prompt_ids, benchmarks, rewards, config, repeat=repeat)
        ]


def evaluation_record(
    benchmark: Benchmark, member: str, step: int, verdicts: Sequence[Verdict], seed: int, repeat: int
) -> EvaluationRecord:
    """The counts of one pass; ``verdicts`` are those of the first problem's responses, then the second's, ..."""
    settings = benchmark.settings
    n = settings.responses_per_prompt
    by_problem = {p.key: verdicts[i * n : (i + 1) * n] for i, p in enumerate(benchmark.problems)}
    votes = {key: wrong_votes(own) for key, own in by_problem.items()}
    return EvaluationRecord(
        member,
        settings.name,
        step,
        tuple((key, sum(v.reward > 0 for v in own), n) for key, own in by_problem.items()),
        settings.temperature,
        seed,
        settings.role,
        repeat,
        {key: sizes for key, sizes in votes.items() if sizes is not None},
    )


def wrong_votes(verdicts: Sequence[Verdict]) -> tuple[int, ...] | None:
    """How many of a problem's responses gave each wrong answer, most frequent first; None where answers are not known.

    Two wrong answers are one where the verifier's rules say so by reading (the same spelling, number or word); what
    only algebra can show to be equal counts as two. A right response without an extracted answer means that the reward
    does not extract any, and that there is nothing to vote on.
    """
    if any(verdict.reward > 0 and verdict.extracted is None for verdict in verdicts):
        return None
    classes: list[list[str]] = []
    for verdict in verdicts:
        if verdict.reward > 0 or verdict.extracted is None:
            continue
        known = next((group for group in classes if _same(group[0], verdict.extracted)), None)
        if known is None:
            classes.append([verdict.extracted])
        else:
            known.append(verdict.extracted)
    return tuple(sorted((len(group) for group in classes), reverse=True))


def _same(first: str, second: str) -> bool:
    decision = decide(first, second)
    return decision is not None and decision[0]
