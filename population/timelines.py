"""What everybody does at every moment of a run, and how long: the seconds of a step by member and cause.

A party does exactly one thing at a time, and all windows begin and end at the same moments, so the parts of a window
add up to its length for every member and for the run itself. What each name means: docs/performance.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

RUN = None
"""The party that is the run itself: the one thread that drives the steps."""

Party = str | None

WORK = ("sample", "grade", "score", "update", "sync")
IDLE = ("idle_turn", "idle_barrier", "idle_grading", "idle_other")


@dataclass(frozen=True)
class Window:
    """The seconds of one window by party and by what it did, and the processor seconds of this process."""

    seconds: dict[Party, dict[str, float]]
    cpu_seconds: float


class Timelines:
    """One timeline for every member and one for the run. Safe to use from the threads of all members."""

    def __init__(
        self,
        members: Sequence[str],
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._lock = threading.Lock()
        now = clock()
        self._spans: dict[Party, list[tuple[float, str]]] = {name: [(now, "idle_other")] for name in (RUN, *members)}
        self._left_out: list[tuple[float, float]] = []
        self._cpu_since = cpu_clock()

    def enter(self, party: Party, what: str, only_after: str | None = None) -> None:
        """From now on the party does this. ``only_after``: if that is what it does now, else nothing changes."""
        with self._lock:
            spans = self._spans.get(party)
            if spans is not None and only_after in (None, spans[-1][1]):
                spans.append((self._clock(), what))

    @contextmanager
    def during(self, party: Party, what: str) -> Iterator[None]:
        """The party does this inside the block, and what it did before after it."""
        with self._lock:
            before = self._spans[party][-1][1] if party in self._spans else what
        self.enter(party, what)
        try:
            yield
        finally:
            self.enter(party, before)

    @contextmanager
    def aside(self, *, but_for_work: bool = False) -> Iterator[None]:
        """The block is no part of any step; ``but_for_work``: as far as no member works on the next one meanwhile."""
        with self._lock:
            began, cpu_began = self._clock(), self._cpu_clock()
            counts = but_for_work and self._busy()
        yield
        with self._lock:
            if not counts:
                self._cpu_since += self._cpu_clock() - cpu_began
            if not but_for_work:
                self._left_out.append((began, self._clock()))
            elif not self._busy():
                self._left_out.append((max(began, self._last_busy()), self._clock()))

    def cut(self) -> Window:
        """End the window of all parties and begin the next one, in which they go on with what they do."""
        with self._lock:
            now, cpu = self._clock(), self._cpu_clock()
            seconds = {party: self._totals(spans, now) for party, spans in self._spans.items()}
            self._spans = {party: [(now, spans[-1][1])] for party, spans in self._spans.items()}
            self._left_out = []
            window = Window(seconds, cpu - self._cpu_since)
            self._cpu_since = cpu
            return window

    def remove(self, member: str) -> None:
        """The member is no longer of the run."""
        with self._lock:
            self._spans.pop(member, None)

    def _totals(self, spans: Sequence[tuple[float, str]], now: float) -> dict[str, float]:
        totals: dict[str, float] = {}
        ends = [start for start, _ in spans[1:]] + [now]
        for (start, what), end in zip(spans, ends, strict=True):
            left_out = sum(max(0.0, min(end, b) - max(start, a)) for a, b in self._left_out)
            totals[what] = totals.get(what, 0.0) + max(0.0, end - start - left_out)
        return totals

    def _busy(self) -> bool:
        return any(spans[-1][1] in WORK for party, spans in self._spans.items() if party is not RUN)

    def _last_busy(self) -> float:
        """When the last member stopped to work, at the latest the beginning of its present idleness."""
        ends = [
            after[0]
            for party, spans in self._spans.items()
            if party is not RUN
            for before, after in pairwise(spans)
            if before[1] in WORK
        ]
        return max(ends, default=0.0)
