"""Questions of the reader about single prompts, transfers, groups and what was said in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from server.store import read_graph, read_places, read_rows, read_steps, read_windows, replays
from server.store.questions import Questions
from server.store.records import GroupRecord, PromptRecord, TransferRecord
from server.store.views import (
    Found,
    GroupCounts,
    NewestGroups,
    NewestPlaces,
    NewestTransfers,
    PlaceFilter,
    PromptRow,
    PromptVisits,
    ReplayInfo,
    Trajectory,
    TransferRow,
    TransferVerdict,
)


class PlaceQuestions(Questions):
    """Prompts, transfers and trajectories, the newest first and never more than a page can show."""

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


class StepQuestions(Questions):
    """Whole steps, for replays and stored peers."""

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
