"""Made-up but consistent runs, written through the real Writer: for tests of the store and of what reads it.

`make_store(folder)` leaves a finished run; `Scenario` gives its parts, so that a test can write step by step.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from server.store.connections import locate
from server.store.records import (
    EvaluationRecord,
    EventRecord,
    GraftedRecord,
    GroupRecord,
    MemberRecord,
    MetricRecord,
    PromptRecord,
    ResponseRecord,
    RunRecord,
    StepRecord,
    TransferRecord,
)
from server.store.writer import Writer, open_writer

NAMES = ("qwen-0.5b", "llama-1b", "smol-360m", "gemma-1b", "phi-mini", "olmo-1b", "falcon-1b", "granite-1b")
TOPICS = ("addition", "multiplication", "fractions", "sequences")
BENCHMARKS = ("held-out", "word-problems")
FLOOR = 0.8
HOSTILE = (
    "<script>alert(1)</script> ![x](https://example.org/x.png) [link](javascript:alert(1))",
    "# heading\n\n| a | b |\n|---|---|\n$\\frac{1}{2} + \\sqrt{2}$ and a lone $ sign, :material/home: www.example.org",
    "Ünïcode ∑∞ 答案 🙂 \\boxed{",
)
_MASK = (1 << 53) - 1


def key_of(*parts: object) -> int:
    """A 53-bit key from a hash, as prompts have."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") & _MASK


@dataclass(frozen=True)
class Scenario:
    """A run that can be made step by step; every step is a pure function of (seed, step)."""

    members: int = 3
    steps: int = 20
    prompts: int = 16
    n: int = 8
    seed: int = 0
    tokens: int = 25
    uid: str = "synthetic"
    name: str = "synthetic run"
    method: str = "graft"
    held_out_share: float = 0.1
    error_share: float = 0.01
    nan_loss_at: int | None = None
    # How many peers may give to one place.
    sources: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(NAMES[i] if i < len(NAMES) else f"member-{i}" for i in range(self.members))

    def run(self) -> RunRecord:
        members = tuple(
            MemberRecord(
                name, f"org/{name}", name.split("-")[0], hashlib.sha256(name.encode()).hexdigest(), 10**6 * (i + 1)
            )
            for i, name in enumerate(self.names)
        )
        config = {"seed": self.seed, "method": self.method, "exchange": {"floor": FLOOR, "balance": "circulation"}}
        return RunRecord(self.uid, self.name, self.method, members, self.steps, self.seed, config)

    def pool(self) -> list[PromptRecord]:
        return [_prompt(i) for i in range(4 * self.prompts)]

    def step(self, step: int) -> StepRecord:
        rng = np.random.default_rng([self.seed, step])
        pool = self.pool()
        prompts = tuple(pool[i] for i in rng.permutation(len(pool))[: self.prompts])
        groups = tuple(self._group(rng, step, slot, prompt) for slot in range(self.members) for prompt in prompts)
        transfers = self._transfers(rng, groups)
        events = () if step % 7 else (EventRecord("warning", f"a grader was restarted in step {step}", self.names[0]),)
        return StepRecord(step, prompts, groups, transfers, self._metrics(rng, step, groups), events)

    def _group(self, rng: np.random.Generator, step: int, slot: int, prompt: PromptRecord) -> GroupRecord:
        topic = TOPICS.index(prompt.subject or TOPICS[0])
        # Each member is good at other topics, prompts differ in how hard they are, and all get better.
        hardness = 3.0 * (prompt.key % 1009 / 1009 - 0.5) + 0.6 * ((prompt.level or 1) - 2)
        logit = 2.5 * math.cos(1.9 * slot - 1.57 * topic) - hardness + 2.0 * step / (self.steps + 5) - 2
        right = rng.random(self.n) < 1 / (1 + math.exp(-logit))
        failed = rng.random(self.n) < self.error_share
        rewards = np.where(failed, 0.0, right.astype(float))
        spread = rewards.std()
        advantages = (rewards - rewards.mean()) / spread if spread > 0 else np.zeros(self.n)
        responses = tuple(
            self._response(rng, step, prompt, reward, advantage, -2 if bad else int(reward))
            for reward, advantage, bad in zip(rewards.tolist(), advantages.tolist(), failed.tolist(), strict=True)
        )
        return GroupRecord(self.names[slot], prompt.key, responses)

    def _response(
        self, rng: np.random.Generator, step: int, prompt: PromptRecord, reward: float, advantage: float, verdict: int
    ) -> ResponseRecord:
        length = int(rng.integers(max(2, self.tokens // 2), self.tokens * 3 // 2 + 1))
        said = prompt.answer if reward else str(int(prompt.answer) + int(rng.integers(1, 9)))
        text = f"Let us work it out: {prompt.text} First $x = {said}$, so the answer is \\boxed{{{said}}}."
        if rng.random() < 0.02:
            text += " " + HOSTILE[int(rng.integers(len(HOSTILE)))]
        return ResponseRecord(
            text=text,
            token_ids=rng.integers(0, 30_000, length).astype(np.int32),
            logprobs=-rng.exponential(0.4, length).astype(np.float32),
            reward=reward,
            advantage=advantage,
            verdict=verdict,
            finish="length" if rng.random() < 0.05 else "stop",
            weight_version=step - 1,
        )

    def _transfers(self, rng: np.random.Generator, groups: tuple[GroupRecord, ...]) -> tuple[TransferRecord, ...]:
        if self.method == "grpo":
            return ()
        transfers = []
        for group in groups:
            sources = [peer for peer in groups if peer.prompt == group.prompt and peer.mixed] if group.all_fail else []
            if not sources or rng.random() < 0.2:
                continue
            held_out = bool(rng.random() < self.held_out_share)
            ranked = sorted(sources, key=lambda peer: -peer.successes)[: self.sources]
            transfers += [self._transfer(rng, group, source, held_out) for source in ranked]
        return tuple(transfers)

    def _transfer(
        self, rng: np.random.Generator, group: GroupRecord, source: GroupRecord, held_out: bool
    ) -> TransferRecord:
        # Some groups suit the receiver badly as a whole.
        fit = 0.3 if rng.random() < 0.15 else 1.1
        moved = () if held_out else source.responses
        grafted = tuple(self._grafted(rng, fit, i, one) for i, one in enumerate(moved))
        value = source.successes / source.n
        return TransferRecord(
            group.member, source.member, group.prompt, value, bool(rng.random() < 0.2), held_out, grafted
        )

    def _grafted(self, rng: np.random.Generator, fit: float, index: int, source: ResponseRecord) -> GraftedRecord:
        length, total = len(source.token_ids), float(source.logprobs.sum())
        if rng.random() < 0.06:
            reason = ("too_long", "round_trip")[int(rng.random() < 0.5)]
            return GraftedRecord(index, None, 0.0, reason, 0, None, length, total)
        s = float(rng.beta(6, 1.5) * fit)
        refusal = None if s >= FLOOR else "floor"
        receiver_total = total + length * math.log(s)
        return GraftedRecord(
            index, s, min(s, 1.0) if refusal is None else 0.0, refusal, length + 1, receiver_total, length, total
        )

    def _metrics(
        self, rng: np.random.Generator, step: int, groups: tuple[GroupRecord, ...]
    ) -> tuple[MetricRecord, ...]:
        metrics = []
        for slot, name in enumerate(self.names):
            own = [response for group in groups if group.member == name for response in group.responses]
            tokens = float(sum(response.token_ids.size for response in own))
            loss = (
                math.nan
                if step == self.nan_loss_at and slot == 0
                else 1.2 * math.exp(-step / 15) + 0.05 * rng.standard_normal()
            )
            values: dict[str, tuple[float, float]] = {
                "loss": (4 * loss, 4.0),
                "grad_norm": (4 * float(rng.gamma(4, 0.1)), 4.0),
                "entropy": (-float(sum(float(response.logprobs.sum()) for response in own)), tokens),
                "clip_own": (float(rng.poisson(tokens * 4e-4)), tokens),
                "response_tokens": (tokens, float(len(own))),
                "truncated": (float(sum(response.finish == "length" for response in own)), float(len(own))),
                "engine_trainer_gap": (tokens * 1e-6 * float(rng.random()), tokens),
                "learning_rate": (1e-5 * min(1.0, step / 5), 1.0),
                "tokens_per_second_rollout": (tokens, 0.2 + float(rng.random())),
                "seconds_sample": (0.5 + float(rng.random()), 1.0),
                "seconds_update": (0.5 + float(rng.random()), 1.0),
                "seconds_sync": (0.01 + 0.01 * float(rng.random()), 1.0),
            }
            if step % 3:
                # Only recorded in some steps: missing must stay missing.
                values["clip_peer"] = (float(rng.poisson(tokens * 1e-4)), tokens / 4)
                values["peer_token_share"] = (tokens / 4, tokens * 5 / 4)
            metrics += [MetricRecord(name, metric, *parts) for metric, parts in values.items()]
        solved = {group.prompt for group in groups if group.successes}
        metrics.append(MetricRecord(None, "union_solved", float(len(solved)), float(self.prompts)))
        metrics.append(MetricRecord(None, "step_seconds", 2.0 + float(rng.random()), 1.0))
        return tuple(metrics)

    def evaluations(self, step: int) -> tuple[EvaluationRecord, ...]:
        rng = np.random.default_rng([self.seed, step, 1])
        records = []
        for benchmark in BENCHMARKS:
            problems = [_prompt(100_000 + i + 1000 * BENCHMARKS.index(benchmark)) for i in range(40)]
            for slot, name in enumerate(self.names):
                chance = rng.beta(1 + 3 * step / self.steps + 0.3 * slot, 2, len(problems))
                right = rng.binomial(4, chance)
                rows = tuple((problem.key, int(k), 4) for problem, k in zip(problems, right, strict=True))
                records.append(EvaluationRecord(name, benchmark, step, rows, 0.6, self.seed))
        return tuple(records)

    def evaluation_prompts(self) -> list[PromptRecord]:
        return [_prompt(100_000 + i + 1000 * place) for place in range(len(BENCHMARKS)) for i in range(40)]


def _prompt(number: int) -> PromptRecord:
    rng = np.random.default_rng(number)
    a, b = (int(value) for value in rng.integers(2, 99, 2))
    topic = TOPICS[number % len(TOPICS)]
    text = f"What is ${a} + {b}$? (problem {number}, {topic})"
    return PromptRecord(key_of("toy", text, a + b), text, str(a + b), "toy", topic, 1 + number // len(TOPICS) % 3)


def write_run(
    writer: Writer,
    scenario: Scenario,
    *,
    until: int | None = None,
    evaluate_every: int = 5,
    status: Literal["finished", "failed", "interrupted", "running"] = "finished",
) -> None:
    """Write a scenario's steps 1 .. until (all by default) and end its run with `status`; "running" leaves it open."""
    writer.start_run(scenario.run())
    writer.event(EventRecord("info", f"run of {scenario.members} members started"))
    if evaluate_every:
        writer.record_prompts(scenario.evaluation_prompts())
    for step in range(0, (until or scenario.steps) + 1):
        if step:
            writer.commit(scenario.step(step))
        if evaluate_every and step % evaluate_every == 0:
            for record in scenario.evaluations(step):
                writer.record_evaluation(record)
    if status != "running":
        writer.finish(status, "" if status == "finished" else f"made to be {status}")


def make_store(
    place: str | Path,
    *,
    members: int = 3,
    steps: int = 20,
    prompts: int = 16,
    n: int = 8,
    seed: int = 0,
    status: Literal["finished", "failed", "interrupted", "running"] = "finished",
    uid: str = "synthetic",
    name: str = "synthetic run",
    method: str = "graft",
    nan_loss_at: int | None = None,
    tokens: int = 25,
    total_steps: int | None = None,
    sources: int = 1,
) -> str:
    """Make (or add a run to) the store of a URL, or `place`/store.db, and return its URL.

    `steps` are written of `total_steps` planned. status "running" leaves the run as if its process still held it.
    `nan_loss_at` is a step whose first member has a loss that is not a number.
    """
    scenario = Scenario(
        members,
        total_steps or steps,
        prompts,
        n,
        seed,
        tokens,
        uid,
        name,
        method,
        nan_loss_at=nan_loss_at,
        sources=sources,
    )
    url = str(place) if "://" in str(place) else locate(str(Path(place) / "store.db")).url
    writer = open_writer(url)
    write_run(writer, scenario, until=steps, status=status)
    if status == "running":
        # Not closed: that would end the run.
        writer.abandon()
    else:
        writer.close()
    return url
