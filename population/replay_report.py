"""What a replay found, by edge: routed, admitted and refused then and now; as a table, as JSON, and as the store keeps
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from population.replay import Edge, Moved, ReplayedStep
from server.store.scores import mean_interval

ABSENT = "–"


@dataclass
class Side:
    """The transfers of one edge under one of the two settings.

    ``selected`` counts held-out ones too. ``gated`` holds (admitted, known responses) of every transfer that was
    carried out and has a known one; ``unknown`` counts the responses without. ``sum_s`` is over ``scored`` responses,
    ``sum_w`` over admitted ones.
    """

    selected: int = 0
    held_out: int = 0
    gated: list[tuple[int, int]] = field(default_factory=list)
    unknown: int = 0
    scored: int = 0
    sum_s: float = 0.0
    sum_w: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, moved: Moved) -> None:
        """Count one transfer."""
        known = [response for response in moved.responses if response is not None]
        admitted = [response for response in known if response.refusal is None]
        scores = [response.s for response in known if response.s is not None]
        self.selected += 1
        self.held_out += moved.held_out
        if known:
            self.gated.append((len(admitted), len(known)))
        self.unknown += len(moved.responses) - len(known)
        self.scored += len(scores)
        self.sum_s += sum(scores)
        self.sum_w += sum(response.weight for response in admitted)
        self.refused.update(response.refusal for response in known if response.refusal is not None)

    def __add__(self, other: Side) -> Side:
        return Side(
            self.selected + other.selected,
            self.held_out + other.held_out,
            self.gated + other.gated,
            self.unknown + other.unknown,
            self.scored + other.scored,
            self.sum_s + other.sum_s,
            self.sum_w + other.sum_w,
            self.refused + other.refused,
        )

    @property
    def admitted(self) -> int:
        """Responses admitted among the known ones."""
        return sum(k for k, _ in self.gated)

    @property
    def known(self) -> int:
        """Responses of transfers carried out whose admission the record tells."""
        return sum(n for _, n in self.gated)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the admitted share where some responses are unknown, with the transfer as the unit."""
        if not self.unknown or not self.gated:
            return None
        found = mean_interval(*zip(*self.gated, strict=True))
        return found.low, found.high

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The admitted share if all unknown responses were refused, and if all were admitted."""
        total = self.known + self.unknown
        return (self.admitted / total, (self.admitted + self.unknown) / total) if self.unknown else None

    def as_dict(self) -> dict[str, Any]:
        """Ratios as their two parts, JSON-ready."""
        return {
            "selected": self.selected,
            "held_out": self.held_out,
            "admitted": _ratio(self.admitted, self.known),
            "unknown": self.unknown,
            "interval": self.interval,
            "bounds": self.bounds,
            "s": _ratio(self.sum_s, self.scored),
            "weight": _ratio(self.sum_w, self.admitted),
            "refused": dict(sorted(self.refused.items())),
        }


@dataclass
class Change:
    """One edge, or all of them: then, now, and how many transfers are in ``both``."""

    then: Side = field(default_factory=Side)
    now: Side = field(default_factory=Side)
    both: int = 0

    def __add__(self, other: Change) -> Change:
        return Change(self.then + other.then, self.now + other.now, self.both + other.both)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "then": self.then.as_dict(),
            "now": self.now.as_dict(),
            "both": self.both,
            "only_then": self.then.selected - self.both,
            "only_now": self.now.selected - self.both,
        }


@dataclass
class Summary:
    """A whole replay: edges (receiver, source) in slot order of the run's members.

    ``exact_steps`` counts the first steps whose routing rests on known weights alone; ``reproduced``: every transfer,
    value, s and weight is the recorded one.
    """

    edges: dict[Edge, Change]
    steps: int
    exact_steps: int
    reproduced: bool

    @property
    def total(self) -> Change:
        """All edges together."""
        return sum(self.edges.values(), Change())

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, as the store keeps it."""
        edges = [{"receiver": r, "source": s, **change.as_dict()} for (r, s), change in self.edges.items()]
        return {
            "steps": self.steps,
            "exact_steps": self.exact_steps,
            "reproduced": self.reproduced,
            "edges": edges,
            "total": self.total.as_dict(),
        }


def summarise(steps: Iterable[ReplayedStep], members: Sequence[str]) -> Summary:
    """Count a replay by edge; edges that nothing moved over are left out."""
    edges = {(receiver, source): Change() for receiver in members for source in members if receiver != source}
    done = exact = 0
    reproduced = True
    for step in steps:
        then, now = ({one.place: one for one in moved} for moved in (step.then, step.now))
        for side, moved in (("then", step.then), ("now", step.now)):
            for one in moved:
                getattr(edges[one.receiver, one.source], side).add(one)
        for receiver, _, source in then.keys() & now.keys():
            edges[receiver, source].both += 1
        done, exact = done + 1, exact + step.exact
        reproduced = reproduced and then == now
    used = {edge: change for edge, change in edges.items() if change.then.selected or change.now.selected}
    return Summary(used, done, exact, reproduced)


def print_replay(console: Console, title: str, summary: Summary) -> None:
    """One row per edge, then and now, and what the figures rest on."""
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("source →\nreceiver")
    stacked = ("routed\nthen\nnow", "both\nonly then\nonly now")
    for column in (*stacked, "admitted\nthen", "admitted\nnow", "mean s\nthen\nnow", "mean w\nthen\nnow"):
        table.add_column(column, justify="right")
    for (receiver, source), change in summary.edges.items():
        table.add_row(f"{source} →\n{receiver}", *_cells(change))
    if len(summary.edges) != 1:
        table.add_row("all", *_cells(summary.total))
    console.print(table)
    for line in _notes(summary):
        console.print(line, highlight=False, soft_wrap=True)


def _cells(change: Change) -> list[str]:
    then, now = change.then, change.now
    return [
        f"{then.selected:,}\n{now.selected:,}",
        f"{change.both:,}\n{then.selected - change.both:,}\n{now.selected - change.both:,}",
        _admitted(then),
        _admitted(now),
        f"{_mean(then.sum_s, then.scored)}\n{_mean(now.sum_s, now.scored)}",
        f"{_mean(then.sum_w, then.admitted)}\n{_mean(now.sum_w, now.admitted)}",
    ]


def _admitted(side: Side) -> str:
    lines = [f"{side.admitted / side.known:.1%}\n{side.admitted:,}/{side.known:,}"] if side.known else [ABSENT]
    if side.interval is not None:
        lines.append(f"[{100 * side.interval[0]:.1f}, {100 * side.interval[1]:.1f}]")
    if side.unknown:
        lines.append(f"{side.unknown:,} unknown")
    return "\n".join(lines)


def _mean(total: float, n: int) -> str:
    return f"{total / n:.3f}" if n else ABSENT


def _notes(summary: Summary) -> list[str]:
    total = summary.total
    lines = []
    if summary.reproduced:
        lines.append(
            f"The record is reproduced bit for bit: {total.now.selected:,} transfers, {total.now.known:,} responses."
        )
    for name, side in (("then", total.then), ("now", total.now)):
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in side.refused.most_common())
        lines.append(f"{name}: {side.held_out:,} of {side.selected:,} held out; refused: {reasons or 'nothing'}")
    if total.now.bounds is not None:
        low, high = total.now.bounds
        lines.append(
            f"{total.now.unknown:,} responses did not move in the record and have no s: the admitted share is that of "
            f"the known ones, with its 95 % interval (unit: the transfer); it lies in [{low:.1%}, {high:.1%}] whatever "
            "the unknown ones are."
        )
    if summary.exact_steps < summary.steps:
        lines.append(
            f"Routing is exact in the first {summary.exact_steps:,} of {summary.steps:,} steps; later edge rates rest "
            "on the known responses alone."
        )
    else:
        lines.append(f"Routing is exact in all {summary.steps:,} steps.")
    return lines


def _ratio(numerator: float, denominator: int) -> Mapping[str, float]:
    return {"numerator": numerator, "denominator": denominator}
