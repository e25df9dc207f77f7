"""What a person sees of a sweep: a bar for each running run and one for all on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from population.sweep.spec import PlannedRun
from population.sweep.supervisor import Outcome

PLAIN_EVERY_S = 30.0


class Display:
    """Progress of a sweep, in steps of all its runs. ``lengths`` is {uid: steps in all}, ``done`` {uid: steps recorded
    before}. Use as a context manager.
    """

    def __init__(
        self, console: Console, runs: Sequence[PlannedRun], lengths: Mapping[str, int], done: Mapping[str, int]
    ) -> None:
        self._console = console
        self._lengths = dict(lengths)
        self._steps = {run.uid: done.get(run.uid, 0) for run in runs}
        self._runs, self._failed = len(runs), 0
        self._ended = {run.uid for run in runs if self._steps[run.uid] >= self._lengths[run.uid]}
        self._began, self._first = time.monotonic(), sum(self._steps.values())
        self._printed = self._began
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
            console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}
        self._all = self._bars.add_task("all runs, steps", total=sum(self._lengths.values()), note="")

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._bars.stop()

    def started(self, run: PlannedRun, *, resumed: bool) -> None:
        """A process was started."""
        uid = run.uid
        self._tasks[uid] = self._bars.add_task(uid, total=self._lengths[uid], completed=self._steps[uid], note="")
        self._say(f"{uid}: goes on" if resumed else f"{uid}: started")

    def ended(self, outcome: Outcome) -> None:
        """A run ended, or was given up."""
        uid = outcome.run.uid
        if uid in self._tasks:
            self._bars.remove_task(self._tasks.pop(uid))
        self._ended.add(uid)
        self._failed += not outcome.finished
        if outcome.finished:
            self._steps[uid] = self._lengths[uid]
        self._say(f"{uid}: finished" if outcome.finished else f"{uid}: FAILED, {outcome.reason}")

    def progress(self, steps: Mapping[str, tuple[int, int]]) -> None:
        """The running runs' steps as recorded now."""
        for uid, (done, total) in steps.items():
            self._steps[uid] = max(done, 0)
            self._bars.update(self._tasks[uid], completed=done, note="" if total else "preparing")
        self._bars.update(self._all, completed=sum(self._steps.values()), note=self._summary())
        if not self._console.is_terminal and time.monotonic() - self._printed > PLAIN_EVERY_S:
            listed = ", ".join(f"{uid} {done}/{self._lengths[uid]}" for uid, (done, _) in steps.items())
            self._say(f"{self._summary()}; running: {listed}")

    def _summary(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{len(self._ended)} of {self._runs} runs ended{failed}, {self._remaining()}"

    def _remaining(self) -> str:
        """Time left at the pace since the start, over all steps of the runs that have not ended."""
        done = sum(self._steps.values()) - self._first
        left = sum(self._lengths[uid] - steps for uid, steps in self._steps.items() if uid not in self._ended)
        if done <= 0:
            return "ETA not known yet"
        return f"ETA {duration(left * (time.monotonic() - self._began) / done)}"

    def _say(self, text: str) -> None:
        self._printed = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
