"""What a person sees of a run in the terminal: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from population.coordinator import StepReport

RECENT_STEPS = 12
PLAIN_EVERY_S = 10.0


class Display:
    """Progress of warm start and training. Use as a context manager; its methods are a run's :class:`Watch`."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._live = Live(self._bars, console=console, refresh_per_second=4, transient=False)
        self._warm: dict[str, TaskID] = {}
        self._recent: deque[StepReport] = deque(maxlen=RECENT_STEPS)
        self._durations: deque[float] = deque(maxlen=50)
        self._total = 0
        self._task: TaskID | None = None
        self._last = self._printed = time.monotonic()

    def __enter__(self) -> Display:
        if self._on_terminal:
            self._live.start()
        return self

    def __exit__(self, *fault: object) -> None:
        if self._on_terminal:
            self._live.stop()

    @property
    def _on_terminal(self) -> bool:
        return self._console.is_terminal and not self._quiet

    def note(self, text: str) -> None:
        """Print one line above the live part."""
        if not self._quiet:
            self._console.print(text, highlight=False, soft_wrap=True)

    def warm_start(self, member: str, step: int, total: int, loss: float) -> None:
        """Progress of a demo member's warm start."""
        if member not in self._warm:
            self._warm[member] = self._bars.add_task(f"warm start {member}", total=total, note="")
            if not self._on_terminal:
                self.note(f"warm start of {member}: {total} steps")
        self._bars.update(self._warm[member], completed=step, note=f"loss {loss:.3f}")

    def begin(self, uid: str, first_step: int, last_step: int) -> None:
        """Training starts (or goes on) at ``first_step``."""
        for task in self._warm.values():
            self._bars.remove_task(task)
        self._total = last_step
        self._task = self._bars.add_task("training", total=last_step, completed=first_step - 1, note="")
        self._last = time.monotonic()
        self.note(f"run {uid}: steps {first_step} to {last_step}")

    def step(self, report: StepReport) -> None:
        """One step is done and recorded."""
        now = time.monotonic()
        self._durations.append(now - self._last)
        self._last = now
        self._recent.append(report)
        remaining = sorted(self._durations)[len(self._durations) // 2] * (self._total - report.step)
        note = f"ETA {remaining:.0f} s"
        if self._on_terminal and self._task is not None:
            self._bars.update(self._task, completed=report.step, note=note)
            self._live.update(Group(self._bars, self._table()))
        elif now - self._printed > PLAIN_EVERY_S or report.step == self._total:
            self._printed = now
            self.note(f"step {report.step}/{self._total}, {note}: {self._sentence()}")

    def _rates(self) -> dict[str, tuple[float, float, int, int, int, int, int]]:
        """Per member over the recent steps: accuracy, tokens/s, all-fail, groups, rescued, admitted, transferred
        responses.
        """
        found = {}
        for name in self._recent[-1].updates:
            groups = [rollout.group for report in self._recent for rollout in report.rollouts.rollouts[name].values()]
            grafts = [graft for report in self._recent for graft in report.grafts[name]]
            tokens = sum(len(response.ids) for group in groups for response in group.responses)
            seconds = sum(sum(report.seconds.values()) for report in self._recent)
            found[name] = (
                sum(group.successes for group in groups) / sum(group.n for group in groups),
                tokens / seconds,
                sum(group.all_fail for group in groups),
                len(groups),
                sum(bool(graft.admitted) for graft in grafts),
                sum(len(graft.admitted) for graft in grafts),
                sum(len(graft.responses) for graft in grafts),
            )
        return found

    def _table(self) -> Table:
        table = Table(title=f"last {len(self._recent)} steps", title_justify="left")
        for column in (
            "member",
            "rollouts right",
            "all-fail groups",
            "rescued by a peer",
            "admitted by the gate",
            "tokens/s",
        ):
            table.add_column(column, justify="left" if column == "member" else "right")
        for name, (accuracy, speed, failed, groups, rescued, admitted, responses) in self._rates().items():
            table.add_row(
                name,
                f"{accuracy:.1%}",
                f"{failed} of {groups}",
                f"{rescued} of {failed}",
                f"{admitted} of {responses}",
                f"{speed:,.0f}",
            )
        return table

    def _sentence(self) -> str:
        return "; ".join(
            f"{name} {accuracy:.0%} right, {failed}/{groups} all-fail, {rescued} rescued"
            for name, (accuracy, _, failed, groups, rescued, _, _) in self._rates().items()
        )
