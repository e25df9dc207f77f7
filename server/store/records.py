"""What a run writes into the store: plain records, numpy only.

Member names are strings, prompt keys are 53-bit integers, steps count from 1. A record says nothing about tables or
files; `Writer.commit` turns one `StepRecord` into shards and rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

EventLevel = Literal["info", "warning", "error"]
# What a benchmark is for: to choose among checkpoints, or to report.
Role = Literal["validation", "test"]

# Verdict codes of responses nobody could grade: time-out, crash, grader error, unreadable reference answer.
UNGRADED_VERDICTS = frozenset({-2, -3, -4, -5})
# The finish reason of a response that reached the token limit.
TRUNCATED = "length"
# Refusal reason of a response whose compatibility lay under the floor; every other reason is a failed retokenization.
REFUSED_BY_FLOOR = "floor"


class StoreError(Exception):
    """A fault of the store that a user can act on: one line saying what is wrong, where, and what to do."""


class StepConflict(StoreError):
    """The step is already committed with other content; the stored rows are unchanged."""


class LeaseError(StoreError):
    """Another process writes this run, or took it over from this one."""


class UnreachableError(StoreError):
    """The database server does not answer at this moment; the same may be asked again."""


class SchemaError(StoreError):
    """The database is of another schema version than this program."""


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One problem. `key` is a stable 53-bit hash of data set, text and answer, so runs share prompts."""

    key: int
    text: str
    answer: str
    dataset: str
    subject: str | None = None
    level: int | None = None


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One model of the population. `tokenizer_sha` tells whether stored token ids may be reused as they are."""

    name: str
    model: str
    family: str
    tokenizer_sha: str
    parameters: int


@dataclass(frozen=True, slots=True, eq=False)
class ResponseRecord:
    """One sampled response.

    `token_ids` int32 [T] and `logprobs` float32 [T] are as sampled (engine's, at the sampling temperature, the end
    token included when finished). `verdict` is a verdict code of server.rewards; `finish` is "stop", "length" or
    "abort".
    """

    text: str
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    reward: float
    advantage: float
    verdict: int
    finish: str
    weight_version: int

    @property
    def ungraded(self) -> bool:
        """Nobody could grade it, or its grade is no number."""
        return self.verdict in UNGRADED_VERDICTS or not math.isfinite(self.reward)


@dataclass(frozen=True, slots=True, eq=False)
class GroupRecord:
    """All responses of one member to one prompt in one step.

    all-fail: no reward > 0 and no ungraded response; mixed: some but not all, none ungraded; all-solved: every one.
    """

    member: str
    prompt: int
    responses: tuple[ResponseRecord, ...]

    @property
    def n(self) -> int:
        return len(self.responses)

    @property
    def successes(self) -> int:
        return sum(response.reward > 0 for response in self.responses)

    @property
    def errors(self) -> int:
        """Responses nobody could grade; a group with one is neither all-fail nor mixed."""
        return sum(response.ungraded for response in self.responses)

    @property
    def all_fail(self) -> bool:
        return self.n > 0 and self.successes == 0 and self.errors == 0

    @property
    def mixed(self) -> bool:
        return 0 < self.successes < self.n and self.errors == 0

    @property
    def all_solved(self) -> bool:
        return 0 < self.n == self.successes


@dataclass(frozen=True, slots=True)
class GraftedRecord:
    """One response of a transferred group, as the receiver saw it.

    `index` is the place in the source's group; `s` the compatibility (None when it could not be scored); `weight` the
    weight in the loss; `refusal` None when admitted, else "floor", "too_long", "round_trip", "undecodable" or "empty".
    Log-probabilities are sums over the response in nats.
    """

    index: int
    s: float | None
    weight: float
    refusal: str | None
    receiver_tokens: int
    receiver_logprob: float | None
    source_tokens: int
    source_logprob: float | None


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """One group that moved from `source` to `receiver`; held out: chosen but withheld as a control, no responses."""

    receiver: str
    source: str
    prompt: int
    value: float
    tie: bool
    held_out: bool
    responses: tuple[GraftedRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """A ratio kept as its two parts and divided when read; `member` None is a metric of the whole run.

    Not-finite parts are stored as missing and counted, and enter no sum.
    """

    member: str | None
    name: str
    numerator: float
    denominator: float = 1.0


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One member on one benchmark after one step: `problems` holds (prompt key, correct, responses).

    `repeat` 0 is the evaluation in the course of training, 1 and more are those of the best checkpoint, each with other
    random numbers. `votes` holds, by prompt key, how many responses gave each wrong answer, most frequent first; a
    problem whose answers were not told apart is missing there.
    """

    member: str
    benchmark: str
    step: int
    problems: tuple[tuple[int, int, int], ...]
    temperature: float
    seed: int
    role: Role = "test"
    repeat: int = 0
    votes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something a reader of the run should know."""

    level: EventLevel
    message: str
    member: str | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """Everything one step produced; it is committed whole or not at all."""

    step: int
    prompts: tuple[PromptRecord, ...]
    groups: tuple[GroupRecord, ...]
    transfers: tuple[TransferRecord, ...] = ()
    metrics: tuple[MetricRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """A recorded run routed and gated again: `settings` are those asked for, `result` what was found; both JSON."""

    run: str
    first_step: int
    last_step: int
    settings: Mapping[str, Any]
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. The order of `members` is their slot order everywhere. `config` must be JSON-serialisable."""

    uid: str
    name: str
    method: str
    members: tuple[MemberRecord, ...]
    total_steps: int
    seed: int
    config: Mapping[str, Any] = field(default_factory=dict)
