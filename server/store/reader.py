"""Read a store, live or finished, without ever touching the run that writes it.

Shapes: N members in slot order; arrays [N], pairs [N, N] (row i receives, column j is the source), histories of B
buckets [B, N] and [B, N, N]. Windows are inclusive, clipped to the committed steps, and cost two rows whatever the
history: the writer keeps cumulative counts. `edges` has B + 1 entries; bucket b holds steps edges[b] + 1 .. edges[b + 1].
`run` is a run's uid, or "latest" for the run created last.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from server.store.records import (
    EventRecord,
    GraftedRecord,
    GroupRecord,
    MemberRecord,
    PromptRecord,
    ResponseRecord,
    StoreError,
    TransferRecord,
)
from server.store.views import (
    EvaluationSummary,
    EventInfo,
    PromptRow,
    RunInfo,
    Trajectory,
    TransferRow,
    TransferVerdict,
)

__all__ = [
    "EvaluationSummary",
    "EventInfo",
    "EventRecord",
    "GraftedRecord",
    "GroupRecord",
    "MemberRecord",
    "PromptRecord",
    "PromptRow",
    "Reader",
    "ResponseRecord",
    "RunInfo",
    "StoreError",
    "Trajectory",
    "TransferRecord",
    "TransferRow",
    "open_reader",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Counts = dict[str, NDArray[np.int64] | NDArray[np.float64]]


def open_reader(url: str) -> Reader:
    """Open a store read-only. `url` is "sqlite:///path/store.db" or a path. StoreError when absent or of another schema."""
    raise NotImplementedError


class Reader:
    """Read-only access; usable from several threads; every method sees one consistent state of the database."""

    def close(self) -> None: ...
    def __enter__(self) -> Reader: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    # runs
    def runs(self) -> list[RunInfo]:
        """All runs, newest first."""

    def run(self, run: str) -> RunInfo:
        """One run by uid, or "latest". StoreError when there is none."""

    def revision(self, run: str) -> int:
        """A number that changes with every commit, evaluation, event and status; cheap to poll. Heartbeats leave it."""

    def events(self, run: str, limit: int = 50) -> list[EventInfo]:
        """The newest events, newest first."""

    def size(self) -> dict[str, int]:
        """database_bytes, trajectory_bytes, runs, steps, groups, responses, shards, prompts."""

    # counts
    def complementarity(self, run: str, first_step: int, last_step: int) -> tuple[Floats, Ints]:
        """(C [N, N], support [N, N]): of the receiver's all-fail groups that the source attempted (support), the share it
        solved at least once. NaN on the diagonal and where support is 0."""

    def member_counts(self, run: str, first_step: int, last_step: int) -> dict[str, Ints]:
        """[N] each: groups, all_fail, mixed, all_solved, errors (responses nobody could grade), rollouts, successes,
        response_tokens, truncated, received (routed groups with an admitted response), held_out, rescuable (all-fail with
        a mixed peer), any_peer (all-fail with a peer that solved at least once)."""

    def member_history(self, run: str, edges: Sequence[int]) -> dict[str, Ints]:
        """The names of member_counts, [B, N] each."""

    def pair_counts(self, run: str, first_step: int, last_step: int) -> Counts:
        """[N, N] each: both_attempted_fail, solved, routed, held_out, responses, admitted, refused_floor, refused_other,
        n_s (int64), sum_s, sum_w (float64; sum_w over admitted responses). 0 on the diagonal."""

    def pair_history(self, run: str, edges: Sequence[int]) -> Counts:
        """The names of pair_counts, [B, N, N] each."""

    # metrics
    def metric_names(self, run: str) -> list[str]:
        """Names of member and run-level metrics, sorted."""

    def metric(self, run: str, name: str, first_step: int, last_step: int) -> tuple[Floats, Floats]:
        """(numerator [N], denominator [N]) summed over the window; 0 over 0 where nothing was recorded."""

    def metric_history(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """(numerator [B, N], denominator [B, N])."""

    def metric_recorded(self, run: str, name: str, edges: Sequence[int]) -> tuple[Ints, Ints]:
        """([B, N] finite values recorded, [B, N] not-finite values, which enter no sum)."""

    def metric_series(self, run: str, name: str, first_step: int, last_step: int) -> tuple[Ints, Floats, Floats]:
        """Every point, for downloads: (steps [K], numerator [K, N], denominator [K, N]), NaN where missing or not finite."""

    def run_metric(self, run: str, name: str, first_step: int, last_step: int) -> tuple[float, float]:
        """(numerator, denominator) of a metric of the whole run."""

    def run_metric_history(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """(numerator [B], denominator [B])."""

    # prompts, transfers, trajectories
    def patterns(
        self, run: str, first_step: int, last_step: int, limit: int = 20
    ) -> tuple[list[tuple[tuple[bool, ...], int]], int]:
        """([(which members solved the prompt [N], occurrences)], most frequent first; total occurrences, also of patterns
        cut by `limit`)."""

    def prompts_for(
        self, run: str, receiver: str, source: str, first_step: int, last_step: int, *, offset: int = 0, limit: int = 20
    ) -> tuple[list[PromptRow], int]:
        """(a page of the prompts the receiver failed wholly and the source solved, newest first; how many there are)."""

    def transfers(
        self,
        run: str,
        first_step: int,
        last_step: int,
        *,
        receiver: str | None = None,
        source: str | None = None,
        verdict: TransferVerdict | None = None,
        offset: int = 0,
        limit: int = 50,
    ) -> tuple[list[TransferRow], int]:
        """(a page of transfers, newest first; how many match). verdict "admitted": at least one response admitted;
        "refused": routed, none admitted; "held out": withheld."""

    def trajectory(self, run: str, step: int, prompt: int, receiver: str) -> Trajectory:
        """A receiver's group with its responses, and the routed peer's. StoreError when the group is not stored."""

    def prompts(self, keys: Sequence[int]) -> dict[int, PromptRecord]:
        """The known ones of these prompts, by key."""

    # evaluations
    def evaluations(self, run: str) -> list[EvaluationSummary]:
        """Ordered by benchmark, step, member slot."""

    def evaluation_problems(self, run: str, benchmark: str, step: int, member: str) -> tuple[Ints, Ints, Ints]:
        """(prompt keys [P], correct [P], responses [P]), keys ascending, seeds summed."""
