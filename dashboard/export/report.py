"""One HTML file of a whole run, which needs nothing else: no script, no request, both themes. Pure.

Everything that is not of this file goes through `html.escape`, in `words` or here. Charts are images within the page:
a browser runs nothing in an image and loads nothing for it, and their parts cannot get in each other's way.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from dashboard import formats, safe_text
from dashboard.export import words
from dashboard.export.subject import Subject
from dashboard.sheet import Chart, Item, Panel, Quote, Sheet, Table, Text

# A table of more rows is folded, one of still more is cut; the files have all.
FOLDED_ROWS, MOST_ROWS = 25, 500
MOST_CHARACTERS = 20_000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CSS = Path(__file__).with_name("report.css")

# (page's name, title, what it shows), in the order of the pages.
Section = tuple[str, str, Sheet]
# Theme -> (page's name, chart's name) -> SVG document.
Pictures = Mapping[str, Mapping[tuple[str, str], str]]


def document(subject: Subject, sections: Sequence[Section], pictures: Pictures, facts: Mapping[str, str]) -> str:
    """The report; `facts` stand at its head after the run's own."""
    title = f"{formats.clean(subject.info.name, 80)} · GRAFT population"
    body = "".join(part for section in sections for part in _section(section, pictures))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_CSS.read_text('utf-8')}</style>\n</head>\n<body>\n"
        f"{_head(subject, facts)}{_contents(sections)}<main>\n{body}</main>\n"
        "<footer>Intervals are 95 %; “–” is missing, never zero. Written by <code>graft export</code>.</footer>\n"
        "</body>\n</html>\n"
    )


def _head(subject: Subject, facts: Mapping[str, str]) -> str:
    info = subject.info
    members = ", ".join(formats.clean(member.name, 80) for member in info.members)
    rows = {
        "Run": formats.clean(info.uid, 100),
        "Method": formats.clean(info.method, 100),
        "Status": info.status + (f": {formats.clean(info.message, 600)}" if info.message else ""),
        "Steps": subject.steps(),
        "Members": f"{len(info.members)}: {members}",
        "Seed": str(info.seed),
        "Started": _moment(info.created),
        "Last heartbeat": _moment(info.heartbeat),
        **facts,
    }
    listed = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>\n" for key, value in rows.items())
    return f"<header>\n<h1>{escape(formats.clean(info.name, 120))}</h1>\n<dl>\n{listed}</dl>\n</header>\n"


def _moment(seconds: float | None) -> str:
    return formats.MISSING if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _contents(sections: Sequence[Section]) -> str:
    links = "".join(f'<li><a href="#{escape(name)}">{escape(title)}</a></li>\n' for name, title, _ in sections)
    return f"<nav>\n<ul>\n{links}</ul>\n</nav>\n"


def _section(section: Section, pictures: Pictures) -> Iterator[str]:
    page, title, sheet = section
    yield f'<section id="{escape(page)}">\n<h2>{escape(title)}</h2>\n'
    for panel in sheet.panels:
        yield from _panel(page, panel, pictures)
    yield "</section>\n"


def _panel(page: str, panel: Panel, pictures: Pictures) -> Iterator[str]:
    if panel.title:
        yield f"<h3>{words.html(panel.title)}</h3>\n"
    if panel.explanation:
        yield f'<p class="explained">{words.html(panel.explanation)}</p>\n'
    if panel.help:
        yield f'<p class="help">{words.html(panel.help)}</p>\n'
    for item in panel.items:
        yield _item(page, item, pictures)


def _item(page: str, item: Item, pictures: Pictures) -> str:
    if isinstance(item, Text):
        return (
            f'<p class="small">{words.html(item.markdown)}</p>\n'
            if item.small
            else f"<p>{words.html(item.markdown)}</p>\n"
        )
    if isinstance(item, Quote):
        return f"<p>{words.html(item.heading)}</p>\n{_quoted(item.written)}"
    if isinstance(item, Chart):
        return _figure(item, {theme: found[page, item.name] for theme, found in pictures.items()})
    if isinstance(item, Table) and item.shown is not None:
        return _table(item.shown, item.markdown)
    return ""


def _quoted(written: str) -> str:
    """What others wrote, as they wrote it; hidden characters by their number."""
    shown = safe_text.visible(written[:MOST_CHARACTERS]).encode("utf-8", "replace").decode()
    left = len(written) - MOST_CHARACTERS
    more = f'<p class="small">{left:,} more characters are in the store.</p>\n' if left > 0 else ""
    return f"<pre>{escape(shown)}</pre>\n{more}"


def _figure(chart: Chart, documents: Mapping[str, str]) -> str:
    dark = "dark" in documents and "light" in documents
    source = (
        f'<source media="screen and (prefers-color-scheme: dark)" srcset="{_data(documents["dark"])}">' if dark else ""
    )
    shown = documents["light" if dark else next(iter(documents))]
    image = f'<img src="{_data(shown)}" alt="{escape(chart.alt)}">'
    return f"<figure><picture>{source}{image}</picture></figure>\n"


def _data(document: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(document.encode()).decode()}"


def _table(frame: pd.DataFrame, markdown: bool) -> str:
    """As the page writes it; folded where it is long, cut where it is very long."""
    columns = [name for name in frame.columns if not _only_links(frame[name])]
    head = "".join(f"<th>{_head_cell(str(name), markdown)}</th>" for name in columns)
    rows = "".join(
        f"<tr>{''.join(_cell(value, markdown) for value in row)}</tr>\n"
        for row in frame[columns].head(MOST_ROWS).itertuples(index=False)
    )
    whole = f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n'
    if len(frame) <= FOLDED_ROWS:
        return whole
    count = f"{len(frame):,} rows" if len(frame) <= MOST_ROWS else f"the first {MOST_ROWS:,} of {len(frame):,} rows"
    return f"<details><summary>{count}</summary>\n{whole}</details>\n"


def _only_links(column: pd.Series) -> bool:
    """Links to pages of the dashboard lead nowhere here."""
    return len(column) > 0 and all(isinstance(one, str) and one.endswith(")") and "↗](" in one for one in column)


def _head_cell(name: str, markdown: bool) -> str:
    return words.html(name) if markdown else words.written(name.strip())


def _cell(value: Any, markdown: bool) -> str:
    if isinstance(value, str):
        return f"<td>{words.html(value) if markdown else words.written(value)}</td>"
    return f'<td class="number">{escape(_number(value))}</td>'


def _number(value: Any) -> str:
    """A number that the page shows as a number."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return formats.MISSING
    if isinstance(value, float):
        return f"{value:,.4g}".replace("-", "−")
    return formats.count(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
