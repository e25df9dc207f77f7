"""A whole run as files: a report, every table, every chart, and on demand every row."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from dashboard import formats
from dashboard.app import Entry
from dashboard.export import collect, files, folder, pictures, report, rows
from dashboard.export.collect import Scope
from dashboard.export.subject import Subject
from dashboard.palette import inks
from dashboard.sheet import Chart, File, Item, Panel, Table
from server.store.reader import open_reader

REPORT, TABLES, CHARTS = "report", "tables", "charts"
PARTS = (REPORT, TABLES, CHARTS)
# Every row of the store; by itself nobody wants them.
ROWS = "rows"
THEMES = ("light", "dark")
_PACKAGES = ("graft-population", "streamlit", "vl-convert-python", "pandas", "pyarrow")


@dataclass(frozen=True)
class Order:
    """What is wanted: which pages, which of PARTS and ROWS, and the theme of the pictures."""

    pages: Sequence[Entry]
    parts: Collection[str]
    theme: str


# Told what is begun, before it takes its time.
Told = Callable[[str], None]


def export(url: str, scope: Scope, order: Order, to: Path, *, overwrite: bool, told: Told) -> dict[str, int]:
    """Write the folder; how many files of each kind. Nothing is left of a fault. ExportError, StoreError."""
    subject = Subject.of(scope.source, scope.window, scope.slots())
    counts: dict[str, int] = {}
    with folder.written_whole(to, overwrite=overwrite) as place:
        if set(order.parts) - {ROWS}:
            counts |= _pages(scope, order, subject, place, told)
        if ROWS in order.parts:
            counts[ROWS] = _rows(url, scope, place, told)
        told("manifest")
        folder.write_manifest(place, _facts(subject, order))
    return counts


def _pages(scope: Scope, order: Order, subject: Subject, place: Path, told: Told) -> dict[str, int]:
    # The report has both themes; the pictures one.
    themes = THEMES if REPORT in order.parts else (order.theme,)
    sheets = {
        theme: [(entry.name, entry.title, collect.sheet_of(entry, scope, theme, told)) for entry in order.pages]
        for theme in themes
    }
    shown, counts = sheets[order.theme], {}
    if CHARTS in order.parts:
        counts[CHARTS] = _write_charts(shown, subject, order.theme, place / CHARTS, told)
    if TABLES in order.parts:
        counts[TABLES] = _write_tables(shown, place / TABLES, told)
    if REPORT in order.parts:
        drawn = {theme: _bare(found, theme, told) for theme, found in sheets.items()}
        text = report.document(subject, shown, drawn, _made(subject))
        (place / "report.html").write_bytes(text.encode("utf-8", "replace"))
        counts[REPORT] = 1
    return counts


def _made(subject: Subject) -> dict[str, str]:
    return {
        "Exported": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "Store revision": formats.count(subject.revision),
        "Version": f"graft-population {metadata.version('graft-population')}",
    }


def _items(sheets: Sequence[report.Section]) -> Iterator[tuple[str, Panel, Item]]:
    """(page's name, panel, item) of everything on some pages."""
    for page, _, sheet in sheets:
        for panel in sheet.panels:
            yield from ((page, panel, item) for item in panel.items)


def _bare(sheets: Sequence[report.Section], theme: str, told: Told) -> dict[tuple[str, str], str]:
    """{(page's name, chart's name): SVG document} for the report, which says itself what a chart shows."""
    found = {}
    for page, _, item in _items(sheets):
        if isinstance(item, Chart):
            told(f"report: {item.name}")
            found[page, item.name] = pictures.svg(item, inks(theme))
    return found


def _write_charts(sheets: Sequence[report.Section], subject: Subject, theme: str, place: Path, told: Told) -> int:
    place.mkdir()
    written = 0
    for page, panel, item in _items(sheets):
        if isinstance(item, Chart):
            told(f"chart {item.name}")
            document, stem = pictures.of_panel(item, panel, subject, theme), place / files.stem(page, item.name)
            stem.with_suffix(".svg").write_text(document, "utf-8")
            stem.with_suffix(".png").write_bytes(pictures.png(document))
            written += 2
    return written


def _write_tables(sheets: Sequence[report.Section], place: Path, told: Told) -> int:
    """Tables as CSV and Parquet, and what has a format of its own."""
    place.mkdir()
    written = 0
    for page, _, item in _items(sheets):
        if isinstance(item, Table):
            told(f"table {item.name}")
            table, stem = item.data(), place / files.stem(page, item.name)
            stem.with_suffix(".csv").write_bytes(files.csv(table))
            stem.with_suffix(".parquet").write_bytes(files.parquet(table))
            written += 2
        elif isinstance(item, File):
            (place / f"{files.stem(page, item.name)}.{item.suffix}").write_bytes(item.make())
            written += 1
    return written


def _rows(url: str, scope: Scope, place: Path, told: Told) -> int:
    place = place / ROWS
    place.mkdir()
    with open_reader(url) as reader:
        for table in reader.tables():
            told(f"rows of {table}")
            rows.write(reader, scope.info.uid, table, place)
        return 2 * len(reader.tables())


def _facts(subject: Subject, order: Order) -> dict[str, Any]:
    info, window = subject.info, subject.window
    return {
        "run": info.uid,
        "name": info.name,
        "method": info.method,
        "status": info.status,
        "revision": subject.revision,
        "steps": None if window is None else [window.first, window.last],
        "members": [info.members[slot].name for slot in subject.slots],
        "pages": [entry.name for entry in order.pages],
        "parts": sorted(order.parts),
        "theme": order.theme,
        "exported": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES},
    }
