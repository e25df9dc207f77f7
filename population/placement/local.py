"""A member's part on a thread of this process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import Any

import torch

from population.errors import LostError, PlacementError

Task = tuple["Future[Any]", Callable[[], Any]]


class Local:
    """An object that lives on a thread of its own; its calls run there one after the other.

    The thread is a daemon, so a call that never returns cannot keep the process alive. A fault here is a fault of the
    whole process, so there is nothing to restart.
    """

    restartable = False
    gpus = ()

    def __init__(self, cls: Callable[..., Any], *args: Any, threads: int = 1, **kwargs: Any) -> None:
        """Start building `cls(*args, **kwargs)`; `ready` and every call report a failure to build."""
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._owed: set[Future[Any]] = set()
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

    def attributes(self, *names: str) -> Future[dict[str, Any]]:
        """The object's attributes of these names, read on its thread."""
        return self._submit(lambda: {name: getattr(self._built.result(), name) for name in names})

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

    def kill(self) -> None:
        """Take no more calls and fail those not yet answered with LostError; a busy thread ends with the process."""
        with self._lock:
            self._closed = True
            owed = list(self._owed)
            self._tasks.put(None)
        for future in owed:
            # The thread may answer this very moment, which is as good.
            with suppress(InvalidStateError):
                future.set_exception(LostError(f"{self._thread.name} was ended"))

    def _close_object(self) -> None:
        if self._built.exception() is None and hasattr(self._built.result(), "close"):
            self._built.result().close()

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise PlacementError(f"{self._thread.name} is closed; it takes no more calls")
            self._owed.add(future)
            self._tasks.put((future, work))
        future.add_done_callback(self._owed.discard)
        return future


def _serve(tasks: queue.SimpleQueue[Task | None], threads: int) -> None:
    # The number of OpenMP threads belongs to the calling thread, so it is set where the work is done.
    torch.set_num_threads(threads)
    while (task := tasks.get()) is not None:
        future, work = task
        if future.done():
            continue
        try:
            result = work()
        except BaseException as error:
            with suppress(InvalidStateError):
                future.set_exception(error)
        else:
            with suppress(InvalidStateError):
                future.set_result(result)
