"""One call to one part of a member, waited for, and several members' work at once.

What is asked of a member is asked by a thread of its own, one thing after the other, while other members are at theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from typing import Any, Literal, Protocol, TypeVar

from population.errors import MemberDropped, MemberLost, PartLost, PlacementError
from population.placement import Placement, wait

Part = Literal["trainer", "engine"]
T = TypeVar("T")


class Placed(Protocol):
    """What has a name and parts that can be called."""

    name: str
    trainer: Placement
    engine: Placement


class Ask(Protocol):
    """As :func:`ask`, which may have a policy for what is lost."""

    def __call__(
        self, member: Any, part: Part, method: str, *arguments: Any, deadline_s: float, phase: str, step: int | None
    ) -> Any: ...


def ask(
    member: Placed, part: Part, method: str, *arguments: Any, deadline_s: float, phase: str, step: int | None
) -> Any:
    """The answer of a member's trainer or engine.

    Raises PartLost when its process is gone or does not answer in time, PlacementError when the call failed.
    """
    placement = getattr(member, part)
    try:
        call = placement.call(method, *arguments)
    except PlacementError as closed:
        if getattr(member, part) is placement:
            raise
        # Between the two lines above another thread found it lost and put a new one in its place.
        raise PartLost(member.name, part, placement, phase, step, str(closed)) from closed
    try:
        return wait(call, deadline_s, member=member.name, phase=phase, step=step)
    except MemberLost as lost:
        raise PartLost(member.name, part, placement, phase, step, lost.reason) from lost


def ready(member: Placed, part: Part, deadline_s: float, step: int | None) -> None:
    """Until a part that was started again is built. Raises as :func:`ask` does."""
    placement = getattr(member, part)
    try:
        wait(placement.ready, deadline_s, member=member.name, phase="restart", step=step)
    except MemberLost as lost:
        raise PartLost(member.name, part, placement, "restart", step, lost.reason) from lost


def begin(job: Callable[[], T], name: str = "job") -> Future[T]:
    """Run a job on a thread of its own. The thread is a daemon: a process that ends waits for nobody."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def as_finished(jobs: Mapping[str, Future[T]]) -> Iterator[tuple[str, Future[T]]]:
    """The jobs by name as they end. Every wait inside a job has its deadline, so this needs none."""
    remaining = {future: name for name, future in jobs.items()}
    while remaining:
        finished, _ = wait_for(remaining, return_when=FIRST_COMPLETED)
        for future in finished:
            yield remaining.pop(future), future


def all_of(jobs: Mapping[str, Future[T]]) -> dict[str, T]:
    """The results of all jobs, in the order given.

    The first error is raised without waiting for the other jobs, but for MemberDropped: the run goes on after it, and
    must find nobody at work.
    """
    dropped: list[MemberDropped] = []
    found = {}
    for name, future in as_finished(jobs):
        try:
            found[name] = future.result()
        except MemberDropped as error:
            dropped.append(error)
    if dropped:
        raise dropped[0]
    return {name: found[name] for name in jobs}
