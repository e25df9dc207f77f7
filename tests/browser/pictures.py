"""Pictures of the pages for the documentation: `python -m tests.browser.pictures STORE_URL FOLDER`.

Every page in light and dark at 1400 x 900, compressed; Trajectories at a group the gate was of two minds about.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

from PIL import Image

from dashboard.launch import serve
from server.store.reader import open_reader
from tests.conftest import find_chromium

SIZE = {"width": 1400, "height": 900}
LARGEST_BYTES = 250_000


def telling_group(url: str) -> str:
    """Query string of the newest transferred group with both admitted and refused responses."""
    with open_reader(url) as store:
        run = store.run("latest")
        slots = {member.name: slot for slot, member in enumerate(run.members)}
        rows, _ = store.transfers(run.uid, run.first_step or 1, run.last_step or 1, verdict="admitted", limit=2_000)
    if not rows:
        return ""
    row = max(rows, key=lambda row: (min(row.admitted, row.refused_floor), row.step))
    return f"step={row.step}&prompt={row.prompt}&receiver={slots[row.receiver]}"


def compressed(png: bytes) -> bytes:
    """The picture as it is where it is small enough, else with a palette of its own."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    for reduced in (image, image.quantize(256), image.quantize(64)):
        out = io.BytesIO()
        reduced.save(out, "PNG", optimize=True)
        if out.tell() < LARGEST_BYTES:
            break
    return out.getvalue()


def settle(page: Any) -> None:
    """Wait until the page has drawn what it has."""
    page.wait_for_selector("[data-testid=stMainBlockContainer] [data-testid=stVegaLiteChart] svg", timeout=60_000)
    page.wait_for_function("() => !document.querySelector('[data-testid=stSkeleton]')", timeout=60_000)
    page.wait_for_timeout(2_500)


def main() -> None:
    """The command line."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    paths = {
        "overview": "/?",
        "complementarity": "/complementarity?",
        "trajectories": f"/trajectories?{telling_group(given.url)}",
    }
    with serve(given.url, port=0) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        for theme in ("light", "dark"):
            page = browser.new_context(viewport=SIZE, color_scheme=theme).new_page()
            for name, path in paths.items():
                page.goto(server.url + path)
                settle(page)
                picture = given.folder / f"{name}_{theme}.png"
                picture.write_bytes(compressed(page.screenshot()))
                print(f"{picture}: {picture.stat().st_size // 1000} kB")
        browser.close()


if __name__ == "__main__":
    main()
