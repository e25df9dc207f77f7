"""What is owed: the verdicts of a `submit` and the requests to workers that will fill them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from server.rewards.process import Request
from server.rewards.verdicts import Verdict


class Batch:
    """The verdicts of one `submit`, filled in any order; the future is set with the last one."""

    def __init__(self, size: int) -> None:
        self.future: Future[list[Verdict]] = Future()
        self.verdicts: list[Verdict | None] = [None] * size
        self.missing = size
        self.future.set_running_or_notify_cancel()  # so that nobody cancels it under the thread that resolves it

    def fill(self, index: int, verdict: Verdict) -> None:
        self.verdicts[index] = verdict
        self.missing -= 1

    def resolve(self) -> None:
        """Called once, by whoever filled the last place, without the lock: callbacks run here."""
        if not self.future.done():
            self.future.set_result([verdict for verdict in self.verdicts if verdict is not None])


TaskKey = tuple[str, str | None, str, str, str]


def task_key(request: Request) -> TaskKey:
    return request.op, request.reward, request.prompt, request.gold, request.answer


@dataclass(eq=False)
class Task:
    """One request to a worker, with everyone who waits for it."""

    request: Request
    waiting: list[tuple[Batch, int]] = field(default_factory=list)
    attempts: int = 0
    idle_deaths: int = 0

    @property
    def key(self) -> TaskKey:
        return task_key(self.request)
