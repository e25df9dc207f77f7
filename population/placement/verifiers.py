"""Grading in actors of a cluster: the reward service's surface over one or several of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from population.errors import LostError, PlacementError
from population.placement.ray import Cluster, Room
from population.placement.remote import Remote
from server.rewards import Item, RewardService, RewardServiceError, Verdict

CLOSE_S = 10.0


class Verifier:
    """What runs in the actor: a reward service, whose verdicts come with what went wrong meanwhile."""

    def __init__(self, build: Callable[[], RewardService], rewards: Sequence[str]) -> None:
        self._service = build()
        for name in rewards:
            self._service.load_reward(name)

    def load_reward(self, name: str) -> str:
        return self._service.load_reward(name)

    def unparsable(self, answers: Sequence[str]) -> list[int]:
        return self._service.unparsable(answers)

    def grade(self, items: Sequence[Item], timeout_s: float | None) -> tuple[list[Verdict], list[str]]:
        return self._service.grade(items, timeout_s=timeout_s), self._service.incidents()

    def worker_pids(self) -> list[int]:
        return self._service.worker_pids()

    def close(self) -> None:
        self._service.close()


@dataclass
class _Share:
    """Part of a batch with one verifier, and where its verdicts go."""

    items: Sequence[Item]
    timeout_s: float | None
    future: Future[list[Verdict]]


class Verifiers:
    """A reward service in actors; implements `population.grading.Rewards`. Safe from any thread.

    A batch is dealt out to all of them. A verifier that is lost is started again, at most `restarts` times over all,
    and what it owed is graded again: a verdict depends on the item alone.
    """

    def __init__(
        self, cluster: Cluster, rooms: Sequence[Room], build: Callable[[], RewardService], restarts: int
    ) -> None:
        self._cluster, self._rooms, self._build = cluster, tuple(rooms), build
        self._lock = threading.Lock()
        # All below is guarded by the lock.
        self._restarts_left = restarts
        self._closed = False
        self._rewards: list[str] = []
        self._incidents: list[str] = []
        self._actors = [self._start(number) for number in range(len(self._rooms))]

    def load_reward(self, name: str) -> str:
        """As `RewardService.load_reward`, on every verifier."""
        versions = self._answers(self.actors(), f"reward function {name}", "load_reward", name)
        with self._lock:
            if name not in self._rewards:
                self._rewards.append(name)
        return str(versions[0])

    def unparsable(self, answers: Sequence[str]) -> list[int]:
        """As `RewardService.unparsable`."""
        found: list[int] = self._answers(self.actors()[:1], "reference answers", "unparsable", answers)[0]
        return found

    def _answers(self, actors: Sequence[Remote], what: str, method: str, argument: object) -> list[Any]:
        """What each answers before a run begins. RewardServiceError when one is lost or too late; its own error when it
        has one.
        """
        limit = self._cluster.settings.start_s
        calls = [actor.call(method, argument) for actor in actors]
        _, late = wait_for(calls, timeout=limit)
        for number, call in enumerate(calls, 1):
            if call in late:
                raise RewardServiceError(
                    f"verifier {number}, {what}: no answer within cluster.start_s = {limit:g} s; raise it, or see with "
                    "`ray status` whether the cluster has room for the verifiers"
                )
            if isinstance(error := call.exception(), LostError):
                raise RewardServiceError(f"{what}: {error}; mend what ended it and start again") from error
        return [call.result() for call in calls]

    def submit(self, items: Sequence[Item], *, timeout_s: float | None = None) -> Future[list[Verdict]]:
        """As `RewardService.submit`."""
        number = len(self._rooms)
        shares = [_Share(items[place::number], timeout_s, Future()) for place in range(number)]
        whole: Future[list[Verdict]] = Future()
        left = [number]

        def arrived(share: Future[list[Verdict]]) -> None:
            error = share.exception()
            with self._lock:
                left[0] -= 1
                last = left[0] == 0
            if error is not None and not whole.done():
                whole.set_exception(error)
            elif last and not whole.done():
                whole.set_result(_dealt_back([part.future.result() for part in shares], len(items)))

        for share in shares:
            share.future.add_done_callback(arrived)
        for place, share in enumerate(shares):
            self._hand_out(place, share)
        return whole

    def incidents(self) -> list[str]:
        """What went wrong, and was mended, since this was asked last."""
        with self._lock:
            told, self._incidents = self._incidents, []
        return told

    def actors(self) -> list[Remote]:
        """The placements now in use."""
        with self._lock:
            return list(self._actors)

    def close(self) -> None:
        """End the actors; verdicts still owed fail."""
        with self._lock:
            self._closed = True
            actors = list(self._actors)
        for actor in actors:
            actor.close(CLOSE_S)

    def __enter__(self) -> Verifiers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self, place: int) -> Remote:
        name = f"verifier {place + 1}"
        return Remote(self._cluster, [self._rooms[place]], Verifier, self._build, tuple(self._rewards), name=name)

    def _hand_out(self, place: int, share: _Share) -> None:
        if not share.items:
            share.future.set_result([])
            return
        actor = self.actors()[place]
        try:
            asked = actor.call("grade", share.items, share.timeout_s)
        except PlacementError as error:
            share.future.set_exception(RewardServiceError(f"rewards: {error}"))
            return
        asked.add_done_callback(partial(self._answered, place, share, actor))

    def _answered(self, place: int, share: _Share, actor: Remote, asked: Future[Any]) -> None:
        error = asked.exception()
        if error is None:
            verdicts, incidents = asked.result()
            with self._lock:
                self._incidents += incidents
            share.future.set_result(verdicts)
        elif isinstance(error, LostError) and self._replaced(place, actor, str(error)):
            self._hand_out(place, share)
        elif isinstance(error, LostError):
            share.future.set_exception(
                RewardServiceError(f"rewards: {error}; no restart is left (cluster.max_restarts)")
            )
        else:
            share.future.set_exception(error)

    def _replaced(self, place: int, lost: Remote, reason: str) -> bool:
        """Whether another actor has the place of a lost one, started now if this is the first to say so."""
        with self._lock:
            if self._closed or (self._actors[place] is lost and self._restarts_left == 0):
                return False
            if self._actors[place] is lost:
                self._restarts_left -= 1
                self._incidents.append(f"{reason}; started again, its answers were graded again")
                self._actors[place] = self._start(place)
            return True


def _dealt_back(parts: Sequence[Sequence[Verdict]], size: int) -> list[Verdict]:
    """The inverse of dealing: item i is the (i // n)-th of part i % n."""
    return [parts[place % len(parts)][place // len(parts)] for place in range(size)]
