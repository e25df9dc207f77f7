"""The dashboard in a real browser: live refresh, clicks, links, and hostile text that must stay text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dashboard.app import PAGES
from server.store.reader import open_reader
from tests.browser.conftest import MAIN, WAIT_MS, Live, Tab, Visit

pytestmark = pytest.mark.browser


def cell_centre(tab: Tab, text: str) -> tuple[float, float]:
    """Where on the page a heatmap cell with this support text is."""
    chart = tab.page.locator("[data-testid=stVegaLiteChart]").first
    chart.locator("svg").wait_for(timeout=WAIT_MS)
    box = chart.locator("svg text", has_text=re.compile(f"^{re.escape(text)}$")).first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_deep_link_is_the_first_thing_a_fresh_server_shows(visit: Visit) -> None:
    tab = visit("/complementarity?live=off&cell=2-1")
    tab.waits_for(r"Llama-3.2-3B fails, SmolLM3-3B solves: \d+ of \d+ groups")
    tab.page.locator("[data-testid=stVegaLiteChart] svg").nth(2).wait_for(timeout=WAIT_MS)
    assert tab.page.locator("[data-testid=stSidebarNav]").count() == 0


def test_every_page_follows_the_run_without_a_reload(visit: Visit, live: Live) -> None:
    overview, complementarity = visit("/?live=2s"), visit("/complementarity")
    overview.waits_for(f"steps 1–{live.step} of 40")
    step = live.commit()
    overview.waits_for(f"steps 1–{step} of 40")
    complementarity.waits_for(f"steps 1–{step} of 40")
    charts = overview.page.locator("[data-testid=stVegaLiteChart] svg")
    charts.nth(2).wait_for(timeout=WAIT_MS)
    assert charts.count() == 3


def test_trajectories_and_a_page_with_refresh_off_stay_still(visit: Visit, live: Live) -> None:
    trajectories, still = visit("/trajectories", "own group"), visit("/?live=off")
    for tab in (trajectories, still):
        tab.settles()

    def status_lines() -> list[str]:
        return [tab.text().partition("\n")[0] for tab in (trajectories, still)]

    before = status_lines()
    live.commit()
    still.page.wait_for_timeout(2_500)
    assert status_lines() == before


def test_a_frozen_range_stays_while_the_run_goes_on_and_is_in_the_address(visit: Visit, live: Live) -> None:
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


def test_a_click_on_a_cell_selects_it_and_its_prompts_lead_to_the_responses(visit: Visit, live: Live) -> None:
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


def test_navigation_keeps_the_choices_of_the_sidebar(visit: Visit) -> None:
    tab = visit("/?live=10s&last=10")
    tab.settles()
    tab.page.get_by_role("link", name="Trajectories").first.click()
    tab.waits_for("transfer 1 of")
    tab.waits_for_address("live=10s")
    tab.waits_for_address("last=10")


@pytest.mark.parametrize("path", [*(f"/{entry.path}" for entry in PAGES), "/trajectories?view=Raw"])
def test_hostile_names_and_texts_stay_text(visit: Visit, path: str) -> None:
    tab = visit(path + ("&" if "?" in path else "?") + "run=hostile&live=off")
    tab.waits_for("evil")
    tab.settles()
    tab.page.wait_for_timeout(1_000)
    main = tab.page.locator(MAIN)
    links = [link.get_attribute("href") or "" for link in main.locator("a").all()]
    assert not [link for link in links if "evil" in link or "javascript" in link]
    assert all(re.match(r"(?!//)[a-z/.]*(\?|$)", link) for link in links), links
    assert main.locator("script, iframe, style, object, embed").count() == 0
    images = [image.get_attribute("src") or "" for image in main.locator("img").all()]
    assert not [image for image in images if not image.startswith(("data:", "/", "blob:"))]
    assert main.locator("h1, h2, h4, h5, blockquote").count() == 0
    assert tab.page.evaluate("window.pwned") is None
    if path == "/trajectories":
        assert "<script>window.pwned = 1</script>" in tab.text().replace("\u2060", "")
        main.locator(".katex").first.wait_for(state="attached", timeout=WAIT_MS)
        for node in main.locator(".katex a, .katex img").all():
            raise AssertionError(node.inner_html())
    if path == "/complementarity":
        assert links


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


# So many charts are drawn, and are the same nodes as a second ago; what a page loads first may be drawn twice.
DRAWN_FOR_A_WHILE = """fewest => {
  const charts = [...document.querySelectorAll('[data-testid=stVegaLiteChart]')];
  const same = charts.length === window.kept?.length && charts.every((chart, place) => chart === window.kept[place]);
  window.kept = charts;
  return charts.length >= fewest && same && charts.every(chart => chart.querySelector('svg'));
}"""


def test_charts_keep_their_nodes_while_data_come_in(visit: Visit, live: Live) -> None:
    fewest = {"?": 3, "complementarity?": 3, "training?": 3, "compare?runs=live&runs=two&": 1}
    tabs = [visit(f"/{path}live=2s") for path in fewest]
    for tab, charts in zip(tabs, fewest.values(), strict=True):
        tab.settles()
        tab.page.wait_for_function(DRAWN_FOR_A_WHILE, arg=charts, timeout=WAIT_MS, polling=1000)
    for _ in range(3):
        step = live.commit()
        for tab in tabs:
            tab.waits_for(f"steps 1–{step} of 40")
    for tab in tabs:
        tab.settles()
        assert tab.page.evaluate("window.kept.every(chart => chart.isConnected)")
        tab.page.wait_for_function("() => window.kept.every(chart => chart.querySelector('svg'))", timeout=WAIT_MS)


def test_every_page_keeps_run_range_and_members(visit: Visit) -> None:
    tab = visit("/?run=twelve&live=off&freeze=true&from=1&to=2&m=SmolLM3-3B")
    for entry in PAGES[1:]:
        tab.settles()
        tab.page.get_by_role("link", name=entry.title, exact=True).first.click()
        tab.waits_for_address(rf"/{entry.path}\?")
        tab.waits_for("Baseline" if entry.path == "compare" else "steps 1–2 of 4")
        for part in ("run=twelve", "live=off", "freeze=true", "from=1", "to=2", "m=SmolLM3-3B"):
            tab.waits_for_address(part)


def test_a_senseless_address_is_said_and_the_page_stands(visit: Visit) -> None:
    tab = visit("/?run=twelve&live=5s&last=3&freeze=perhaps&m=Nobody&from=x&to=-1")
    tab.settles()
    side = str(tab.page.locator("[data-testid=stSidebar]").inner_text())
    for name, value in (("live", "5s"), ("last", "3"), ("freeze", "perhaps"), ("m", "Nobody")):
        assert f"{name} = “{value}”" in side.replace("\u2060", "")
    assert "steps 1–3 of 4" in tab.text()


def test_a_search_and_its_place_are_a_link(visit: Visit) -> None:
    tab = visit("/trajectories?run=two&live=off&show=all+groups&q=Vieta", "group 1 of")
    tab.settles()
    assert re.search(r"searched the text of \d+ of \d+ places", tab.text())
    tab.page.keyboard.press("j")
    tab.waits_for("group 2 of")
    tab.waits_for_address(r"(?=.*q=Vieta)(?=.*step=\d+)(?=.*prompt=\d+)(?=.*receiver=\d)")
    again = visit(tab.page.url.partition("/trajectories")[1] + tab.page.url.partition("/trajectories")[2])
    again.waits_for("group 2 of")
    assert again.text().count("own group") == 1
