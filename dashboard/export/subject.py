"""What an export is about, in words: the same in pictures, in the report and in the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard import formats
from dashboard.controls import Window, member_labels
from dashboard.source import Source
from server.store.reader import RunInfo

# Names of members in a picture; with more, how many there are.
_NAMED = 6


@dataclass(frozen=True)
class Subject:
    """One run at one revision of its store, its steps (None before the first), and the slots that are drawn."""

    info: RunInfo
    revision: int
    window: Window | None
    slots: Sequence[int]

    @classmethod
    def of(cls, source: Source, window: Window | None, slots: Sequence[int]) -> Subject:
        return cls(source.info, source.revision, window, slots)

    def steps(self) -> str:
        """ "steps 1–60 of 100"."""
        of = f" of {formats.count(self.info.total_steps)}"
        return "no step yet" if self.window is None else f"{self.window}{of}"

    def line(self) -> str:
        """Which run, steps and members, in plain text: the line in every picture."""
        names = [member_labels(self.info)[slot] for slot in self.slots]
        members = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} members"
        run, method = formats.clean(self.info.name, 60), formats.clean(self.info.method, 40)
        return f"Run {run} ({formats.clean(self.info.uid, 60)}) · {method} · {self.steps()} · {members}"
