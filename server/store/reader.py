"""Read a store, live or finished, without ever touching the run that writes it.

Shapes: N members in slot order; arrays [N], pairs [N, N] (row i receives, column j is the source), histories of B
buckets [B, N] and [B, N, N]. Windows are inclusive, clipped to the committed steps, and cost two rows whatever the
history: the writer keeps cumulative counts. `edges` has B + 1 ascending entries; bucket b holds steps
edges[b] + 1 .. edges[b + 1]. `run` is a run's uid, or "latest" for the run created last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from sqlalchemy import Connection, Engine

from server.store import (
    read_evaluations,
    read_graph,
    read_metrics,
    read_places,
    read_rows,
    read_runs,
    read_scores,
    read_steps,
    read_uptake,
    read_windows,
    replays,
    results,
)
from server.store.arms import PLACES, arm_names
from server.store.comparison import EQUAL_COST, EQUAL_STEPS, Arm, Comparison, Paired, Spread
from server.store.connections import Location, check_version, locate, readable_errors, schema_version
from server.store.counts import Floats, Ints
from server.store.read_runs import RunKey
from server.store.read_windows import Counts
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
from server.store.results import CHECKPOINTS, COSTS, RunResult
from server.store.schema import WHOLE_RUN
from server.store.scores import MeanInterval, Score, combined
from server.store.views import (
    BestCheckpoint,
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
    "CHECKPOINTS", "COSTS", "EQUAL_COST", "EQUAL_STEPS", "PLACES", "Arm", "BestCheckpoint", "Comparison",
    "EvaluationRecord", "EvaluationSummary", "EventInfo", "EventRecord", "Found", "GraftedRecord", "GroupCounts",
    "GroupOutcome", "GroupRecord", "MeanInterval", "MemberRecord", "NewestGroups", "NewestPlaces", "NewestTransfers",
    "Paired", "PeerGroup", "Place", "PlaceFilter", "PromptRecord", "PromptRow", "PromptVisits", "Reader", "ReplayInfo",
    "ReplayRecord", "ResponseRecord", "RunInfo", "RunResult", "SchemaError", "Score", "Spread", "StepMark",
    "StoreError", "Trajectory", "TransferRecord", "TransferRow", "TransferVerdict", "arm_names", "combined",
    "open_reader",
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


class Reader:
    """Read-only access; usable from several threads; every method sees one consistent state of the database."""

    def __init__(self, engine: Engine, location: Location) -> None:
        self._engine = engine
        self._location = location

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with readable_errors("reading", self._location), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _run(self, run: str) -> Iterator[tuple[Connection, RunKey]]:
        with self._connection() as connection:
            yield connection, read_runs.resolve(connection, run)

    # Runs

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

    # Counts

    def complementarity(self, run: str, first_step: int, last_step: int) -> tuple[Floats, Ints]:
        """(C [N, N], support [N, N]).

        Support counts the receiver's all-fail groups that the source attempted, C is the share of them the source
        solved at least once; NaN on the diagonal and where support is 0.
        """
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_windows.complementarity(connection, key, low, high)

    def member_counts(self, run: str, first_step: int, last_step: int) -> dict[str, Ints]:
        """[N] each.

        groups, all_fail, mixed, all_solved, errors (responses nobody could grade), rollouts, successes,
        response_tokens, truncated, received (all-fail groups some peer's response was admitted for), held_out (all-fail
        groups a peer was withheld from), rescuable (all-fail with a mixed peer), any_peer (all-fail with a peer that
        solved at least once). An own group that several sources give to counts once here, and once in each pair of
        pair_counts.
        """
        with self._run(run) as (connection, key):
            edges = read_windows.window(key, first_step, last_step)
            return {name: part[0] for name, part in read_windows.member_counts(connection, key, edges).items()}

    def member_history(self, run: str, edges: Sequence[int]) -> dict[str, Ints]:
        """The names of member_counts, [B, N] each."""
        with self._run(run) as (connection, key):
            return read_windows.member_counts(connection, key, read_windows.clip_edges(key, edges))

    def pair_counts(self, run: str, first_step: int, last_step: int) -> Counts:
        """[N, N] each, 0 on the diagonal.

        both_attempted_fail, solved; both_graded (prompts on which every response of both was graded), failed_beside
        (those the row's member failed wholly), failed_together (those both failed wholly); routed, grafted (routed with
        an admitted response), held_out, responses, admitted, refused_floor, refused_other, n_s (int64); sum_s over
        scored and sum_w over admitted responses (float64).
        """
        with self._run(run) as (connection, key):
            edges = read_windows.window(key, first_step, last_step)
            return {name: part[0] for name, part in read_windows.pair_counts(connection, key, edges).items()}

    def pair_history(self, run: str, edges: Sequence[int]) -> Counts:
        """The names of pair_counts, [B, N, N] each."""
        with self._run(run) as (connection, key):
            return read_windows.pair_counts(connection, key, read_windows.clip_edges(key, edges))

    def uptake(
        self, run: str, first_step: int, last_step: int, *, until: int | None = None, every: int = 1
    ) -> tuple[dict[str, Ints], dict[str, int]]:
        """What receivers did at their next visit of a prompt that a transfer of these steps was chosen for.

        (counts of each pair [N, N], counts of distinct places): grafted (carried out, whatever the gate admitted, for
        so the control was drawn) and held_out (withheld), each with _seen (the receiver met the prompt again, up to
        step `until`, by default the last) and _solved (at that next visit at least one rollout was right).
        With `every`, only of transfers in steps that are a multiple of it: each transfer costs a look-up.
        """
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_uptake.uptake(connection, key, low, high, key.last if until is None else until, every)

    # Metrics

    def metric_names(self, run: str) -> list[str]:
        """Names of member and run-level metrics, sorted."""
        with self._run(run) as (connection, key):
            return read_windows.metric_names(connection, key)

    def metric(self, run: str, name: str, first_step: int, last_step: int) -> tuple[Floats, Floats]:
        """(numerator [N], denominator [N]) summed over the window; 0 over 0 where nothing finite was recorded."""
        with self._run(run) as (connection, key):
            edges = read_windows.window(key, first_step, last_step)
            slots = range(len(key.members))
            numerator, denominator, _, _ = read_windows.metric_change(connection, key, name, slots, edges)
            return numerator[0], denominator[0]

    def metric_history(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """(numerator [B, N], denominator [B, N])."""
        with self._run(run) as (connection, key):
            edges = read_windows.clip_edges(key, edges)
            return read_windows.metric_change(connection, key, name, range(len(key.members)), edges)[:2]

    def metric_recorded(self, run: str, name: str, edges: Sequence[int]) -> tuple[Ints, Ints]:
        """([B, N] finite values recorded, [B, N] values that were not finite and enter no sum)."""
        with self._run(run) as (connection, key):
            edges = read_windows.clip_edges(key, edges)
            return read_windows.metric_change(connection, key, name, range(len(key.members)), edges)[2:]

    def metric_range(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """(smallest [B, N], largest [B, N]) of the single steps of each bucket; reads every step of the window."""
        with self._run(run) as (connection, key):
            return read_metrics.metric_range(connection, key, name, read_windows.clip_edges(key, edges))

    def metric_series(self, run: str, name: str, first_step: int, last_step: int) -> tuple[Ints, Floats, Floats]:
        """Every point, for downloads: (steps [K], numerator [K, N], denominator [K, N]); NaN: missing or not finite."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_windows.metric_series(connection, key, name, low, high)

    def metric_values(
        self, run: str, first_step: int, last_step: int
    ) -> list[tuple[int, str | None, str, float, float]]:
        """Every finite value of some steps: (step, member or None, metric, numerator, denominator), by step."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_windows.metric_values(connection, key, low, high)

    def run_metric(self, run: str, name: str, first_step: int, last_step: int) -> tuple[float, float]:
        """(numerator, denominator) of a metric of the whole run."""
        with self._run(run) as (connection, key):
            edges = read_windows.window(key, first_step, last_step)
            numerator, denominator, _, _ = read_windows.metric_change(connection, key, name, [WHOLE_RUN], edges)
            return float(numerator[0, 0]), float(denominator[0, 0])

    def run_metric_history(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """(numerator [B], denominator [B]) of a metric of the whole run."""
        with self._run(run) as (connection, key):
            edges = read_windows.clip_edges(key, edges)
            numerator, denominator, _, _ = read_windows.metric_change(connection, key, name, [WHOLE_RUN], edges)
            return numerator[:, 0], denominator[:, 0]

    # Prompts, transfers, trajectories

    def patterns(
        self, run: str, first_step: int, last_step: int, limit: int = 20
    ) -> tuple[list[tuple[tuple[bool, ...], int]], int]:
        """([(which members solved the prompt [N], occurrences)], most frequent first; total occurrences).

        An occurrence is one prompt in one step; the total includes patterns cut by `limit`.
        """
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_rows.patterns(connection, key, low, high, limit)

    def patterns_from(self, run: str, first_step: int, last_step: int, rows: int = 20_000) -> int:
        """The first step from which on `patterns` adds up at most so many rows (or one step), whatever the history."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_graph.patterns_from(connection, key, low, high, rows)

    def newest_places(self, run: str, first_step: int, last_step: int, limit: int = 5_000) -> NewestPlaces:
        """Who attempted, failed and solved the newest prompts of these steps: the edges of the success graph."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_graph.newest_places(connection, key, low, high, limit)

    def newest_transfers(self, run: str, first_step: int, last_step: int, limit: int = 5_000) -> NewestTransfers:
        """What the gate did with each of the newest transfers of these steps: what intervals by group are made of."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_graph.newest_transfers(connection, key, low, high, limit)

    def newest_groups(self, run: str, first_step: int, last_step: int, limit: int = 5_000) -> NewestGroups:
        """How the newest groups of these steps were judged: what intervals by prompt are made of."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_graph.newest_groups(connection, key, low, high, limit)

    def prompt_visits(self, run: str, prompt: int, first_step: int, last_step: int) -> PromptVisits:
        """Every member's newest visits (200 at most) of one prompt in these steps; none where it was never asked."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_graph.prompt_visits(connection, key, prompt, low, high)

    def prompts_for(
        self, run: str, receiver: str, source: str, first_step: int, last_step: int, *, offset: int = 0, limit: int = 20
    ) -> tuple[list[PromptRow], int]:
        """(a page of the prompts the receiver failed wholly and the source solved, newest first; how many in all)."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            pair = key.slot(receiver), key.slot(source)
            return read_rows.prompts_for(connection, key, *pair, low, high, offset, limit)

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
        """(a page of transfers, newest first; how many match).

        verdict "admitted": at least one response admitted; "refused": routed, none admitted; "held out": withheld.
        """
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_rows.transfers(
                connection,
                key,
                low,
                high,
                receiver=None if receiver is None else key.slot(receiver),
                source=None if source is None else key.slot(source),
                verdict=verdict,
                offset=offset,
                limit=limit,
            )

    def places(self, run: str, first_step: int, last_step: int, *, wanted: PlaceFilter) -> Found:
        """The newest places of these steps that pass the filters; bounded, and says how many were looked at."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_places.find(connection, key, self._location.folder(key.trajectories), low, high, wanted)

    def subjects(self, run: str, first_step: int, last_step: int) -> list[str]:
        """The subjects of the newest prompts of these steps, sorted."""
        with self._run(run) as (connection, key):
            return read_places.subjects(connection, key, *read_windows.window(key, first_step, last_step))

    def trajectory(self, run: str, step: int, prompt: int, receiver: str) -> Trajectory:
        """A receiver's group with its responses, and every group routed to it. StoreError when it is not stored."""
        with self._run(run) as (connection, key):
            root = self._location.folder(key.trajectories)
            return read_rows.trajectory(connection, key, root, step, prompt, key.slot(receiver))

    def prompts(self, keys: Sequence[int]) -> dict[int, PromptRecord]:
        """The known ones of these prompts, by key."""
        with self._connection() as connection:
            return read_rows.prompts(connection, keys)

    # Whole steps

    def group_counts(self, run: str, step: int) -> dict[str, dict[int, GroupCounts]]:
        """{member: {prompt: counts}} of a step, in the order it was recorded; a member without groups has none."""
        with self._run(run) as (connection, key):
            return read_steps.group_counts(connection, key, step)

    def step_transfers(self, run: str, step: int) -> list[TransferRecord]:
        """Every transfer of a step with its responses, by receiver's slot, prompt and source's slot."""
        with self._run(run) as (connection, key):
            return read_steps.transfers(connection, key, step)

    def groups(self, run: str, step: int, member: str, prompts: Collection[int] | None = None) -> list[GroupRecord]:
        """What a member said in a step, or only on `prompts`, in recorded order. StoreError for a missing shard."""
        with self._run(run) as (connection, key):
            root = self._location.folder(key.trajectories)
            return read_steps.groups(connection, key, root, step, key.slot(member), prompts)

    def visits(self, run: str, member: str) -> dict[int, dict[int, int]]:
        """{step: {prompt: responses}} of everything a member was asked, in recorded order."""
        with self._run(run) as (connection, key):
            return read_steps.visits(connection, key, key.slot(member))

    def check_shards(self, run: str, member: str, steps: Collection[int]) -> None:
        """StoreError unless the trajectory shards of a member's steps lie in their folder, whole."""
        with self._run(run) as (connection, key):
            root = self._location.folder(key.trajectories)
            read_steps.check_shards(connection, key, root, key.slot(member), steps)

    def replays(self, run: str) -> list[ReplayInfo]:
        """What the run would have exchanged under other settings, newest replay first."""
        with self._run(run) as (connection, key):
            return replays.replays(connection, key)

    # Evaluations

    def evaluations(self, run: str) -> list[EvaluationSummary]:
        """Those in the course of training, ordered by benchmark, step, member slot."""
        with self._run(run) as (connection, key):
            return read_evaluations.evaluations(connection, key)

    def best(self, run: str) -> list[BestCheckpoint]:
        """The best checkpoint of every member that has one, by the run's own rule, in slot order."""
        with self._run(run) as (connection, key):
            return read_evaluations.best(connection, key)

    def repeats(self, run: str) -> list[EvaluationRecord]:
        """The evaluations of the best checkpoints, by member, benchmark and repeat (1 and more)."""
        with self._run(run) as (connection, key):
            steps = {best.member: best.step for best in read_evaluations.best(connection, key)}
            return read_evaluations.records(connection, key, steps, repeats=True)

    def evaluation_records(self, run: str, step: int) -> list[EvaluationRecord]:
        """The evaluations after one step in the course of training, by member and benchmark, as they were written."""
        with self._run(run) as (connection, key):
            return read_evaluations.records(connection, key, dict.fromkeys(key.members, step), repeats=False)

    def evaluation_problems(self, run: str, benchmark: str, step: int, member: str) -> tuple[Ints, Ints, Ints]:
        """(prompt keys [P], correct [P], responses [P]), keys ascending, seeds summed."""
        with self._run(run) as (connection, key):
            return read_evaluations.evaluation_problems(connection, key, benchmark, step, member)

    def scores(self, run: str, steps: Sequence[tuple[str, int]], *, repeats: bool = False) -> list[Score]:
        """pass@1, pass@k and maj@k of members at one step each, (member, step), by member and benchmark; `repeats`: of
        the repeated evaluations of the best checkpoint."""
        with self._run(run) as (connection, key):
            return read_scores.scores(connection, key, dict(steps), repeats=repeats)

    def joint_scores(
        self, run: str, members: Sequence[str], benchmarks: Sequence[str], steps: Sequence[int]
    ) -> dict[int, MeanInterval]:
        """{step: mean over members and benchmarks with its 95 % interval over problems} of evaluations in the course of
        training, where all of the members were measured on all of the benchmarks."""
        with self._run(run) as (connection, key):
            return read_scores.joint_scores(connection, key, members, benchmarks, steps)

    def result(self, run: str) -> RunResult:
        """What runs are compared by: accuracy and cost at every evaluated step."""
        return results.read_result(self, self.run(run), self._location.url)
