"""Waiting for what placements were asked, under a deadline."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import TypeVar

from population.errors import LostError, MemberLost, PlacementError

T = TypeVar("T")


def wait(future: Future[T], deadline_s: float, *, member: str, phase: str, step: int | None) -> T:
    """The future's result. Raises as :func:`gather` does."""
    return gather({member: future}, deadline_s, phase=phase, step=step)[member]


def gather(futures: Mapping[str, Future[T]], deadline_s: float, *, phase: str, step: int | None) -> dict[str, T]:
    """The results of one call per member, by member, under one deadline for all of them.

    Raises MemberLost for a member whose process is gone, or for those that did not answer in time (its `member` is the
    first of them), and PlacementError, from the call's own error, for a call that failed.
    """
    started = time.monotonic()
    remaining = {future: member for member, future in futures.items()}
    while remaining:
        left = deadline_s - (time.monotonic() - started)
        finished, _ = wait_for(remaining, timeout=max(left, 0.0), return_when="FIRST_EXCEPTION")
        for future in finished:
            member = remaining.pop(future)
            error = PlacementError("the call was cancelled") if future.cancelled() else future.exception()
            if isinstance(error, LostError):
                raise MemberLost((member,), phase, step, str(error)) from error
            if error is not None:
                at = phase if step is None else f"{phase} of step {step}"
                raise PlacementError(f"member {member}, {at}: {str(error) or type(error).__name__}") from error
        if remaining and left <= 0:
            silent = tuple(remaining.values())
            raise MemberLost(silent, phase, step, f"no answer within the deadline of {deadline_s:g} s")
    return {member: future.result() for member, future in futures.items()}
