"""One browser for every test, and one server over a store of runs of every kind."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from dashboard.launch import Dashboard, serve
from server.store.writer import Writer, open_writer
from tests.dashboard.hostile_store import write_hostile
from tests.dashboard.showcase import MODELS, Showcase, write
from tests.dashboard.test_pages import end

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
MAIN = "[data-testid=stMainBlockContainer]"
WAIT_MS = 180_000
# On every page once it stands: its status line, or Compare's first control.
STANDS = "revision|Baseline"
Visit = Callable[..., "Tab"]


@dataclass
class Live:
    """A store with a run that is still being written and others that are over, and the server over them."""

    server: Dashboard
    writer: Writer
    scenario: Showcase
    url: str
    step: int

    def commit(self) -> int:
        self.step += 1
        self.writer.commit(self.scenario.step(self.step))
        return self.step


# Runs that are over: (scenario, steps committed, evaluated every so many steps, how it ended).
KINDS: dict[str, tuple[Showcase, int, int, str]] = {
    "two": (Showcase(members=MODELS[:2], steps=6, prompts=8), 6, 3, "finished"),
    "twelve": (Showcase(members=MODELS, steps=4, prompts=6), 3, 3, "finished"),
    "one step": (Showcase(steps=5, prompts=6), 1, 0, "finished"),
    "no number": (Showcase(steps=4, prompts=6, nan_loss_at=1), 4, 0, "finished"),
    "crashed": (Showcase(steps=6, prompts=6), 3, 0, "failed"),
}


def uid_of(kind: str) -> str:
    return kind.replace(" ", "_")


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    from dataclasses import replace

    url = f"sqlite:///{tmp_path_factory.mktemp('browser') / 'store.db'}"
    write_hostile(url)
    for kind, (scenario, until, every, status) in KINDS.items():
        writer = open_writer(url)
        write(writer, replace(scenario, uid=uid_of(kind), name=kind), until, every)
        end(writer, status)
    scenario = Showcase(steps=40, uid="live", name="live run")
    writer = open_writer(url)
    write(writer, scenario, 8, 4)
    with serve(url, port=0) as server:
        yield Live(server, writer, scenario, url, 8)
    writer.close()


@dataclass
class Tab:
    """A page of the browser that has loaded one of ours; `outside` lists requests that left the server."""

    page: Any
    outside: list[str] = field(default_factory=list)

    def text(self) -> str:
        return str(self.page.locator(MAIN).inner_text())

    def waits_for(self, pattern: str) -> str:
        """The page's text once it contains the pattern."""
        deadline = time.monotonic() + WAIT_MS / 1000
        while time.monotonic() < deadline:
            text = self.text()
            if re.search(pattern, text):
                return text
            self.page.wait_for_timeout(100)
        raise AssertionError(f"{pattern!r} did not appear in:\n{self.text()}")

    def waits_for_address(self, pattern: str) -> None:
        self.page.wait_for_url(re.compile(pattern), timeout=WAIT_MS)

    def settles(self) -> str:
        """The page's text once its script has ended and everything it sent is drawn."""
        self.page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=WAIT_MS)
        self.page.wait_for_function("() => !document.querySelector('[data-testid=stSkeleton]')", timeout=WAIT_MS)
        return self.text()


# Playwright's loop runs in this thread for as long as it is open, and asyncio.run refuses to start beside it.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, live: Live) -> Iterator[Visit]:
    """Open a path and wait until the page stands; afterwards nothing may have left the machine, and nothing raised.

    A page given as `tab` is used again; `theme` holds for a new one.
    """
    contexts: dict[str, Any] = {}
    tabs: list[Tab] = []

    def open_path(path: str, ready: str = STANDS, *, theme: str = "light", tab: Tab | None = None) -> Tab:
        if tab is None:
            if theme not in contexts:
                contexts[theme] = browser.new_context(viewport={"width": 1400, "height": 1200}, color_scheme=theme)
            tab = Tab(contexts[theme].new_page())
            tab.page.on("request", lambda request: None if ours(request.url) else tab.outside.append(request.url))
            tab.page.on("dialog", lambda dialog: tab.outside.append(f"dialog {dialog.message}") or dialog.dismiss())
            tabs.append(tab)
        tab.page.goto(live.server.url + path)
        tab.page.wait_for_selector(MAIN, timeout=WAIT_MS)
        tab.waits_for(ready)
        return tab

    def ours(url: str) -> bool:
        return url.startswith((live.server.url, live.server.url.replace("http", "ws"), "data:", "blob:"))

    yield open_path
    for tab in tabs:
        assert tab.outside == []
        assert tab.page.locator("[data-testid=stException]").count() == 0
        assert "could not be drawn" not in tab.text()
    for context in contexts.values():
        context.close()
