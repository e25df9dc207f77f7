"""Exports in a real browser: the report opens without a request, and a page hands out its charts and tables."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from server.store.reader import open_reader
from tests.browser.conftest import WAIT_MS, Live, Visit
from tests.dashboard.exporting import export

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_report_opens_without_a_request_or_an_error(live: Live, browser: Any, tmp_path: Path, theme: str) -> None:
    # In a process of its own: Playwright's loop runs in this one.
    done = export(live.url, tmp_path / "run", "--run", "hostile", "--only", "report", "--page", "transfers")
    assert done.returncode == 0, done.stderr
    context = browser.new_context(color_scheme=theme)
    page, requests, errors = context.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    address = (tmp_path / "run" / "report.html").as_uri()
    page.goto(address)
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert errors == []
    shown = page.evaluate("[...document.images].map(one => [one.naturalWidth, one.currentSrc])")
    assert len(shown) > 2
    assert all(width > 0 and source.startswith("data:") for width, source in shown)
    assert page.evaluate("window.pwned") is None
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if theme == "light" else "rgb(15, 20, 27)")
    context.close()


def test_a_page_hands_out_its_charts_and_tables_and_stands_still_meanwhile(visit: Visit, live: Live) -> None:
    tab = visit("/transfers?run=two&live=2s")
    tab.page.get_by_text("Export this page").click()
    tab.page.wait_for_selector("[data-testid=stExpander] [data-testid=stDownloadButton]", timeout=WAIT_MS)
    tab.settles()

    def saved(kind: str) -> tuple[str, bytes]:
        button = tab.page.locator(".st-key-export_transfers_rescue_" + kind).get_by_role("button")
        with tab.page.expect_download(timeout=WAIT_MS) as waiting:
            button.click()
        return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()

    name, content = saved("csv")
    assert name == "transfers_rescue.csv"
    table = pd.read_csv(io.BytesIO(content))
    with open_reader(live.url) as reader:
        counts = reader.member_counts("two", 1, 6)
    assert table["denominator"].sum() == counts["all_fail"].sum()
    assert table["numerator"].sum() == counts["received"].sum()
    assert pd.read_parquet(io.BytesIO(saved("parquet")[1])).shape == table.shape
    assert Image.open(io.BytesIO(saved("png")[1])).width > 1000
    assert saved("svg")[1].startswith(b"<svg")
