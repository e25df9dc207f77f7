"""Questions of the reader about counts and metrics; shapes are those of `server.store.reader`."""

from __future__ import annotations

from collections.abc import Sequence

from server.store import read_metrics, read_uptake, read_windows
from server.store.counts import Floats, Ints
from server.store.questions import Questions
from server.store.read_metrics import Buckets
from server.store.read_windows import Counts
from server.store.schema import WHOLE_RUN


class CountQuestions(Questions):
    """What was counted, between any two steps."""

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
            edges = read_windows.window(key, first_step, last_step)
            pairs, places = read_uptake.uptake(connection, key, edges, key.last if until is None else until, every)
            counts = {name: int(part[0]) for name, part in places.items()}
            return {name: part[0] for name, part in pairs.items()}, counts

    def uptake_history(
        self, run: str, edges: Sequence[int], *, every: int = 1
    ) -> tuple[dict[str, Ints], dict[str, Ints]]:
        """What `uptake` says of each bucket: (counts of each pair [B, N, N], counts of distinct places [B]).

        A next visit may lie in any later bucket.
        """
        with self._run(run) as (connection, key):
            return read_uptake.uptake(connection, key, read_windows.clip_edges(key, edges), key.last, every)


class MetricQuestions(Questions):
    """What was measured, between any two steps."""

    def metric_names(self, run: str) -> list[str]:
        """Names of member and run-level metrics, sorted."""
        with self._run(run) as (connection, key):
            return read_metrics.metric_names(connection, key)

    def metric(self, run: str, name: str, first_step: int, last_step: int) -> tuple[Floats, Floats]:
        """(numerator [N], denominator [N]) summed over the window; 0 over 0 where nothing finite was recorded."""
        with self._run(run) as (connection, key):
            edges = read_windows.window(key, first_step, last_step)
            found = read_metrics.metric_change(connection, key, [name], range(len(key.members)), edges)[name]
            return found.numerator[0], found.denominator[0]

    def metric_history(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """(numerator [B, N], denominator [B, N])."""
        found = self.metric_buckets(run, (name,), edges)[name]
        return found.numerator, found.denominator

    def metric_buckets(self, run: str, names: Sequence[str], edges: Sequence[int]) -> dict[str, Buckets]:
        """Each of these metrics, [B, N] each: what metric_history says, and how many values were finite and not.

        Several metrics cost little more than one.
        """
        with self._run(run) as (connection, key):
            edges = read_windows.clip_edges(key, edges)
            return read_metrics.metric_change(connection, key, names, range(len(key.members)), edges)

    def metric_range(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """(smallest [B, N], largest [B, N]) of the single steps of each bucket; reads every step of the window."""
        with self._run(run) as (connection, key):
            return read_metrics.metric_range(connection, key, name, read_windows.clip_edges(key, edges))

    def metric_series(self, run: str, name: str, first_step: int, last_step: int) -> tuple[Ints, Floats, Floats]:
        """Every point, for downloads: (steps [K], numerator [K, N], denominator [K, N]); NaN: missing or not finite."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_metrics.metric_series(connection, key, name, low, high)

    def metric_values(
        self, run: str, first_step: int, last_step: int
    ) -> list[tuple[int, str | None, str, float, float]]:
        """Every finite value of some steps: (step, member or None, metric, numerator, denominator), by step."""
        with self._run(run) as (connection, key):
            low, high = read_windows.window(key, first_step, last_step)
            return read_metrics.metric_values(connection, key, low, high)

    def run_metric(self, run: str, name: str, first_step: int, last_step: int) -> tuple[float, float]:
        """(numerator, denominator) of a metric of the whole run."""
        with self._run(run) as (connection, key):
            edges = read_windows.window(key, first_step, last_step)
            found = read_metrics.metric_change(connection, key, [name], [WHOLE_RUN], edges)[name]
            return float(found.numerator[0, 0]), float(found.denominator[0, 0])

    def run_metric_history(self, run: str, name: str, edges: Sequence[int]) -> tuple[Floats, Floats]:
        """(numerator [B], denominator [B]) of a metric of the whole run."""
        with self._run(run) as (connection, key):
            edges = read_windows.clip_edges(key, edges)
            found = read_metrics.metric_change(connection, key, [name], [WHOLE_RUN], edges)[name]
            return found.numerator[:, 0], found.denominator[:, 0]
