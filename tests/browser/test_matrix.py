"""Every page over every kind of run, in both themes: drawn whole, readable, and usable with the keyboard alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.app import PAGES
from dashboard.launch import serve
from tests.browser.checks import faults, focused
from tests.browser.conftest import KINDS, MAIN, WAIT_MS, Tab, Visit, uid_of

pytestmark = pytest.mark.browser

RUNS = ("live", *map(uid_of, KINDS))


@pytest.mark.parametrize("entry", PAGES, ids=lambda entry: entry.path or "overview")
def test_a_page_is_whole_for_every_kind_of_run(visit: Visit, entry: object) -> None:
    path = entry.path  # type: ignore[attr-defined]
    tabs: dict[str, Tab | None] = {"light": None, "dark": None}
    found = {}
    for place, run in enumerate(RUNS):
        # Each kind in one theme, each theme for half of the kinds: who is drawn does not depend on the colours.
        theme = ("light", "dark")[(place + len(path)) % 2]
        tab = tabs[theme] = visit(f"/{path}?run={run}&live=off", theme=theme, tab=tabs[theme])
        text = tab.settles()
        assert "could not be drawn" not in text, (run, text)
        wrong = faults(tab.page)
        if wrong:
            found[run, theme] = wrong
    assert not found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_chosen_runs_and_members_are_readable(visit: Visit, theme: str) -> None:
    tab = visit("/compare?run=twelve&live=off&runs=two&runs=twelve&m=Qwen3-1.7B", theme=theme)
    tab.page.locator("[data-tag]", has_text="Qwen3-1.7B").wait_for()
    assert "twelve" in tab.settles()
    assert faults(tab.page) == []


def test_an_empty_store_waits_on_every_page(browser: object, tmp_path: Path) -> None:
    with serve(f"sqlite:///{tmp_path / 'none.db'}", port=0) as server:
        context = browser.new_context(color_scheme="dark")  # type: ignore[attr-defined]
        tab = Tab(context.new_page())
        for entry in PAGES:
            tab.page.goto(f"{server.url}/{entry.path}")
            tab.page.wait_for_selector(MAIN, timeout=WAIT_MS)
            tab.waits_for("Nothing to show yet")
            assert tab.page.locator("[data-testid=stException]").count() == 0
        context.close()


@pytest.mark.parametrize("entry", PAGES, ids=lambda entry: entry.path or "overview")
def test_the_keyboard_reaches_every_control_and_leaves_it_again(visit: Visit, entry: object) -> None:
    tab = visit(f"/{entry.path}?run=two&live=off")  # type: ignore[attr-defined]
    tab.settles()
    tab.page.evaluate("document.activeElement.blur()")
    seen: list[str] = []
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        seen.append(focused(tab.page))
    reached = " | ".join(seen)
    for name in ("Run", "off", "Window", "Freeze", *(other.title for other in PAGES)):
        assert name in reached, (name, reached)
    assert len(set(seen)) > 12


def test_a_choice_is_made_with_the_keyboard_alone(visit: Visit) -> None:
    tab = visit("/?run=two&live=off")
    tab.settles()
    toggle = tab.page.get_by_role("switch", name="Freeze the range")
    toggle.focus()
    tab.page.keyboard.press("Space")
    tab.waits_for_address("freeze=true")
    tab.page.get_by_role("link", name="Trajectories", exact=True).first.focus()
    tab.settles()
    tab.page.keyboard.press("Enter")
    tab.waits_for("transfer 1 of")
    tab.settles()
    tab.page.keyboard.press("j")
    tab.waits_for("transfer 2 of")
    tab.page.keyboard.press("k")
    tab.waits_for("transfer 1 of")
