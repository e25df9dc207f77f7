"""The dashboard in a real browser: live refresh, clicks, links, and hostile text that must stay text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dashboard.launch import Dashboard, serve
from server.store.reader import open_reader
from server.store.writer import Writer, open_writer
from tests.dashboard.showcase import MODELS, Showcase, write
from tests.dashboard.test_pages import HOSTILE, HOSTILE_NAMES, end

pytestmark = pytest.mark.browser

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
MAIN = "[data-testid=stMainBlockContainer]"
WAIT_MS = 60_000


@dataclass
class Live:
    """A store with a run that is still being written, a hostile and a large one, and the server over them."""

    server: Dashboard
    writer: Writer
    scenario: Showcase
    url: str
    step: int

    def commit(self) -> int:
        self.step += 1
        self.writer.commit(self.scenario.step(self.step))
        return self.step


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    url = f"sqlite:///{tmp_path_factory.mktemp('browser') / 'store.db'}"
    hostile = Showcase(members=HOSTILE_NAMES, steps=3, prompts=6, uid="hostile", name=HOSTILE, mark=HOSTILE)
    twelve = Showcase(members=MODELS, steps=4, prompts=6, uid="twelve", name="twelve")
    for scenario in (hostile, twelve):
        writer = open_writer(url)
        write(writer, scenario, 3, 3)
        end(writer, "finished")
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
    outside: list[str]

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


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, live: Live) -> Iterator[Any]:
    """Open a path and wait until the page stands; afterwards nothing may have left the machine, and nothing raised."""
    context = browser.new_context(viewport={"width": 1400, "height": 1200}, color_scheme="light")
    tabs: list[Tab] = []

    def open_path(path: str, ready: str = "revision") -> Tab:
        page = context.new_page()
        outside: list[str] = []
        page.on("request", lambda request: None if ours(request.url) else outside.append(request.url))
        page.on("dialog", lambda dialog: outside.append(f"dialog {dialog.message}") or dialog.dismiss())
        page.goto(live.server.url + path)
        page.wait_for_selector(MAIN, timeout=WAIT_MS)
        tab = Tab(page, outside)
        tabs.append(tab)
        tab.waits_for(ready)
        return tab

    def ours(url: str) -> bool:
        return url.startswith((live.server.url, live.server.url.replace("http", "ws"), "data:", "blob:"))

    yield open_path
    for tab in tabs:
        assert tab.outside == []
        assert tab.page.locator("[data-testid=stException]").count() == 0
        assert "could not be drawn" not in tab.text()
    context.close()


def cell_centre(tab: Tab, text: str) -> tuple[float, float]:
    """Where on the page a heatmap cell with this support text is."""
    chart = tab.page.locator("[data-testid=stVegaLiteChart]").first
    chart.locator("svg").wait_for(timeout=WAIT_MS)
    box = chart.locator("svg text", has_text=re.compile(f"^{re.escape(text)}$")).first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_deep_link_is_the_first_thing_a_fresh_server_shows(visit: Any) -> None:
    tab = visit("/complementarity?live=off&cell=2-1")
    assert re.search(r"Llama-3.2-3B fails, SmolLM3-3B solves: \d+ of \d+ groups", tab.text())
    tab.page.locator("[data-testid=stVegaLiteChart] svg").nth(2).wait_for(timeout=WAIT_MS)
    assert tab.page.locator("[data-testid=stSidebarNav]").count() == 0


def test_every_page_follows_the_run_without_a_reload(visit: Any, live: Live) -> None:
    overview, complementarity = visit("/?live=2s"), visit("/complementarity")
    overview.waits_for(f"steps 1–{live.step} of 40")
    step = live.commit()
    overview.waits_for(f"steps 1–{step} of 40")
    complementarity.waits_for(f"steps 1–{step} of 40")
    charts = overview.page.locator("[data-testid=stVegaLiteChart] svg")
    charts.nth(2).wait_for(timeout=WAIT_MS)
    assert charts.count() == 3


def test_trajectories_and_a_page_with_refresh_off_stay_still(visit: Any, live: Live) -> None:
    trajectories, still = visit("/trajectories", "own group"), visit("/?live=off")

    def status_lines() -> list[str]:
        return [tab.text().partition("\n")[0] for tab in (trajectories, still)]

    before = status_lines()
    live.commit()
    still.page.wait_for_timeout(2_500)
    assert status_lines() == before


def test_a_frozen_range_stays_while_the_run_goes_on_and_is_in_the_address(visit: Any, live: Live) -> None:
    tab = visit("/?live=2s&last=10")
    last = live.step
    first = max(1, last - 9)
    tab.waits_for(f"steps {first}–{last} of 40")
    tab.page.get_by_text("Freeze the range").click()
    tab.waits_for_address(rf"(?=.*freeze=true)(?=.*from={first}\b)(?=.*to={last}\b)")
    tab.page.wait_for_selector("[data-testid=stSidebar] [data-testid=stNumberInput]", timeout=WAIT_MS)
    revision = re.search(r"revision (\d+)", tab.text()).group(1)
    live.commit()
    tab.waits_for(rf"revision (?!{revision}\b)\d+")
    assert f"steps {first}–{last} of 40" in tab.text()
    tab.waits_for_address(rf"(?=.*freeze=true)(?=.*from={first}\b)(?=.*to={last}\b)")
    again = visit(tab.page.url.removeprefix(live.server.url))
    again.waits_for(f"steps {first}–{last} of 40")


def test_a_click_on_a_cell_selects_it_and_its_prompts_lead_to_the_responses(visit: Any, live: Live) -> None:
    tab = visit("/complementarity?live=off")
    with open_reader(live.url) as store:
        pairs = store.pair_counts("live", 1, live.step)
        names = [member.name for member in store.run("live").members]
    # Rows of different support can be told apart by it; the first text of a support is the row's first column.
    support = pairs["both_attempted_fail"]
    row = next(
        i
        for i in range(3)
        if (support == support[i].max()).any(axis=1).sum() == 1 and pairs["solved"][i].max() != pairs["solved"].max()
    )
    column = 1 if row == 0 else 0
    tab.page.mouse.click(*cell_centre(tab, f"n = {support[row].max():,}"))
    tab.waits_for_address(f"cell={row}-{column}")
    tab.waits_for(
        f"{re.escape(names[row])} fails, {re.escape(names[column])} solves: {pairs['solved'][row, column]} of"
    )
    tab.waits_for(f"{re.escape(names[row])} fails: who solves")
    link = tab.page.locator("[data-testid=stTable] a").first
    with tab.page.context.expect_page() as opened:
        link.click()
    opened.value.wait_for_selector(MAIN, timeout=WAIT_MS)
    there = Tab(opened.value, [])
    text = there.waits_for(r"own group · 0/8 solved")
    assert names[row] in text
    assert re.search(r"step=\d+&prompt=\d+&receiver=\d", opened.value.url)


def test_navigation_keeps_the_choices_of_the_sidebar(visit: Any) -> None:
    tab = visit("/?live=10s&last=10")
    tab.page.get_by_role("link", name="Trajectories").first.click()
    tab.waits_for("transfer 1 of")
    tab.waits_for_address("live=10s")
    tab.waits_for_address("last=10")


@pytest.mark.parametrize("path", ["/", "/complementarity", "/trajectories", "/trajectories?view=Raw"])
def test_hostile_names_and_texts_stay_text(visit: Any, path: str) -> None:
    tab = visit(path + ("&" if "?" in path else "?") + "run=hostile&live=off", "evil" if "traj" in path else "revision")
    tab.page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=WAIT_MS)
    tab.page.wait_for_timeout(1_500)
    main = tab.page.locator(MAIN)
    addresses = [link.get_attribute("href") or "" for link in main.locator("a").all()]
    assert all(address.startswith("trajectories?") for address in addresses)
    assert main.locator("script, iframe").count() == 0
    assert [
        image.get_attribute("src")
        for image in main.locator("img").all()
        if "evil" in (image.get_attribute("src") or "")
    ] == []
    assert main.locator("h1, h2, h4, h5").count() == 0
    if path == "/trajectories":
        assert "<script>alert(1)</script> ![x](https://evil.invalid/x.png) :material/home: www.evil.invalid" in (
            tab.text().replace("\u2060", "")
        )
        main.locator(".katex").first.wait_for(state="attached", timeout=WAIT_MS)
    if path == "/complementarity":
        assert len(addresses) > 0


def test_the_page_works_in_the_dark_and_narrow_and_with_many_members(browser: Any, live: Live) -> None:
    context = browser.new_context(viewport={"width": 1000, "height": 900}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{live.server.url}/complementarity?run=twelve&live=off")
    chart = page.locator("[data-testid=stVegaLiteChart]").first
    chart.locator("svg").wait_for(timeout=WAIT_MS)
    page.wait_for_timeout(500)
    assert page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor") == "rgb(15, 20, 27)"
    assert chart.locator("svg text", has_text=re.compile(r"^n ")).count() == 12 * 11
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth") <= 1000
    drawn = chart.locator("svg").bounding_box()
    assert drawn["x"] + drawn["width"] <= 1000
    context.close()
