"""Where a member's parts run: behind `call(method, ...) -> Future`, here each on a thread of this process.

Every wait has a deadline, and its message names member, phase and step.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

import torch

from population.errors import PlacementError

__all__ = ["Local", "PlacementError", "gather", "wait"]

T = TypeVar("T")


class Local:
    """An object that lives on a thread of its own; its calls run there one after the other.

    The thread is a daemon, so a call that never returns cannot keep the process alive.
    """

    def __init__(self, cls: Callable[..., Any], *args: Any, threads: int = 1, **kwargs: Any) -> None:
        """Start building `cls(*args, **kwargs)`; `ready` and every call report a failure to build."""
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        name = f"{getattr(cls, '__name__', 'object')}"
        self._thread = threading.Thread(target=_serve, args=(self._tasks, threads), name=name, daemon=True)
        self._thread.start()
        self._built: Future[Any] = self._submit(lambda: cls(*args, **kwargs))

    @property
    def ready(self) -> Future[Any]:
        """Resolves when the object is built; its result is the object itself."""
        return self._built

    def call(self, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `object.method(*args, **kwargs)` on the object's thread, after the calls made before."""
        return self._submit(lambda: getattr(self._built.result(), method)(*args, **kwargs))

    def close(self, deadline_s: float = 10.0) -> bool:
        """Close the object if it has `close`, and end the thread; False when it is still busy after the deadline.

        A busy thread is a daemon and ends with the process, so that closing never hides why a run stopped.
        """
        with self._lock:
            if self._closed:
                return not self._thread.is_alive()
            self._closed = True
            done: Future[None] = Future()
            self._tasks.put((done, self._close_object))
            self._tasks.put(None)
        finished, _ = wait_for([done], timeout=deadline_s)
        self._thread.join(deadline_s if finished else 0.0)
        return not self._thread.is_alive()

    def _close_object(self) -> None:
        if self._built.exception() is None and hasattr(self._built.result(), "close"):
            self._built.result().close()

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise PlacementError(f"{self._thread.name} is closed; it takes no more calls")
            self._tasks.put((future, work))
        return future


def _serve(tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None], threads: int) -> None:
    # The number of OpenMP threads belongs to the calling thread, so it is set where the work is done.
    torch.set_num_threads(threads)
    while (task := tasks.get()) is not None:
        future, work = task
        if future.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)


def wait(future: Future[T], deadline_s: float, *, member: str, phase: str, step: int | None) -> T:
    """The future's result. Raises PlacementError past the deadline or, from the call's own error, when it failed."""
    return gather({member: future}, deadline_s, phase=phase, step=step)[member]


def gather(futures: Mapping[str, Future[T]], deadline_s: float, *, phase: str, step: int | None) -> dict[str, T]:
    """The results of one call per member, by member, under one deadline for all of them.

    Raises PlacementError naming the members that did not answer, or the first that failed with its own message.
    """
    started = time.monotonic()
    remaining = {future: member for member, future in futures.items()}
    at = phase if step is None else f"{phase} of step {step}"
    while remaining:
        left = deadline_s - (time.monotonic() - started)
        finished, _ = wait_for(remaining, timeout=max(left, 0.0), return_when="FIRST_EXCEPTION")
        for future in finished:
            member = remaining.pop(future)
            error = PlacementError("the call was cancelled") if future.cancelled() else future.exception()
            if error is not None:
                raise PlacementError(f"member {member}, {at}: {str(error) or type(error).__name__}") from error
        if remaining and left <= 0:
            silent = ", ".join(remaining.values())
            raise PlacementError(f"member {silent}, {at}: no answer within the deadline of {deadline_s:g} s")
    return {member: future.result() for member, future in futures.items()}
