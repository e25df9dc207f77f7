"""From committed steps of a store to a tracker: values by name, each step once."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from pathlib import Path

from server.store.reader import Reader, open_reader
from server.trackers.tracker import KINDS, Outcome, Settings, Tracker, TrackerError, open_tracker

_OUTCOMES: dict[str, Outcome] = {"finished": "finished", "failed": "failed"}
# Steps read at a time; a finished run of any length is exported in bounded memory.
CHUNK = 200
# Ratios of counts that no metric repeats: name, numerator, denominator.
_SHARES = (("solved", "successes", "rollouts"), ("all_fail", "all_fail", "groups"), ("received", "received", "groups"))


@dataclass(slots=True)
class Exporter:
    """Sends a run's steps after `done`, and every evaluation once."""

    reader: Reader
    run: str
    tracker: Tracker
    done: int = 0
    _sent: set[tuple[str, str, int, float]] = field(default_factory=set)

    def advance(self) -> int:
        """Send what was committed since the last call; the number of steps."""
        first, last = self.done + 1, self.reader.run(self.run).last_step or 0
        for low in range(first, last + 1, CHUNK):
            high = min(low + CHUNK - 1, last)
            values = self._values(low, high)
            for step in range(low, high + 1):
                if values.get(step):
                    self.tracker.log(step, values[step])
                self.done = step
        self._evaluations(first)
        return max(0, last - first + 1)

    def _values(self, low: int, high: int) -> dict[int, dict[str, float]]:
        """{step: {"member/metric" or "population/metric": value}}; what is not finite is left out."""
        found: dict[int, dict[str, float]] = {}
        for step, member, name, numerator, denominator in self.reader.metric_values(self.run, low, high):
            if denominator and math.isfinite(numerator / denominator):
                found.setdefault(step, {})[f"{member or 'population'}/{name}"] = numerator / denominator
        counts = self.reader.member_history(self.run, list(range(low - 1, high + 1)))
        for slot, described in enumerate(self.reader.run(self.run).members):
            for name, part, whole in _SHARES:
                for place, step in enumerate(range(low, high + 1)):
                    if counts[whole][place, slot]:
                        share = float(counts[part][place, slot] / counts[whole][place, slot])
                        found.setdefault(step, {})[f"{described.name}/{name}"] = share
        return found

    def _evaluations(self, first: int) -> None:
        """Those of steps from `first` on, and later ones of an earlier step, which is evaluated after its commit."""
        by_step: dict[int, dict[str, float]] = {}
        for one in self.reader.evaluations(self.run):
            key = (one.member, one.benchmark, one.step, one.mean)
            if key not in self._sent and math.isfinite(one.mean):
                by_step.setdefault(one.step, {})[f"{one.member}/evaluation/{one.benchmark}"] = one.mean
                self._sent.add(key)
        for step in sorted(by_step):
            self.tracker.log(step, by_step[step])

    def skip_evaluations(self) -> None:
        """Take the evaluations up to step `done` as sent by an earlier process."""
        for one in self.reader.evaluations(self.run):
            if one.step <= self.done:
                self._sent.add((one.member, one.benchmark, one.step, one.mean))


def export(url: str, run: str, kind: str, folder: Path, project: str) -> int:
    """Send a whole recorded run to a tracker; the number of steps. TrackerError, StoreError."""
    known = {name: name for name in KINDS}
    if kind not in known:
        near = difflib.get_close_matches(kind, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
        raise TrackerError(f"there is no tracker {kind!r}; {hint}")
    with open_reader(url) as reader:
        info = reader.run(run)
        tracker = open_tracker(Settings(known[kind], folder, project), info, 0)
        steps = Exporter(reader, info.uid, tracker).advance()
        tracker.finish(_OUTCOMES.get(info.status, "interrupted"))
    return steps
