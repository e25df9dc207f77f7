"""Pictures of every page for docs/images: `.venv/bin/python tools/screenshots.py STORE_URL [--run UID --baseline UID]`.

Each page in light and dark at 1400 x 900, compressed; Trajectories at a group the gate was of two minds about. With a
baseline, Evaluation is against that run, and Compare shows both runs with all their seeds. Needs a Chromium and the
`test` extra.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from dashboard.app import PAGES
from dashboard.launch import serve
from server.store.reader import open_reader

SIZE = {"width": 1400, "height": 900}
LARGEST_BYTES = 250_000
WAIT_MS = 60_000


def query(url: str, path: str, run: str, baseline: str | None) -> str:
    """What the address of a page asks for, besides its run."""
    if path == "trajectories":
        return telling_group(url, run)
    if path == "evaluation" and baseline:
        return f"&against={baseline}"
    if path == "compare" and baseline:
        return f"&sets=true&runs={baseline}&runs={run}"
    return ""


def telling_group(url: str, uid: str) -> str:
    """Query string of the newest transferred group with both admitted and refused responses."""
    with open_reader(url) as store:
        run = store.run(uid)
        slots = {member.name: slot for slot, member in enumerate(run.members)}
        rows, _ = store.transfers(run.uid, run.first_step or 1, run.last_step or 1, verdict="admitted", limit=2_000)
    if not rows:
        return ""
    row = max(rows, key=lambda row: (min(row.admitted, row.refused_floor), row.step))
    return f"&step={row.step}&prompt={row.prompt}&receiver={slots[row.receiver]}&source={slots[row.source]}"


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
    page.wait_for_selector("[data-testid=stMainBlockContainer]", timeout=WAIT_MS)
    page.wait_for_function("() => /revision|Baseline/.test(document.body.innerText)", timeout=WAIT_MS)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=WAIT_MS)
    page.wait_for_function("() => !document.querySelector('[data-testid=stSkeleton]')", timeout=WAIT_MS)
    page.wait_for_timeout(2_500)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--run", default="latest", metavar="UID")
    parser.add_argument("--baseline", metavar="UID")
    parser.add_argument("--into", type=Path, default=Path("docs/images"))
    given = parser.parse_args()
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        sys.exit("no Chromium on this machine: apt-get install chromium")
    given.into.mkdir(parents=True, exist_ok=True)
    with serve(given.url, port=0) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        for theme in ("light", "dark"):
            page = browser.new_context(viewport=SIZE, color_scheme=theme).new_page()
            for entry in PAGES:
                more = query(given.url, entry.path, given.run, given.baseline)
                page.goto(f"{server.url}/{entry.path}?live=off&run={given.run}{more}")
                settle(page)
                picture = given.into / f"{entry.path or 'overview'}_{theme}.png"
                picture.write_bytes(compressed(page.screenshot()))
                print(f"{picture}: {picture.stat().st_size // 1000} kB")
        browser.close()


if __name__ == "__main__":
    main()
