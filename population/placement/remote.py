"""A member's part in actors of a Ray cluster: one, or the ranks of one trainer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import Any

from population.errors import LostError, PlacementError
from population.placement.host import Birth, Failure
from population.placement.ray import LOOK_S, PULSE, Cluster, Room

# Ranks refuse a call together and at once. One that fails alone leaves the others waiting for it in a collective.
RANK_GRACE_S = 30.0

Ask = Callable[[Any, int], Any]
Task = tuple["Future[Any]", Ask]


class Remote:
    """An object in an actor, or with several rooms one object in each, which are the ranks of a group.

    Ranks get the same calls and rank 0 answers; what the others return stays where it is. A rank that is lost, silent
    or fails where another does not ends them all, since a group of ranks cannot be joined again. A thread of this
    process drives the actors, and asks for a heartbeat while they are at work.
    """

    restartable = True

    def __init__(
        self,
        cluster: Cluster,
        rooms: Sequence[Room],
        cls: Callable[..., Any],
        *args: Any,
        name: str = "",
        threads: int = 1,
        **kwargs: Any,
    ) -> None:
        """Start building `cls(*args, **kwargs)`, of several ranks with `rank`, `world` and `rendezvous` besides."""
        self._cluster, self._rooms = cluster, tuple(rooms)
        self._name = name or getattr(cls, "__name__", "object")
        self._actors: list[Any] = []
        self._births: list[Birth] = []
        self._lost = self._rendezvous = ""
        self._fault: Exception | None = None
        self._pulse = _Pulse(cluster)
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._thread.start()

        def build(actor: Any, rank: int) -> Any:
            group = {}
            if len(self._rooms) > 1:
                group = {"rank": rank, "world": len(self._rooms), "rendezvous": self._rendezvous}
            return actor.build.remote(threads, cls, args, {**kwargs, **group})

        self._built = self._submit(build)
        self._built.add_done_callback(self._remember_fault)

    @property
    def ready(self) -> Future[Any]:
        """Resolves, to None, when the object is built on every rank."""
        return self._built

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks, on their nodes; none before they have started."""
        return [birth.pid for birth in self._births]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs of all ranks by node and number; none before they have started."""
        return tuple(f"gpu {gpu} of {birth.address} ({birth.node[:8]})" for birth in self._births for gpu in birth.gpus)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `object.method(*args, **kwargs)` on every rank, after the calls made before.

        Arrays arrive, and come back, read-only. A result of tensors by name stays on its node, and is handed over to
        another actor's call as it is.
        """
        args = tuple(self._cluster.sealed(value) for value in args)
        if len(self._rooms) == 1:
            return self._submit(lambda actor, rank: actor.call.remote(True, method, args, kwargs))
        # Put once, and taken from shared memory by every rank of a node.
        return self._submit(_Shared(self._cluster, method, args, kwargs))

    def attributes(self, *names: str) -> Future[dict[str, Any]]:
        """The object's attributes of these names."""
        return self._submit(lambda actor, rank: actor.attributes.remote(names))

    def close(self, deadline_s: float = 10.0) -> bool:
        """Close the object after the calls made before, and end its actors; False when it was still busy then."""
        with self._lock:
            closed, self._closed = self._closed, True
        done: Future[Any] = Future()
        if not closed:
            self._tasks.put((done, lambda actor, rank: actor.end.remote()))
            self._tasks.put(None)
            wait_for([done], timeout=deadline_s)
        in_time = done.done() or closed
        self._end("was closed")
        self._thread.join(deadline_s)
        return in_time and not self._thread.is_alive()

    def kill(self) -> None:
        """End the actors at once; calls not yet answered fail with LostError."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._tasks.put(None)
        self._end("was ended")

    # --- the thread that drives the actors ---------------------------------------------------------------------------

    def _submit(self, ask: Ask) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise PlacementError(f"{self._name} is closed; it takes no more calls")
            self._tasks.put((future, ask))
        return future

    def _serve(self) -> None:
        try:
            self._start()
        except Exception as error:
            self._end(str(error))
        while (task := self._tasks.get()) is not None:
            future, ask = task
            if future.done():
                continue
            try:
                result = self._answer(ask)
            except Exception as error:
                with suppress(InvalidStateError):
                    future.set_exception(error)
            else:
                with suppress(InvalidStateError):
                    future.set_result(result)

    def _start(self) -> None:
        """Room, then processes, then the address at which the ranks are to meet."""
        for room in self._rooms:
            self._cluster.wait_for(room, lambda: bool(self._lost))
        self._actors = [self._cluster.start(room) for room in self._rooms]
        if self._lost:
            # Ended in between, when there was nothing to kill yet.
            self._cluster.end(self._actors)
        limit = self._cluster.settings.start_s
        self._births = self._collect([actor.birth.remote() for actor in self._actors], limit_s=limit)
        if len(self._actors) > 1:
            port = self._collect([self._actors[0].free_port.remote()], limit_s=limit)[0]
            self._rendezvous = f"tcp://{self._births[0].address}:{port}"

    def _remember_fault(self, built: Future[Any]) -> None:
        if not built.cancelled():
            error = built.exception()
            self._fault = error if isinstance(error, Exception) else None

    def _answer(self, ask: Ask) -> Any:
        """Rank 0's answer to one call."""
        if self._lost:
            raise LostError(self._lost)
        if self._fault is not None:
            raise self._fault
        return self._collect([ask(actor, rank) for rank, actor in enumerate(self._actors)])[0]

    def _collect(self, references: Sequence[Any], limit_s: float | None = None) -> list[Any]:
        """Answers by rank. Raises the ranks' common error, or LostError after which the actors are gone.

        `limit_s`: for processes that are only starting, which answer no heartbeat.
        """
        ray, started, alone = self._cluster.ray, time.monotonic(), None
        waiting = {reference: rank for rank, reference in enumerate(references)}
        answers: dict[int, Any] = {}
        while waiting:
            for reference in ray.wait(list(waiting), timeout=LOOK_S)[0]:
                rank = waiting.pop(reference)
                try:
                    answers[rank] = ray.get(reference)
                except ray.exceptions.RayError as error:
                    raise self._lose(rank, _short(error)) from None
                if isinstance(answers[rank], Failure) and alone is None:
                    alone = time.monotonic()
            if alone is not None and time.monotonic() - alone > RANK_GRACE_S:
                break
            if waiting and limit_s is not None and time.monotonic() - started > limit_s:
                raise self._lose(min(waiting.values()), f"its process did not start within {limit_s:g} s")
            if waiting and limit_s is None and (silent := self._pulse.silent(self._actors)) is not None:
                limit = self._cluster.settings.heartbeat_deadline_s
                raise self._lose(silent, f"no heartbeat within {limit:g} s")
        return self._agreed(answers, len(references))

    def _agreed(self, answers: Mapping[int, Any], world: int) -> list[Any]:
        failures = {rank: answer.restored() for rank, answer in answers.items() if isinstance(answer, Failure)}
        if not failures:
            return [answers[rank] for rank in range(world)]
        rank, error = next(iter(sorted(failures.items())))
        if len(failures) == world and len({(type(e), str(e)) for e in failures.values()}) == 1:
            raise error
        raise self._lose(rank, f"failed where others did not: {' '.join(str(error).split())}")

    def _lose(self, rank: int, reason: str) -> LostError:
        who = f"rank {rank} of {self._name}" if len(self._rooms) > 1 else self._name
        tail = ""
        if rank < len(self._births):
            birth = self._births[rank]
            tail = self._cluster.log_tail(birth.errors, birth.node)
        self._end(f"{who}: {reason}" + (f"; it last said: {tail}" if tail else ""))
        return LostError(self._lost)

    def _end(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._cluster.end(self._actors)


class _Shared:
    """One call's arguments, put into shared memory when the first rank is asked."""

    def __init__(self, cluster: Cluster, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._cluster, self._method, self._arguments = cluster, method, (args, kwargs)
        self._reference: Any = None

    def __call__(self, actor: Any, rank: int) -> Any:
        if self._reference is None:
            self._reference = self._cluster.ray.put(self._arguments)
        return actor.call_shared.remote(rank == 0, self._method, self._reference)


class _Pulse:
    """When each actor was last asked for a heartbeat, and whether it answered."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._asked: dict[int, tuple[Any, float]] = {}

    def silent(self, actors: Sequence[Any]) -> int | None:
        """The rank of an actor that has not answered within the deadline, after asking those whose turn it is."""
        ray, settings, now = self._cluster.ray, self._cluster.settings, time.monotonic()
        for rank, actor in enumerate(actors):
            reference, at = self._asked.get(rank, (None, 0.0))
            answered = reference is None or bool(ray.wait([reference], timeout=0)[0])
            if answered and (reference is None or now - at >= settings.heartbeat_s):
                self._asked[rank] = (actor.ping.options(concurrency_group=PULSE).remote(), now)
            elif not answered and now - at > settings.heartbeat_deadline_s:
                return rank
        return None


def _short(error: Exception) -> str:
    """Why Ray says that an actor died, without its advice."""
    text = " ".join(str(error).split())
    return text.partition("because ")[2].partition(". ")[0][:200] or text[:200] or type(error).__name__
