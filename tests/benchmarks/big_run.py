"""What happens in a run of a large population: every step is a pure function of (seed, step), drawn as arrays.

The same draw is told twice: as counts, which is all that the rows of an old step are made of, and as the record that a
writer commits with everything that was said. So a store may be filled in bulk and written on, and `verify` agrees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.rewards.verdicts import VerdictCode
from server.store.counts import Bools, Floats, GroupFacts, Ints
from server.store.records import (
    TRUNCATED,
    EvaluationRecord,
    EventRecord,
    GraftedRecord,
    GroupRecord,
    MemberRecord,
    MetricRecord,
    PromptRecord,
    ResponseRecord,
    Role,
    RunRecord,
    StepRecord,
    TransferRecord,
)
from tests.benchmarks.big_metrics import MINIBATCHES, TOKEN_LOGPROB, TOKENS, measure
from tests.dashboard.showcase import ABILITY, FLOOR, MODELS, Problem, key_of, problem, prompt

SUBJECTS = 4
# Of the places where a peer could help, so many are chosen by the balanced exchange, and so many of these withheld.
ROUTED, HELD_OUT = 0.4, 0.1
REFUSALS = ("too_long", "round_trip")


class Benchmark(NamedTuple):
    """A benchmark of the run: its problems and what it is for."""

    name: str
    problems: int
    role: Role


@dataclass(frozen=True)
class Size:
    """How much there is of a run: `batch` prompts of `prompts` a step, each visited once before any comes again; `kept`
    steps have trajectories, the newest."""

    steps: int = 20_000
    prompts: int = 1_000_000
    members: int = 8
    batch: int = 64
    n: int = 8
    kept: int = 40
    evaluate_every: int = 100
    benchmarks: tuple[Benchmark, ...] = (
        Benchmark("math-500", 500, "test"),
        Benchmark("aime-24", 30, "test"),
        Benchmark("validation", 200, "validation"),
    )
    repeats: int = 3


@dataclass(frozen=True, eq=False)
class Drawn:
    """One step: numbers [P] of its prompts; of every response [N, P, n] whether it is right, could not be graded or was
    cut, and its tokens; transfers; and the numerator and denominator [S] of every series, NaN where none was recorded.
    """

    step: int
    numbers: Ints
    right: Bools
    ungraded: Bools
    cut: Bools
    tokens: Ints
    transfers: tuple[TransferRecord, ...]
    numerator: Floats
    denominator: Floats


@dataclass(frozen=True)
class BigRun:
    """One run of a size. Runs of other seeds draw other prompts; `method` "grpo" moves nothing."""

    size: Size
    seed: int = 0
    method: str = "graft"

    @property
    def uid(self) -> str:
        return f"big-{self.method}-{self.seed}"

    @property
    def names(self) -> tuple[str, ...]:
        return MODELS[: self.size.members]

    def run(self) -> RunRecord:
        """The run's record, planned for a tenth more steps than there are."""
        members = tuple(
            MemberRecord(name, f"org/{name}", name.split("-")[0], f"{key_of(name):x}", 10**9 + 10**8 * slot)
            for slot, name in enumerate(self.names)
        )
        total = self.size.steps + max(1, self.size.steps // 10)
        return RunRecord(self.uid, self.uid, self.method, members, total, self.seed, self._config())

    def _config(self) -> dict[str, object]:
        size = self.size
        return {
            "name": self.uid,
            "seed": self.seed,
            "steps": size.steps,
            "method": {"name": self.method},
            "members": [{"name": name, "model": f"org/{name}", "tokenizer": f"org/{name}"} for name in self.names],
            "data": {"prompts": size.prompts, "prompts_per_step": size.batch},
            "rollouts": {"n": size.n, "temperature": 1.0, "top_p": 1.0, "max_tokens": 4096},
            "exchange": {"floor": FLOOR, "balance": "circulation", "normaliser": "own", "holdout": HELD_OUT},
            "update": {"learning_rate": 1e-6, "minibatches": MINIBATCHES, "clip": [0.2, 0.28], "optimizer": "adamw"},
            "evaluation": {
                "every": size.evaluate_every,
                "benchmarks": [{"name": one.name, "role": one.role} for one in size.benchmarks],
                "best": {"rule": "mean", "split": "auto", "repeats": size.repeats},
            },
        }

    @cached_property
    def _hardness(self) -> Floats:
        """[prompts]: how hard each prompt is for everybody, in logits."""
        found: Floats = np.random.default_rng([11]).normal(0.0, 1.6, self.size.prompts)
        return found

    @cached_property
    def _strengths(self) -> Floats:
        """[N, subjects]: what each member is good at, in logits."""
        own = np.random.default_rng([13]).normal(0.0, 1.1, (self.size.members, SUBJECTS))
        found: Floats = own + np.resize(ABILITY, self.size.members)[:, None]
        return found

    def numbers(self, step: int) -> Ints:
        """The prompts [P] of a step: the data set in one order after the other, whole batches only."""
        batches = self.size.prompts // self.size.batch
        epoch, place = divmod(step - 1, batches)
        start = place * self.size.batch
        return _order(self.seed, epoch, self.size.prompts)[start : start + self.size.batch]

    def draw(self, step: int) -> Drawn:
        """One step."""
        rng, size = np.random.default_rng([self.seed, step]), self.size
        numbers = self.numbers(step)
        shape = size.members, len(numbers), size.n
        gain = 1.5 * (1 - math.exp(-3 * step / size.steps))
        # What a member can do on a prompt varies from visit to visit, and hardly within one.
        logit = (
            gain - 0.7 - self._hardness[numbers] + self._strengths[:, numbers % SUBJECTS] + rng.normal(0, 1, shape[:2])
        )
        ungraded = rng.random(shape) < 0.001
        right = (rng.random(shape) < 1 / (1 + np.exp(-logit))[..., None]) & ~ungraded
        cut = ~right & (rng.random(shape) < 0.05)
        tokens = rng.integers(TOKENS // 2, TOKENS * 3 // 2 + 1, shape)
        transfers = tuple(self._transfers(rng, numbers, right, ungraded, tokens)) if self.method != "grpo" else ()
        progress = step / size.steps
        measured = measure(rng, step, progress, right, cut, tokens, self._routed(transfers))
        return Drawn(step, numbers, right, ungraded, cut, tokens, transfers, *measured.flat())

    def facts(self, drawn: Drawn) -> list[GroupFacts]:
        """What the index keeps of every group, member by member."""
        parts = (drawn.right, drawn.ungraded, drawn.tokens, drawn.cut)
        counts = (part.sum(axis=2).ravel().tolist() for part in parts)
        return [GroupFacts(self.size.n, *found) for found in zip(*counts, strict=True)]

    def step(self, drawn: Drawn, *, said: bool = True) -> StepRecord:
        """The record of a step; `said`: with its prompts, responses and metrics, else with places and transfers."""
        keys = [key(number) for number in drawn.numbers.tolist()]
        places = [(slot, at) for slot in range(self.size.members) for at in range(len(keys))]
        if not said:
            groups = tuple(GroupRecord(self.names[slot], keys[at], ()) for slot, at in places)
            return StepRecord(drawn.step, (), groups, drawn.transfers)
        texts = [problem(number) for number in drawn.numbers.tolist()]
        spoken = tuple(
            GroupRecord(self.names[slot], keys[at], tuple(self._responses(drawn, slot, at, texts[at])))
            for slot, at in places
        )
        metrics = [
            MetricRecord(member, name, top, bottom)
            for (name, member), top, bottom in zip(
                self.series, drawn.numerator.tolist(), drawn.denominator.tolist(), strict=True
            )
            if not math.isnan(bottom)
        ]
        prompts = tuple(prompt(number) for number in drawn.numbers.tolist())
        return StepRecord(drawn.step, prompts, spoken, drawn.transfers, tuple(metrics), tuple(self.events(drawn.step)))

    def _responses(self, drawn: Drawn, slot: int, at: int, texts: Problem) -> Iterator[ResponseRecord]:
        """What a member said to one prompt, every response with the mean log-probability that its transfers have."""
        rng = np.random.default_rng([self.seed, drawn.step, slot, at])
        place = slot, at
        rewards, lengths = drawn.right[place].astype(float), drawn.tokens[place]
        spread = float(rewards.std(ddof=1))
        advantages = (rewards - rewards.mean()) / spread if spread else np.zeros(len(rewards))
        ids = rng.integers(0, 30_000, lengths.sum()).astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        noise = rng.exponential(1.0, lengths.sum())
        logprobs = noise * np.repeat(TOKEN_LOGPROB * lengths / np.add.reduceat(noise, starts), lengths)
        said = zip(
            np.split(ids, starts[1:]), np.split(logprobs.astype(np.float32), starts[1:]), rewards.tolist(),
            advantages.tolist(), drawn.ungraded[place].tolist(), drawn.cut[place].tolist(), strict=True,
        )  # fmt: skip
        for own_ids, own_logprobs, reward, advantage, ungraded, cut in said:
            yield ResponseRecord(
                text=texts.right if reward else texts.wrong,
                token_ids=own_ids,
                logprobs=own_logprobs,
                reward=reward,
                advantage=advantage,
                verdict=int(VerdictCode.TIMEOUT if ungraded else VerdictCode.RIGHT if reward else VerdictCode.WRONG),
                finish=TRUNCATED if cut else "stop",
                weight_version=drawn.step - 1,
            )

    def _transfers(
        self, rng: np.random.Generator, numbers: Ints, right: Bools, ungraded: Bools, tokens: Ints
    ) -> Iterator[TransferRecord]:
        """To a part of the places that were failed wholly and that a peer solved in part."""
        successes, graded = right.sum(axis=2), ~ungraded.any(axis=2)
        fails = (successes == 0) & graded
        mixed = (successes > 0) & (successes < self.size.n) & graded
        receivers, places = np.nonzero(fails & mixed.any(axis=0) & (rng.random(fails.shape) < ROUTED))
        # The source is a mixed peer, the more likely the more it solved.
        score = np.where(mixed, successes + 4 * rng.random(mixed.shape), -1.0)
        sources = score[:, places].argmax(axis=0)
        shape = len(places), self.size.n
        held_out, tie = (rng.random(len(places)) < share for share in (HELD_OUT, 0.2))
        fit = np.where(rng.random(len(places)) < 0.15, 0.3, 1.1)[:, None]
        s = rng.beta(6, 1.5, shape) * fit
        unfit, which = rng.random(shape) < 0.04, rng.integers(0, len(REFUSALS), shape)
        length = tokens[sources, places]
        for row, (receiver, place, source) in enumerate(
            zip(receivers.tolist(), places.tolist(), sources.tolist(), strict=True)
        ):
            moved = zip(s[row].tolist(), unfit[row].tolist(), which[row].tolist(), length[row].tolist(), strict=True)
            yield TransferRecord(
                self.names[receiver],
                self.names[source],
                key(int(numbers[place])),
                float(successes[source, place]) / self.size.n,
                bool(tie[row]),
                bool(held_out[row]),
                () if held_out[row] else tuple(_grafted(index, *one) for index, one in enumerate(moved)),
            )

    def _routed(self, transfers: Sequence[TransferRecord]) -> Floats | None:
        """[N, N] groups that were carried out; None where the method moves none."""
        if self.method == "grpo":
            return None
        slot = {name: place for place, name in enumerate(self.names)}
        found = np.zeros((self.size.members,) * 2)
        for one in transfers:
            found[slot[one.receiver], slot[one.source]] += not one.held_out
        return found

    @cached_property
    def series(self) -> list[tuple[str, str | None]]:
        """(metric, member or None for the run) of every series [S]."""
        none = np.zeros((self.size.members, self.size.batch, self.size.n), bool)
        some = np.ones(none.shape, np.int64)
        return measure(np.random.default_rng(0), 1, 0.0, none, none, some, self._routed(())).series(self.names)

    def events(self, step: int) -> Iterator[EventRecord]:
        """What was remarked in a step."""
        if step % 50 == 0:
            yield EventRecord("info", f"checkpoint of step {step} written", None, step)
        if step % 97 == 0:
            member = self.names[step // 97 % self.size.members]
            yield EventRecord("warning", f"all-fail groups of {member} rose from 12.1 % to 17.4 %", member, step)
        if step % 4_999 == 0:
            yield EventRecord("error", "an engine did not answer for 30 s and was started again", self.names[0], step)

    def evaluation_prompts(self) -> Iterator[PromptRecord]:
        """The problems of all benchmarks."""
        for one in self.size.benchmarks:
            for number in range(one.problems):
                p = problem(number)
                yield PromptRecord(key_of(one.name, number), p.text, p.answer, one.name, p.subject, 1 + number % 5)

    def evaluations(self, step: int, repeat: int = 0) -> Iterator[EvaluationRecord]:
        """Every member on every benchmark after a step."""
        for place, one in enumerate(self.size.benchmarks):
            chances = np.random.default_rng([17, place]).beta(1.4, 1.9, one.problems)
            for slot, name in enumerate(self.names):
                rng = np.random.default_rng([self.seed, step, place, slot, repeat])
                gain = 0.16 * (1 - math.exp(-3 * step / self.size.steps)) + 0.06 * ABILITY[slot % len(ABILITY)]
                right = rng.binomial(self.size.n, np.clip(chances + gain, 0.02, 0.98)).tolist()
                first = rng.random(one.problems).tolist()
                rows = tuple((key_of(one.name, number), k, self.size.n) for number, k in enumerate(right))
                votes = {
                    prompt_key: _votes(self.size.n - k, share)
                    for (prompt_key, k, _), share in zip(rows, first, strict=True)
                }
                yield EvaluationRecord(name, one.name, step, rows, 0.6, self.seed, one.role, repeat, votes)


def _grafted(index: int, s: float, unfit: bool, which: int, length: int) -> GraftedRecord:
    total = TOKEN_LOGPROB * length
    if unfit:
        return GraftedRecord(index, None, 0.0, REFUSALS[which], 0, None, length, total)
    admitted = s >= FLOOR
    weight, refusal = (min(s, 1.0), None) if admitted else (0.0, "floor")
    return GraftedRecord(index, s, weight, refusal, length + 1, total + length * math.log(s), length, total)


def _votes(wrong: int, share: float) -> tuple[int, ...]:
    """Two wrong answers share what is wrong."""
    most = round(wrong * (1 + share) / 2)
    return tuple(count for count in (most, wrong - most) if count)


@lru_cache(maxsize=2_000_000)
def key(number: int) -> int:
    """The key of `showcase.prompt(number)`."""
    return key_of("showcase", number, "")


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, prompts: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch, 2]).permutation(prompts)
