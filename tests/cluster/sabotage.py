"""Killing the process of an actor while it owes the answer to a certain call."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from population.placement.remote import Remote


@dataclass(frozen=True)
class Kill:
    """SIGKILL to a rank of a placement, or with `worker` to its verifier's worker, as soon as it is asked `method`.

    `step` picks the call: the one of this step, where the first argument is a step or has one; otherwise the call that
    is so many-th.
    """

    name: str
    method: str
    step: int
    rank: int = 0
    worker: bool = False


@contextmanager
def sabotaged(kills: list[Kill]) -> Iterator[list[Kill]]:
    """Yields the kills that were carried out, each once."""
    done: list[Kill] = []
    asked: dict[tuple[str, str], int] = {}
    original = Remote.call

    def call(self: Remote, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        key = (self._name, method)
        asked[key] = asked.get(key, 0) + 1
        due = [kill for kill in kills if (kill.name, kill.method) == key and _step(args, asked[key]) == kill.step]
        for kill in [kill for kill in due if kill.worker and kill not in done]:
            done.append(kill)
            for worker in original(self, "worker_pids").result(120):
                os.kill(worker, signal.SIGKILL)
        future = original(self, method, *args, **kwargs)
        for kill in [kill for kill in due if not kill.worker and kill not in done]:
            done.append(kill)
            os.kill(self.pids[kill.rank], signal.SIGKILL)
        return future

    Remote.call = call  # type: ignore[method-assign]
    try:
        yield done
    finally:
        Remote.call = original  # type: ignore[method-assign]


def _step(args: tuple[Any, ...], number: int) -> int:
    for argument in args:
        if isinstance(argument, int):
            return argument
        if hasattr(argument, "purpose"):
            return argument.step if argument.purpose == "train" else -1
    return number
