"""What the reader hands out: plain, frozen rows. Nothing here depends on a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from server.store.counts import Bools, Floats, Ints
from server.store.records import GroupRecord, MemberRecord, PromptRecord, ReplayRecord, Role, TransferRecord

RunStatus = Literal["running", "finished", "failed", "interrupted"]
Outcome = Literal["grafted", "refused", "held out", ""]
TransferVerdict = Literal["admitted", "refused", "held out"]
GroupOutcome = Literal["all fail", "mixed", "all solved", "ungraded"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run. `created` and `heartbeat` are seconds since the epoch; steps are None before the first commit."""

    uid: str
    name: str
    method: str
    status: RunStatus
    message: str
    created: float
    heartbeat: float | None
    total_steps: int
    first_step: int | None
    last_step: int | None
    config: Mapping[str, Any]
    members: tuple[MemberRecord, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class StepMark:
    """Which commit of a step a store holds: when it was committed (seconds since the epoch), under which lease.

    A run that goes on from an earlier step commits every later one anew, so that the mark of a step tells whether
    anything up to it has changed.
    """

    step: int
    committed: float
    lease_epoch: int


@dataclass(frozen=True, slots=True)
class EvaluationMark:
    """Which evaluations of a run a store holds: how many, of how many responses, the sums of their means and of the
    ends of their intervals, and the lease under which the run is written.

    As long as it stays the same, so do they all: one that is recorded anew has other sums, and where some are lost with
    the steps of a resumed run the lease is another.
    """

    evaluations: int
    responses: int
    mean: float
    low: float
    high: float
    lease_epoch: int


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """How one group was judged: `successes` of its `n` responses are right, `errors` could not be graded."""

    n: int
    successes: int
    errors: int


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt the receiver failed wholly and the source solved.

    `transfer`: "grafted" (routed, at least one response admitted), "refused" (routed, none admitted), "held out" or ""
    (not routed between these two).
    """

    step: int
    prompt: int
    text: str
    answer: str
    subject: str | None
    level: int | None
    receiver_successes: int
    receiver_n: int
    source_successes: int
    source_n: int
    transfer: Outcome


@dataclass(frozen=True, slots=True)
class TransferRow:
    """One transfer with its gate's counts. `mean_s` is over scored responses, `mean_weight` over admitted ones."""

    step: int
    prompt: int
    text: str
    receiver: str
    source: str
    value: float
    tie: bool
    held_out: bool
    responses: int
    admitted: int
    refused_floor: int
    refused_other: int
    mean_s: float | None
    mean_weight: float | None
    verdict: TransferVerdict


@dataclass(frozen=True, slots=True)
class Place:
    """A member's group on a prompt in a step, or the transfer of a source's group to it."""

    step: int
    prompt: int
    receiver: str
    source: str | None


@dataclass(frozen=True, slots=True)
class PlaceFilter:
    """Which places to find; None for any.

    `transfers`: places of transfers, else every group. `outcome` is a TransferVerdict of the one, a GroupOutcome of the
    other. `refusal`: at least one response was refused for this reason (transfers). `verdict`: at least one response
    was graded with this code (groups). `text`: contained in the prompt or a response of the place, whatever its
    capitals.
    """

    transfers: bool = True
    member: str | None = None
    source: str | None = None
    outcome: TransferVerdict | GroupOutcome | None = None
    subject: str | None = None
    refusal: str | None = None
    verdict: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """Places, newest first, among the newest `looked_at` of `total` candidates (None: more, nobody counted them).

    Candidates pass the filters on member, source and outcome; for a search in text, every other filter too.
    """

    places: tuple[Place, ...]
    looked_at: int
    total: int | None


@dataclass(frozen=True, slots=True, eq=False)
class NewestPlaces:
    """The newest places (one prompt in one step) of a window, newest first, R of them, all from `first_step` on.

    step, prompt [R]; attempted, all_fail (every rollout graded and wrong), solved (at least one right) [R, N] by slot.
    """

    first_step: int
    step: Ints
    prompt: Ints
    attempted: Bools
    all_fail: Bools
    solved: Bools


@dataclass(frozen=True, slots=True, eq=False)
class NewestTransfers:
    """The newest transfers of a window, newest first, R of them, all from `first_step` on; receiver and source are
    slots, sum_s is over the n_s scored responses, sum_w over the admitted ones. Withheld ones have no response."""

    first_step: int
    step: Ints
    prompt: Ints
    receiver: Ints
    source: Ints
    responses: Ints
    admitted: Ints
    n_s: Ints
    sum_s: Floats
    sum_w: Floats


@dataclass(frozen=True, slots=True, eq=False)
class NewestGroups:
    """The newest groups of a window, newest first, R of them, all from `first_step` on: member (slot), `successes` of
    `n` responses right, `errors` not graded."""

    first_step: int
    step: Ints
    prompt: Ints
    member: Ints
    n: Ints
    successes: Ints
    errors: Ints


@dataclass(frozen=True, slots=True, eq=False)
class PromptVisits:
    """Every visit of one prompt, V of them, oldest first: member (slot), `successes` of `n` responses right, `errors`
    not graded."""

    step: Ints
    member: Ints
    successes: Ints
    n: Ints
    errors: Ints


@dataclass(frozen=True, slots=True, eq=False)
class PeerGroup:
    """A group routed to a receiver, None where the source's group is not stored; and what the gate made of it."""

    transfer: TransferRecord
    group: GroupRecord | None


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One receiver's group on one prompt, and the peers' groups routed to it (held out included), in slot order."""

    prompt: PromptRecord
    own: GroupRecord
    peers: tuple[PeerGroup, ...]

    def peer(self, source: str | None = None) -> PeerGroup | None:
        """What `source` gave; without a name, or where that member gave nothing, what the first peer gave, if any."""
        named = (peer for peer in self.peers if peer.transfer.source == source)
        return next(named, self.peers[0] if self.peers else None)


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """Mean over problems of the share of right answers, with a 95 % interval; several seeds are pooled by problem.

    Of an evaluation in the course of training; `role` says what its benchmark is for.
    """

    member: str
    benchmark: str
    step: int
    mean: float
    low: float
    high: float
    problems: int
    responses: int
    temperature: float
    seeds: int
    role: Role = "test"


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """A member's best checkpoint: the `rule` chose `step` on `benchmarks`, all of the role `selected_on`.

    `score` is the unweighted mean of pass@1 over them, in the course of training.
    """

    member: str
    step: int
    score: float
    rule: str
    selected_on: Role
    benchmarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplayInfo:
    """One stored replay of a run, `created` in seconds since the epoch."""

    id: int
    created: float
    record: ReplayRecord


@dataclass(frozen=True, slots=True)
class EventInfo:
    """One event, `created` in seconds since the epoch."""

    id: int
    created: float
    level: str
    message: str
    member: str | None
    step: int | None
