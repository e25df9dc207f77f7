"""Read a store, live or finished, without ever touching the run that writes it.

Shapes: N members in slot order; arrays [N], pairs [N, N] (row i receives, column j is the source), histories of B
buckets [B, N] and [B, N, N]. Windows are inclusive, clipped to the committed steps, and cost two rows whatever the
history: the writer keeps cumulative counts. `edges` has B + 1 ascending entries; bucket b holds steps
edges[b] + 1 .. edges[b + 1]. `run` is a run's uid, or "latest" for the run created last.
"""

from __future__ import annotations

from server.store import read_runs
from server.store.arms import PLACES, arm_names
from server.store.ask_counts import CountQuestions, MetricQuestions
from server.store.ask_evaluations import EvaluationQuestions
from server.store.ask_rows import PlaceQuestions, StepQuestions
from server.store.ask_tables import TableQuestions
from server.store.best import best_checkpoints
from server.store.comparison import EQUAL_COST, EQUAL_STEPS, Arm, Comparison, Paired, Spread
from server.store.connections import check_version, locate, readable_errors, schema_version
from server.store.read_metrics import Buckets
from server.store.records import (
    EvaluationRecord,
    EventRecord,
    GraftedRecord,
    GroupRecord,
    MemberRecord,
    PromptRecord,
    ReplayRecord,
    ResponseRecord,
    SchemaError,
    StoreError,
    TransferRecord,
)
from server.store.results import CHECKPOINTS, COSTS, RunResult, read_result
from server.store.scores import MeanInterval, Score, combined
from server.store.views import (
    BestCheckpoint,
    EvaluationMark,
    EvaluationSummary,
    EventInfo,
    Found,
    GroupCounts,
    GroupOutcome,
    NewestGroups,
    NewestPlaces,
    NewestTransfers,
    PeerGroup,
    Place,
    PlaceFilter,
    PromptRow,
    PromptVisits,
    ReplayInfo,
    RunInfo,
    StepMark,
    Trajectory,
    TransferRow,
    TransferVerdict,
)

__all__ = [
    "CHECKPOINTS", "COSTS", "EQUAL_COST", "EQUAL_STEPS", "PLACES", "Arm", "BestCheckpoint", "Buckets", "Comparison",
    "EvaluationMark", "EvaluationRecord", "EvaluationSummary", "EventInfo", "EventRecord", "Found", "GraftedRecord",
    "GroupCounts", "GroupOutcome", "GroupRecord", "MeanInterval", "MemberRecord", "NewestGroups", "NewestPlaces",
    "NewestTransfers", "Paired", "PeerGroup", "Place", "PlaceFilter", "PromptRecord", "PromptRow", "PromptVisits",
    "Reader", "ReplayInfo", "ReplayRecord", "ResponseRecord", "RunInfo", "RunResult", "SchemaError", "Score", "Spread",
    "StepMark", "StoreError", "Trajectory", "TransferRecord", "TransferRow", "TransferVerdict", "arm_names",
    "best_checkpoints", "combined", "open_reader", "read_result",
]  # fmt: skip


def open_reader(url: str) -> Reader:
    """Open a store read-only; `url` is as in `locate`.

    StoreError when it is absent, SchemaError when it is of another schema version, naming the remedy.
    """
    location = locate(url)
    with readable_errors("opening", location):
        engine = location.reader_engine()
        with engine.connect() as connection:
            check_version(schema_version(connection), location)
    return Reader(engine, location)


class Reader(CountQuestions, MetricQuestions, PlaceQuestions, StepQuestions, EvaluationQuestions, TableQuestions):
    """Read-only access; usable from several threads; every method sees one consistent state of the database."""

    def runs(self) -> list[RunInfo]:
        """All runs, newest first."""
        with self._connection() as connection:
            return read_runs.run_infos(connection)

    def run(self, run: str) -> RunInfo:
        """One run. StoreError when there is none."""
        with self._connection() as connection:
            return read_runs.run_info(connection, run)

    def revision(self, run: str) -> int:
        """A number that changes with every commit, evaluation, event and status; cheap to poll. Heartbeats leave it."""
        with self._connection() as connection:
            return read_runs.revision(connection, run)

    def newest_step(self, run: str, last_step: int) -> StepMark | None:
        """The newest committed step up to `last_step`: as long as it stays the same, so does everything up to it."""
        with self._run(run) as (connection, key):
            return read_runs.newest_step(connection, key, last_step)

    def events(self, run: str, limit: int = 50) -> list[EventInfo]:
        """The newest events, newest first."""
        with self._run(run) as (connection, key):
            return read_runs.events(connection, key, limit)

    def size(self) -> dict[str, int]:
        """Of the whole store: database_bytes, trajectory_bytes, runs, steps, groups, responses, shards, prompts."""
        with self._connection() as connection:
            return read_runs.size(connection, self._location)

    def result(self, run: str) -> RunResult:
        """What runs are compared by: accuracy and cost at every evaluated step."""
        return read_result(self, self.run(run), self._location.url)
