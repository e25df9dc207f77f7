"""What a person sees of a run in the terminal: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import astuple, dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from population.coordinator import StepReport

RECENT_STEPS = 12
PLAIN_EVERY_S = 10.0


@dataclass(frozen=True)
class Counts:
    """One member's counts of one or several steps."""

    right: int = 0
    rollouts: int = 0
    all_fail: int = 0
    groups: int = 0
    rescued: int = 0
    admitted: int = 0
    transferred: int = 0
    tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


def count(report: StepReport) -> dict[str, Counts]:
    """{member: counts} of a step; the report itself is too large to keep."""
    found = {}
    for name, own in report.rollouts.rollouts.items():
        groups = [rollout.group for rollout in own.values()]
        grafts = report.grafts.get(name, [])  # a recorded member receives nothing
        found[name] = Counts(
            right=sum(group.successes for group in groups),
            rollouts=sum(group.n for group in groups),
            all_fail=sum(group.all_fail for group in groups),
            groups=len(groups),
            rescued=len({g.transfer.prompt for g in grafts if g.admitted and own[g.transfer.prompt].group.all_fail}),
            admitted=sum(len(graft.admitted) for graft in grafts),
            transferred=sum(len(graft.responses) for graft in grafts),
            tokens=sum(len(response.ids) for group in groups for response in group.responses),
        )
    return found


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
        self._recent: deque[tuple[dict[str, Counts], float]] = deque(maxlen=RECENT_STEPS)
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
        self._recent.append((count(report), sum(report.seconds.values())))
        remaining = sorted(self._durations)[len(self._durations) // 2] * (self._total - report.step)
        note = f"ETA {remaining:.0f} s"
        if self._on_terminal and self._task is not None:
            self._bars.update(self._task, completed=report.step, note=note)
            self._live.update(Group(self._bars, self._table()))
        elif now - self._printed > PLAIN_EVERY_S or report.step == self._total:
            self._printed = now
            self.note(f"step {report.step}/{self._total}, {note}: {self._sentence()}")

    def _totals(self) -> tuple[dict[str, Counts], float]:
        """Counts by member and wall seconds over the recent steps."""
        totals: dict[str, Counts] = {}
        for counts, _ in self._recent:
            for name, own in counts.items():
                totals[name] = totals.get(name, Counts()) + own
        return totals, sum(seconds for _, seconds in self._recent)

    def _table(self) -> Table:
        table = Table(title=f"last {len(self._recent)} steps", title_justify="left")
        titles = (
            "member",
            "rollouts right",
            "all-fail groups",
            "rescued by a peer",
            "admitted by the gate",
            "tokens/s",
        )
        for column in titles:
            table.add_column(column, justify="left" if column == "member" else "right")
        totals, seconds = self._totals()
        for name, c in totals.items():
            table.add_row(
                name,
                f"{c.right / c.rollouts:.1%}",
                f"{c.all_fail} of {c.groups}",
                f"{c.rescued} of {c.all_fail}",
                f"{c.admitted} of {c.transferred}",
                f"{c.tokens / seconds:,.0f}",
            )
        return table

    def _sentence(self) -> str:
        return "; ".join(
            f"{name} {c.right / c.rollouts:.0%} right, {c.all_fail}/{c.groups} all-fail, {c.rescued} rescued"
            for name, c in self._totals()[0].items()
        )
