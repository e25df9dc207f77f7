"""The dashboard: navigation, sidebar, and the page in the one fragment that refreshes. Adding a page is a line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import streamlit as st

from dashboard import safe_text
from dashboard.controls import Choice, Pages, sidebar
from dashboard.pages import complementarity, overview, trajectories
from dashboard.source import Source, all_runs
from server.store.reader import StoreError

ASSETS = Path(__file__).resolve().parent / "assets"
RETRY_S = 2.0

Draw = Callable[[Source, Choice, Pages], None]

# One line a page: the address ("" is the start page), title, icon, what draws it, and whether it refreshes while live.
PAGES: tuple[tuple[str, str, str, Draw, bool], ...] = (
    ("", "Overview", ":material/monitoring:", overview.draw, True),
    ("complementarity", "Complementarity", ":material/grid_on:", complementarity.draw, True),
    ("trajectories", "Trajectories", ":material/compare_arrows:", trajectories.draw, False),
)


def main() -> None:
    """One script run: sidebar, then the page inside the one fragment that refreshes."""
    st.set_page_config("GRAFT population", page_icon=str(ASSETS / "icon.png"), layout="wide")
    st.html(ASSETS / "dashboard.css")
    choices: list[Choice] = []
    pages: dict[str, st.Page] = {}
    for path, title, icon, draw, live in PAGES:
        pages[path] = _page(path, title, icon, draw, live, choices, pages)
    current = st.navigation(list(pages.values()), position="top")
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


def _page(
    path: str, title: str, icon: str, draw: Draw, live: bool, choices: list[Choice], pages: dict[str, st.Page]
) -> st.Page:
    def run() -> None:
        choice = choices[0]
        every = choice.refresh_s if live else None
        st.fragment(_body, run_every=every, key=f"page_{path or 'overview'}")(draw, choice, pages)

    run.__name__ = path or "overview"
    return st.Page(run, title=title, icon=icon, url_path=path or None, default=not path)


def _body(draw: Draw, choice: Choice, pages: dict[str, st.Page]) -> None:
    try:
        source = Source.open(choice.run)
    except StoreError as error:
        st.error(safe_text.inline(str(error)), icon=":material/database_off:")
        return
    draw(source, choice, pages)


def _wait(reason: str) -> None:
    """Nothing to show yet: say why, and look again until there is."""
    with st.container(border=True):
        st.markdown("#### :material/hourglass_empty: Waiting for a run")
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
