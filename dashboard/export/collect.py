"""Sheets of pages without a browser: the pages' own functions, run as Streamlit runs them for a session.

`AppTest` is Streamlit's public way to do so. It keeps a session's state and address, so that the controls of a page say
what its address asks for, exactly as in a browser.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamlit.testing.v1 import AppTest

from dashboard.app import PAGES, Entry
from dashboard.controls import Window, member_labels
from dashboard.launch import STORE_VARIABLE
from dashboard.sheet import Sheet
from dashboard.source import Source
from server.store.reader import RunInfo

SCRIPT = Path(__file__).resolve().parents[1] / "entry" / "export_page.py"
# One view of a page; the slowest, of 32 members and 20,000 steps, takes seconds.
DEADLINE_S = 600


class ExportError(Exception):
    """What was asked for cannot be exported: one line with the reason and the remedy."""


@dataclass(frozen=True)
class Scope:
    """What is exported: one run at one revision, its steps (None before the first), and the members that are drawn, as
    `member_labels` calls them (none: all)."""

    source: Source
    window: Window | None
    members: tuple[str, ...]

    @property
    def info(self) -> RunInfo:
        return self.source.info

    def slots(self) -> list[int]:
        """The members that are drawn, ascending."""
        labels = member_labels(self.info)
        return [slot for slot, label in enumerate(labels) if label in self.members] or list(range(len(labels)))

    def address(self) -> dict[str, str | list[str]]:
        """The query of every page: these steps, whatever the run does meanwhile."""
        query: dict[str, str | list[str]] = {"run": self.info.uid, "live": "off"}
        if self.window is not None:
            query |= {"freeze": "true", "from": str(self.window.first), "to": str(self.window.last)}
        return query | ({"m": list(self.members)} if self.members else {})


def scope(url: str, run: str, steps: tuple[int | None, int | None], members: Sequence[str]) -> Scope:
    """What the options ask for. ExportError for steps or members that the run has not, StoreError for a run that the
    store has not; also names the store for the pages of this process."""
    os.environ[STORE_VARIABLE] = url
    source = Source.open(run)
    info = source.info
    return Scope(source, _window(info, steps), _labels(info, members))


def _window(info: RunInfo, steps: tuple[int | None, int | None]) -> Window | None:
    if info.first_step is None or info.last_step is None:
        if steps != (None, None):
            raise ExportError(f"run {info.uid}: no step is recorded yet; leave --steps out")
        return None
    first, last = steps[0] or info.first_step, steps[1] or info.last_step
    if not info.first_step <= first <= last <= info.last_step:
        raise ExportError(
            f"run {info.uid}: steps {first} to {last} are not among its recorded steps {info.first_step} to "
            f"{info.last_step}; change --steps"
        )
    return Window(first, last)


def _labels(info: RunInfo, members: Sequence[str]) -> tuple[str, ...]:
    """The members by name or by the label that addresses use."""
    known = member_labels(info)
    by_name = dict(zip((member.name for member in info.members), known, strict=True)) | {one: one for one in known}
    for name in members:
        if name not in by_name:
            raise ExportError(f"run {info.uid}: no member {name!r}; its members are: {', '.join(known)}")
    return tuple(by_name[name] for name in members)


def pages(names: Sequence[str]) -> list[Entry]:
    """The pages of these names, or all. ExportError for another name."""
    known = {entry.name: entry for entry in PAGES}
    for name in names:
        if name not in known:
            raise ExportError(f"no page {name!r}; the pages are: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)] if names else list(PAGES)


def sheet_of(entry: Entry, scope: Scope, theme: str, begin: Callable[[str], None] = lambda _: None) -> Sheet:
    """A page in all its views, each chart and table once. ExportError when it cannot be drawn."""
    views = entry.views(scope.source, scope.window) if scope.window is not None else ({},)
    whole: Sheet | None = None
    for view in views:
        begin(entry.title)
        drawn = _drawn(entry, {**scope.address(), **view}, theme)
        if whole is None:
            whole = drawn
        else:
            whole.take_new(drawn)
    assert whole is not None
    return whole


def _drawn(entry: Entry, address: Mapping[str, str | list[str]], theme: str) -> Sheet:
    session = AppTest.from_file(SCRIPT, default_timeout=DEADLINE_S)
    session.query_params.update(address)
    session.session_state["export_page"], session.session_state["export_theme"] = entry.path, theme
    session.run()
    if session.exception or "sheet" not in session.session_state:
        why = "; ".join(str(one.value) for one in session.exception) or "it drew nothing"
        raise ExportError(f"page {entry.title}: {' '.join(why.split())}")
    sheet: Sheet = session.session_state["sheet"]
    return sheet
