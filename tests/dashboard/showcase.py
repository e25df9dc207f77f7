"""A made-up population that looks like one on competition mathematics: for pictures, and for tests of the pages.

`python -m tests.dashboard.showcase FOLDER [--members N] [--steps N] [--live SECONDS]` writes a store there; with --live
it goes on committing, a step every so many seconds, so that the pages can be watched while they refresh.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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

FLOOR = 0.8
MODELS = (
    "Qwen3-1.7B", "SmolLM3-3B", "Llama-3.2-3B", "Gemma-3-1B", "OLMo-2-1B", "OctoThinker-3B-Hybrid-Base",
    "Granite-4.0-Micro", "Falcon3-1B", "Phi-4-mini", "MiniCPM4-0.5B", "EXAONE-4.0-1.2B", "InternLM2.5-1.8B",
)  # fmt: skip
ABILITY = (0.5, 0.3, 0.1, -0.5, -0.6, 0.0, -0.2, -0.4, 0.4, -0.8, -0.1, -0.3)


@dataclass(frozen=True)
class Problem:
    """A problem with the two ways the made-up members argue about it."""

    subject: str
    text: str
    answer: str
    right: str
    wrong: str


def _vieta(a: int, b: int) -> Problem:
    return Problem(
        "Algebra",
        f"Let $f(x) = x^2 - {a}x + {b}$. Find the sum of the squares of the roots of $f$.",
        str(a * a - 2 * b),
        f"Write $S = r_1^2 + r_2^2$. Since $(r_1+r_2)^2 = S + 2r_1r_2$, Vieta gives\n\n"
        f"$$S = ({a})^2 - 2\\cdot {b} = {a * a - 2 * b}.$$\n\nHence $\\boxed{{{a * a - 2 * b}}}$.",
        f"The roots satisfy $r_1+r_2={a}$ and $r_1r_2={b}$ by Vieta. Then $r_1^2+r_2^2=(r_1+r_2)^2-r_1r_2"
        f"={a}^2-{b}$, so the answer is \\boxed{{{a * a - b}}}.",
    )


def _power(a: int, b: int) -> Problem:
    remainder = pow(a, b, 7)
    return Problem(
        "Number Theory",
        f"Find the remainder when ${a}^{{{b}}}$ is divided by $7$.",
        str(remainder),
        f"By Fermat $x^6 \\equiv 1 \\pmod 7$, and ${b} \\equiv {b % 6} \\pmod 6$. So\n\n"
        f"\\[{a}^{{{b}}} \\equiv {a % 7}^{{{b % 6}}} \\equiv {remainder} \\pmod 7.\\]\n\n"
        f"The remainder is \\boxed{{{remainder}}}.",
        f"The powers of ${a}$ modulo $7$ repeat with period $7$, so only ${b} \\bmod 7 = {b % 7}$ matters "
        f"and the remainder is \\boxed{{{pow(a, b % 7, 7)}}}.",
    )


def _choose(a: int, b: int) -> Problem:
    n, k = a + 3, 2 + b % 3
    total = math.comb(n, k)
    return Problem(
        "Counting",
        f"In how many ways can ${k}$ of ${n}$ distinct books be chosen for a shelf if their order does not matter?",
        str(total),
        f"Order does not matter, so the count is $\\binom{{{n}}}{{{k}}} = \\frac{{{n}!}}{{{k}!\\,{n - k}!}} "
        f"= {total}$.\n\n$\\boxed{{{total}}}$",
        f"There are ${n}$ choices for the first book, ${n - 1}$ for the second and so on, which gives "
        f"\\boxed{{{math.perm(n, k)}}}.",
    )


def _ticket(a: int, b: int) -> Problem:
    return Problem(
        "Prealgebra",
        f"A ticket costs ${a} for an adult and ${b} for a child. What do 3 adults and 4 children pay, in dollars?",
        str(3 * a + 4 * b),
        f"Adults pay $3 \\times {a} = {3 * a}$ and children $4 \\times {b} = {4 * b}$; together "
        f"\\boxed{{{3 * a + 4 * b}}}.",
        f"It costs ${a} per adult and ${b} per child, so $7 \\times {a + b} = {7 * (a + b)}$ <b>in total</b>, "
        f"see ![working](https://example.invalid/x.png): \\boxed{{{7 * (a + b)}}}",
    )


TEMPLATES: tuple[Callable[[int, int], Problem], ...] = (_vieta, _power, _choose, _ticket)


def problem(number: int) -> Problem:
    """The problem of this number; a pure function."""
    rng = np.random.default_rng([7, number])
    a, b = (int(value) for value in rng.integers(4, 30, 2))
    return TEMPLATES[number % len(TEMPLATES)](a, b)


def key_of(*parts: object) -> int:
    """A 53-bit key from a hash, as prompts have."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") & ((1 << 53) - 1)


def prompt(number: int, mark: str = "") -> PromptRecord:
    """Its record; levels 1 to 5. `mark` is put after the text."""
    p = problem(number)
    key = key_of("showcase", number, mark)
    return PromptRecord(key, p.text + mark, p.answer, "showcase", p.subject, 1 + number // 4 % 5)


@dataclass(frozen=True)
class Showcase:
    """A run made step by step; every step is a pure function of (seed, step). Members have their own strengths, which
    persist from visit to visit and grow slowly."""

    members: tuple[str, ...] = MODELS[:3]
    steps: int = 20
    prompts: int = 12
    n: int = 8
    seed: int = 0
    tokens: int = 25
    uid: str = "showcase"
    name: str = "showcase"
    method: str = "graft"
    pool: int = 400
    nan_loss_at: int | None = None
    mark: str = ""
    # How many peers may give to one place, and the share of places that is withheld.
    sources: int = 1
    held_out: float = 0.15

    def run(self) -> RunRecord:
        """The run's record; the configuration says what the gate does."""
        members = tuple(
            MemberRecord(name, f"org/{name}", name.split("-")[0], key, 10**6)
            for name, key in ((name, f"{key_of(name):x}") for name in self.members)
        )
        exchange = {"floor": FLOOR, "balance": "circulation", "normaliser": "own"}
        config = {"seed": self.seed, "method": {"name": self.method}, "exchange": exchange}
        return RunRecord(self.uid, self.name, self.method, members, self.steps, self.seed, config)

    def step(self, step: int) -> StepRecord:
        """Everything of one step."""
        rng = np.random.default_rng([self.seed, step])
        numbers = [int(number) for number in rng.permutation(self.pool)[: self.prompts]]
        groups = tuple(self._group(rng, step, slot, number) for slot in range(len(self.members)) for number in numbers)
        transfers = tuple(self._transfers(rng, groups)) if self.method != "grpo" else ()
        records = tuple(prompt(number, self.mark) for number in numbers)
        return StepRecord(step, records, groups, transfers, tuple(self._metrics(rng, step, groups)))

    def _group(self, rng: np.random.Generator, step: int, slot: int, number: int) -> GroupRecord:
        own = np.random.default_rng([number, slot, 3]).normal()
        shared = np.random.default_rng([number, 5]).normal()
        record = prompt(number, self.mark)
        gain = 1.6 * (1 - math.exp(-3 * step / self.steps))
        logit = ABILITY[slot % len(ABILITY)] + 1.7 * own + 1.5 * shared - 0.35 * ((record.level or 1) - 3) + gain - 1.0
        rewards = (rng.random(self.n) < 1 / (1 + math.exp(-logit))).astype(float)
        spread = rewards.std(ddof=1)
        advantages = (rewards - rewards.mean()) / (spread + 1e-6) if spread > 0 else np.zeros(self.n)
        responses = tuple(
            self._argue(rng, step, problem(number), reward, advantage)
            for reward, advantage in zip(rewards.tolist(), advantages.tolist(), strict=True)
        )
        return GroupRecord(self.members[slot], record.key, responses)

    def _argue(
        self, rng: np.random.Generator, step: int, p: Problem, reward: float, advantage: float
    ) -> ResponseRecord:
        length = int(rng.integers(max(2, self.tokens // 2), self.tokens * 3 // 2 + 1))
        return ResponseRecord(
            text=(p.right if reward else p.wrong) + self.mark,
            token_ids=rng.integers(0, 30_000, length).astype(np.int32),
            logprobs=-rng.exponential(0.4, length).astype(np.float32),
            reward=reward,
            advantage=advantage,
            verdict=int(reward),
            finish="length" if not reward and rng.random() < 0.05 else "stop",
            weight_version=step - 1,
        )

    def _transfers(self, rng: np.random.Generator, groups: tuple[GroupRecord, ...]) -> Iterator[TransferRecord]:
        for group in groups:
            sources = [peer for peer in groups if peer.prompt == group.prompt and peer.mixed] if group.all_fail else []
            if not sources or rng.random() < 0.2:
                continue
            held_out = bool(rng.random() < self.held_out)
            for source in sorted(sources, key=lambda peer: -peer.successes)[: self.sources]:
                moved = () if held_out else source.responses
                grafted = tuple(self._grafted(rng, i, one) for i, one in enumerate(moved))
                value = source.successes / source.n
                yield TransferRecord(
                    group.member, source.member, group.prompt, value, bool(rng.random() < 0.2), held_out, grafted
                )

    def _grafted(self, rng: np.random.Generator, index: int, source: ResponseRecord) -> GraftedRecord:
        length, total = len(source.token_ids), float(source.logprobs.sum())
        if rng.random() < 0.03:
            return GraftedRecord(index, None, 0.0, "too_long", 0, None, length, total)
        s = float(np.exp(rng.normal(-0.08, 0.16)))
        weight, refusal = (min(s, 1.0), None) if s > FLOOR else (0.0, "floor")
        return GraftedRecord(index, s, weight, refusal, length + 1, total + length * math.log(s), length, total)

    def _metrics(self, rng: np.random.Generator, step: int, groups: tuple[GroupRecord, ...]) -> Iterator[MetricRecord]:
        for slot, name in enumerate(self.members):
            own = [response for group in groups if group.member == name for response in group.responses]
            tokens = float(sum(response.token_ids.size for response in own))
            broken = self.nan_loss_at is not None and step >= self.nan_loss_at and slot == 0
            yield MetricRecord(name, "loss", math.nan if broken else math.exp(-step / 15), 1.0)
            yield MetricRecord(
                name, "entropy", math.nan if broken else tokens * (0.5 - 0.1 * step / self.steps), tokens
            )
            yield MetricRecord(name, "clip_own", float(rng.poisson(tokens * 5e-4)), tokens)
            yield MetricRecord(name, "clip_peer", float(rng.poisson(tokens * 8e-4)), tokens / 4)
            yield MetricRecord(name, "tokens_per_second_rollout", tokens, tokens / (2200 + 400 * slot))
        solvers: dict[int, set[str]] = {}
        for group in groups:
            solvers.setdefault(group.prompt, set()).update([group.member] if group.successes else [])
        yield MetricRecord(None, "union_solved", sum(map(bool, solvers.values())), len(solvers))
        for name in self.members:
            yield MetricRecord(name, "solved", sum(name in own for own in solvers.values()), len(solvers))
        yield MetricRecord(None, "step_seconds", 30.0 + float(rng.random()), 1.0)

    def evaluations(self, step: int) -> Iterator[EvaluationRecord]:
        """Every member on 300 held-out problems."""
        chances = np.array([np.random.default_rng([number, 5]).beta(1.4, 1.9) for number in range(300)])
        for slot, name in enumerate(self.members):
            rng = np.random.default_rng([self.seed, step, slot])
            gain = 0.14 * (1 - math.exp(-3 * step / self.steps)) + 0.06 * ABILITY[slot % len(ABILITY)]
            right = rng.binomial(4, np.clip(chances + gain, 0.02, 0.98))
            rows = tuple((key_of("held-out", i), int(k), 4) for i, k in enumerate(right))
            yield EvaluationRecord(name, "held-out", step, rows, 0.6, self.seed)


def write(writer: Writer, scenario: Showcase, until: int, evaluate_every: int = 10, pause_s: float = 0.0) -> None:
    """Start the run and commit its steps up to `until`; the run stays open."""
    writer.start_run(scenario.run())
    writer.event(EventRecord("info", f"run of {len(scenario.members)} members started"))
    if evaluate_every:
        writer.record_prompts(
            [PromptRecord(key_of("held-out", i), f"held-out {i}", "0", "held-out") for i in range(300)]
        )
    for step in range(until + 1):
        if step:
            writer.commit(scenario.step(step))
        if evaluate_every and step % evaluate_every == 0:
            for record in scenario.evaluations(step):
                writer.record_evaluation(record)
        if step and step % 40 == 0:
            writer.event(EventRecord("info", f"checkpoint of step {step} written", None, step))
        time.sleep(pause_s)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--total", type=int, default=120)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--live", type=float, default=0.0, metavar="SECONDS")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    name = f"graft-{given.members}pop-seed0"
    scenario = Showcase(MODELS[: given.members], given.total, given.prompts, tokens=180, uid=name, name=name)
    url = f"sqlite:///{given.folder / 'store.db'}"
    writer = open_writer(url)
    print(url, flush=True)
    write(writer, scenario, given.steps)
    if given.live:
        for step in range(given.steps + 1, given.total + 1):
            time.sleep(given.live)
            writer.commit(scenario.step(step))
        writer.finish("finished")
        writer.close()
    else:
        writer.abandon()


if __name__ == "__main__":
    main()
