"""Export this page: every chart and table of a page as a file, at its foot.

Closed, it costs a refresh one element; a file is made when its button is pressed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import streamlit as st

from dashboard import safe_text
from dashboard.controls import Choice
from dashboard.export import files, pictures, words
from dashboard.export.subject import Subject
from dashboard.sheet import Chart, File, Item, Panel, Sheet, Table
from dashboard.source import Source

# The page whose box is open, in the session's state.
_OPEN = "export_open"


def is_open(page: str) -> bool:
    """Whether this page's box is open. It must not refresh then: Streamlit gives up a file that is being made when the
    page is drawn again."""
    return bool(st.session_state.get(_OPEN) == page)


def offer(page: str, source: Source, choice: Choice, sheet: Sheet) -> None:
    """The buttons, once the reader opens their box."""
    if not any(panel.names() for panel in sheet.panels):
        return
    with st.expander("Export this page", icon=":material/download:", key=f"export_{page}", on_change="rerun") as box:
        if box.open != is_open(page):
            st.session_state[_OPEN] = page if box.open else None
            st.rerun()
        if not box.open:
            return
        st.caption(
            "Pictures as they are here, in this theme; tables whole, with raw numbers. The page does not refresh while "
            "this is open. `graft export` writes a whole run as one report, with all of these."
        )
        subject = Subject.of(source, choice.window(source.info), choice.slots(source.info))
        for panel in sheet.panels:
            _panel(page, subject, panel, sheet.theme)


def _panel(page: str, subject: Subject, panel: Panel, theme: str) -> None:
    """A line for every name: a chart and the numbers behind it have the same."""
    for name in dict.fromkeys(one.name for one in panel.items if isinstance(one, Chart | Table | File)):
        with st.container(horizontal=True, vertical_alignment="center"):
            title = words.plain(panel.title) or "Table"
            st.markdown(f"{safe_text.inline(title)} &nbsp;:gray[{safe_text.inline(name)}]", width=460)
            for item in panel.items:
                for suffix, mime, make in _kinds(item, subject, panel, theme) if _called(item, name) else ():
                    st.download_button(
                        suffix.upper() if len(suffix) < 4 else suffix.capitalize(),
                        make,
                        file_name=f"{files.stem(page, name)}.{suffix}",
                        mime=mime,
                        on_click="ignore",
                        key=f"export_{name}_{suffix}",
                        type="tertiary",
                    )


def _called(item: Item, name: str) -> bool:
    return isinstance(item, Chart | Table | File) and item.name == name


def _kinds(item: Item, subject: Subject, panel: Panel, theme: str) -> list[tuple[str, str, Callable[[], bytes]]]:
    """(suffix, MIME type, what makes it) of every file of an item."""
    if isinstance(item, Chart):
        picture = partial(pictures.of_panel, item, panel, subject, theme)
        return [
            ("png", "image/png", lambda: pictures.png(picture())),
            ("svg", "image/svg+xml", lambda: picture().encode()),
        ]
    if isinstance(item, Table):
        return [
            ("csv", "text/csv", lambda: files.csv(item.data())),
            ("parquet", "application/vnd.apache.parquet", lambda: files.parquet(item.data())),
        ]
    return [(item.suffix, item.mime, item.make)] if isinstance(item, File) else []
