"""The dashboard: navigation, sidebar, and the page in the one fragment that refreshes. Adding a page is a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from dashboard import entrance, safe_text, saving, sheet
from dashboard.controls import Choice, Window
from dashboard.pages import compare, complementarity, evaluation, overview, runs, training, trajectories, transfers
from dashboard.sidebar import keep_range_in_address, sidebar
from dashboard.source import Source, all_runs
from server.store.reader import StoreError

HERE = Path(__file__).resolve().parent
RETRY_S = 2.0


# Of a run and its steps: the addresses under which a page shows all that it can, for an export.
Views = Callable[[Source, Window], Iterable[Mapping[str, str]]]


def _one_view(source: Source, window: Window) -> list[Mapping[str, str]]:
    return [{}]


class Entry(NamedTuple):
    """One page: its address ("" is the start page), title, icon, what draws it, whether it refreshes while live, and
    its views."""

    path: str
    title: str
    icon: str
    draw: Callable[[Source, Choice], None]
    live: bool
    views: Views = _one_view

    @property
    def name(self) -> str:
        """The page's name in files and on the command line."""
        return self.path or "overview"


PAGES = (
    Entry("", "Overview", ":material/monitoring:", overview.draw, True),
    Entry(
        "complementarity", "Complementarity", ":material/grid_on:", complementarity.draw, True, complementarity.views
    ),
    Entry("transfers", "Transfers", ":material/swap_horiz:", transfers.draw, True, transfers.views),
    Entry("trajectories", "Trajectories", ":material/compare_arrows:", trajectories.draw, False, trajectories.views),
    Entry("training", "Training", ":material/model_training:", training.draw, True),
    Entry("evaluation", "Evaluation", ":material/leaderboard:", evaluation.draw, True),
    Entry("compare", "Compare", ":material/stacked_line_chart:", compare.draw, True),
    Entry("runs", "Runs & health", ":material/monitor_heart:", runs.draw, True),
)


def main() -> None:
    """One script run: sidebar, then the page inside the fragment that refreshes."""
    st.set_page_config("GRAFT population", page_icon=str(HERE / "icon.png"), layout="wide")
    st.html(HERE / "dashboard.css")
    if not entrance.passed():
        return
    choices: list[Choice] = []
    current = st.navigation([_page(entry, choices) for entry in PAGES], position="top")
    try:
        runs = all_runs()
    except StoreError as error:
        _wait(safe_text.inline(str(error)))
        return
    if not runs:
        _wait("This store has no run yet\\.")
        return
    choices.append(sidebar(runs))
    current.run()


def _page(entry: Entry, choices: list[Choice]) -> st.Page:
    """Streamlit's page; `choices` holds the sidebar's choice by the time it runs."""

    def run() -> None:
        every = choices[0].refresh_s if entry.live and not saving.is_open(entry.name) else None
        st.fragment(show, run_every=every, key=f"page_{entry.name}")(entry, choices[0])

    run.__name__ = entry.name
    return st.Page(run, title=entry.title, icon=entry.icon, url_path=entry.path or None, default=not entry.path)


def show(entry: Entry, choice: Choice) -> None:
    """The page as the store is now, or one line saying why it cannot be read."""
    keep_range_in_address(choice)
    try:
        source = Source.open(choice.run)
        with sheet.kept(st.context.theme.type) as page:
            entry.draw(source, choice)
    except StoreError as error:
        st.error(safe_text.inline(str(error)), icon=":material/database_off:")
        return
    saving.offer(entry.name, source, choice, page)


def kept_page(path: str, theme: str) -> sheet.Sheet:
    """The page of this address as the session's address asks for it, for an export."""
    entry = next(entry for entry in PAGES if entry.path == path)
    choice = sidebar(all_runs())
    with sheet.kept(theme) as page:
        entry.draw(Source.open(choice.run), choice)
    return page


def _wait(reason: str) -> None:
    """Nothing to show yet: say why, and look again until there is."""
    with st.container(border=True):
        st.subheader(":material/hourglass_empty: Nothing to show yet", anchor=False)
        st.markdown(reason)
        st.caption("This page looks again every two seconds.")
    st.fragment(_look_again, run_every=RETRY_S, key="wait")()


def _look_again() -> None:
    try:
        ready = bool(all_runs())
    except StoreError:
        return
    if ready:
        st.rerun()
