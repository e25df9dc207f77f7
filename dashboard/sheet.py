"""What a page says, kept while it is drawn: its charts, its tables with their raw numbers, its sentences.

A page is drawn through `dashboard.parts`, which adds everything to the sheet that `kept` has opened; files and the
report are made from sheets, so that they hold what the page shows and nothing is described twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import pandas as pd

from dashboard.charts import Spec


@dataclass(frozen=True, eq=False)
class Chart:
    """A drawing: a Vega-Lite specification with its named frames, or an ECharts option with its height in pixels.
    `alt` says in words what is drawn."""

    name: str
    spec: Spec
    alt: str


# Made when a file is wanted: a page that refreshes does not pay for it.
Numbers = Callable[[], pd.DataFrame]


@dataclass(frozen=True, eq=False)
class Table:
    """A table: `data` makes it with numbers as numbers, one column each, for files; `shown` as the page writes it, in
    Markdown where `markdown`; None where the page draws these numbers as a chart of the same name, or says them."""

    name: str
    data: Numbers
    shown: pd.DataFrame | None = None
    markdown: bool = False


@dataclass(frozen=True, eq=False)
class File:
    """Something that is neither a chart nor a table, in a format of its own: `suffix` as in a file's name."""

    name: str
    suffix: str
    mime: str
    make: Callable[[], bytes]


@dataclass(frozen=True)
class Text:
    """A sentence or a list in the page's Markdown, `small` for a caption."""

    markdown: str
    small: bool = False


@dataclass(frozen=True)
class Quote:
    """What a model or a data set wrote, letter for letter, under a heading in Markdown."""

    heading: str
    written: str


Named = Chart | Table | File
Item = Named | Text | Quote


@dataclass(eq=False)
class Panel:
    """One title with what belongs to it, in the order drawn; title, explanation and help are Markdown."""

    title: str = ""
    explanation: str = ""
    help: str = ""
    items: list[Item] = field(default_factory=list)

    def names(self) -> set[str]:
        """The names of its charts, tables and files."""
        return {item.name for item in self.items if isinstance(item, Named)}


@dataclass(eq=False)
class Sheet:
    """One page as it was drawn, in the colours of `theme` ("light" or "dark")."""

    theme: str
    panels: list[Panel] = field(default_factory=list)

    def begin(self, title: str, explanation: str, help: str | None = None) -> None:
        """A new panel; what is added from here on belongs to it."""
        self.panels.append(Panel(title, explanation, help or ""))

    def add(self, item: Item) -> None:
        """To the panel that was begun last. ValueError for the name of another chart, or of another table."""
        if isinstance(item, Named):
            for other in (one for panel in self.panels for one in panel.items):
                if type(other) is type(item) and other.name == item.name:
                    raise ValueError(f"the page has two of {item.name}")
        if not self.panels:
            self.panels.append(Panel())
        self.panels[-1].items.append(item)

    def take_new(self, other: Sheet) -> None:
        """The panels of another view of the same page that this sheet has not: those with a chart or a table of a new
        name, and of panels without any those that say something else."""
        known = {name for panel in self.panels for name in panel.names()}
        said = [(panel.title, panel.items) for panel in self.panels]
        for panel in other.panels:
            if panel.names() - known or not (panel.names() or (panel.title, panel.items) in said):
                kept = [one for one in panel.items if not (isinstance(one, Named) and one.name in known)]
                self.panels.append(Panel(panel.title, panel.explanation, panel.help, kept))


_OPEN: ContextVar[Sheet | None] = ContextVar("sheet", default=None)


@contextmanager
def kept(theme: str | None) -> Iterator[Sheet]:
    """Keep what is drawn inside this block."""
    sheet = Sheet("dark" if theme == "dark" else "light")
    token = _OPEN.set(sheet)
    try:
        yield sheet
    finally:
        _OPEN.reset(token)


def current() -> Sheet | None:
    """The sheet that is being kept, None where nobody keeps one."""
    return _OPEN.get()
