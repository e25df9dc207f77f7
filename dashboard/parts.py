"""What all pages share: the status line, cards, titles, and what is shown when there is nothing to show."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import charts, formats, safe_text, sheet
from dashboard.controls import Window
from dashboard.palette import Inks, inks
from dashboard.sheet import Numbers
from dashboard.source import Source
from server.store.reader import RunInfo, StoreError

# A run writes a heartbeat every few seconds; silent for this long, it has probably been killed.
SILENT_S = 90.0
_STATUS_COLOURS = {"running": "green", "finished": "blue", "failed": "red", "interrupted": "orange", "silent": "orange"}

_log = logging.getLogger(__name__)


def colours() -> Inks:
    """The chart colours of the theme the browser shows, or of the sheet that is kept."""
    keeping = sheet.current()
    return inks(st.context.theme.type if keeping is None else keeping.theme)


def status(info: RunInfo, now: float | None = None) -> str:
    """The run's status; "silent" for one that calls itself running and has stopped saying so."""
    now = time.time() if now is None else now
    if info.status == "running" and info.heartbeat is not None and now - info.heartbeat > SILENT_S:
        return "silent"
    return info.status


def status_badge(info: RunInfo) -> str:
    """The status as a Markdown badge; its text says it, the colour only repeats it."""
    word = status(info)
    return f":{_STATUS_COLOURS.get(word, 'gray')}-badge[{word}]"


def status_line(source: Source, window: Window | None) -> None:
    """Which run, which steps, which revision, and how old what is shown is."""
    info = source.info
    steps = f"{window} of {formats.count(info.total_steps)}" if window else "no step yet"
    newest = source.newest_step()
    parts = [
        f"**{safe_text.inline(formats.clean(info.name, 60))}**",
        safe_text.inline(formats.clean(info.method, 40)),
        steps,
        *([f"newest step {formats.ago(newest.committed)}"] if newest else []),
        life(info),
        f"revision {formats.count(source.revision)}",
        f"read at {time.strftime('%H:%M:%S')}",
    ]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(" · ".join(parts), width="content")
        st.markdown(status_badge(info), width="content")
    _notice(info)


def life(info: RunInfo) -> str:
    """When the run was last heard of."""
    word = status(info)
    if word == "silent":
        return f"writer silent since {formats.moment(info.heartbeat)}"
    return f"{'heartbeat' if word == 'running' else 'ended'} {formats.ago(info.heartbeat)}"


def _notice(info: RunInfo) -> None:
    """Why a run stopped, when it did not simply finish."""
    word, message = status(info), safe_text.inline(formats.clean(info.message, 600)) if info.message else ""
    if word == "failed":
        st.error(f"The run failed. {message}", icon=":material/error:")
    elif word == "interrupted":
        st.warning(f"The run was interrupted. {message}", icon=":material/pause_circle:")
    elif word == "silent":
        st.warning(
            f"No sign of life for {formats.duration(time.time() - (info.heartbeat or 0))}: the run was probably "
            "killed. What it committed is shown; `graft train CONFIG --resume` goes on from its last checkpoint.",
            icon=":material/heart_broken:",
        )


def title(quantity: str, explanation: str, help_text: str | None = None) -> None:
    """A card's title: the quantity in bold, then what it is in plain words. In an export a section begins here."""
    st.markdown(f"**{quantity}** &nbsp;:gray[{explanation}]", help=help_text)
    begin(quantity, explanation, help_text)


def titled(heading: str, lines: list[str]) -> None:
    """A heading with some short lines below it."""
    begin(heading)
    _keep(sheet.Text("  \n".join(lines)))
    st.markdown("  \n".join([f"**{heading}**", *lines]))


def begin(quantity: str, explanation: str = "", help_text: str | None = None) -> None:
    """Begin a section of an export where the page needs no title, or has another one."""
    keeping = sheet.current()
    if keeping is not None:
        keeping.begin(quantity, explanation, help_text)


def _keep(item: sheet.Item) -> None:
    keeping = sheet.current()
    if keeping is not None:
        keeping.add(item)


@contextmanager
def card(stretch: bool = True) -> Iterator[None]:
    """A bordered card whose failure stays its own: the rest of the page is still drawn."""
    with st.container(border=True, height="stretch" if stretch else "content", gap="small"), guarded():
        yield


@contextmanager
def guarded() -> Iterator[None]:
    """Turn a fault of one panel into one line in its place; the traceback goes to the server's log."""
    try:
        yield
    except StoreError as error:
        _fault(safe_text.inline(str(error)), "database_off")
    except Exception as error:
        _log.exception("a panel of the dashboard failed")
        _fault(f"This panel could not be drawn ({type(error).__name__}).", "error")


def _fault(markdown: str, icon: str) -> None:
    _keep(sheet.Text(markdown))
    st.error(markdown, icon=f":material/{icon}:")


def side_by_side() -> Any:
    """Two panels a row where the window is wide enough, else one below the other."""
    return st.grid(2, min_column_width=400, vertical_alignment="center")


def curve_height(members: int) -> int:
    """Pixels of a chart of curves: the legend takes a line for every three members."""
    return 200 + 18 * -(-members // 3)


def chart(
    spec: charts.Spec, *, key: str, data: Numbers | None = None, on_select: Any = "ignore", **frames: pd.DataFrame
) -> Any:
    """Draw a specification with its frames, in our own look rather than Streamlit's. `data`: the numbers behind it, for
    files; by itself its first frame."""
    whole = charts.with_data(spec, **frames)
    _keep(sheet.Chart(key, whole, spec["description"]))
    _keep(sheet.Table(key, data or (lambda: next(iter(frames.values())))))
    return st.vega_lite_chart(whole, width="stretch", theme=None, key=key, on_select=on_select)


def diagram(option: charts.Spec, *, key: str, height: int, alt: str, data: Numbers) -> None:
    """Draw an ECharts option; `alt` says the same in words, `data` in numbers, for files."""
    _keep(sheet.Chart(key, option | {"height": height}, alt))
    _keep(sheet.Table(key, data))
    st.echarts_chart(option, width="stretch", height=height, theme=None, key=key, alt=alt)


def table(shown: pd.DataFrame, *, key: str, data: Numbers, alt: str) -> None:
    """A short table whose cells are Markdown; `data`: the numbers behind it, for files."""
    _keep(sheet.Table(key, data, shown, markdown=True))
    st.table(shown, border="horizontal", hide_index=True, alt=alt)


def sortable_table(
    shown: Any, *, key: str, data: Numbers | None = None, text: pd.DataFrame | None = None, **look: Any
) -> None:
    """A table that the reader sorts. `data`: the numbers behind it, for files, by itself what is shown; `text`: what is
    shown of it where that is more than text and numbers; `look` is `st.dataframe`'s."""
    written = shown if text is None else text
    _keep(sheet.Table(key, data or (lambda: written), written))
    st.dataframe(shown, hide_index=True, key=key, **look)


def numbers(key: str, data: Numbers, shown: pd.DataFrame | None = None) -> None:
    """Numbers that the page says in another way than in a table; `shown`: how an export writes them."""
    _keep(sheet.Table(key, data, shown))


def file(label: str, *, key: str, suffix: str, mime: str, make: Callable[[], bytes]) -> None:
    """A file in a format of its own, made when it is asked for."""
    _keep(sheet.File(key, suffix, mime, make))
    st.download_button(
        label,
        make,
        file_name=f"{key}.{suffix}",
        mime=mime,
        on_click="ignore",
        icon=":material/download:",
        key=f"{key}_{suffix}",
    )


def text(markdown: str, **look: Any) -> None:
    """A sentence or a list; `look` is `st.markdown`'s."""
    _keep(sheet.Text(markdown))
    st.markdown(markdown, **look)


def caption(markdown: str, **look: Any) -> None:
    """What is to be known about the panel above; `look` is `st.caption`'s."""
    _keep(sheet.Text(markdown, small=True))
    st.caption(markdown, **look)


def warn(markdown: str, icon: str = "warning") -> None:
    """What a reader must not miss."""
    _keep(sheet.Text(markdown))
    st.warning(markdown, icon=f":material/{icon}:")


def quote(heading: str, written: str) -> None:
    """What a model or a data set wrote, for an export; the page has drawn it."""
    _keep(sheet.Quote(heading, written))


def cut_note(shown: int, asked: int, which: str) -> None:
    """Say that a chart draws only some of the chosen members, where it does: `which` ones."""
    if shown < asked:
        caption(f"The {shown} of {asked} members {which}; the sidebar chooses others.")


def nothing(text: str) -> None:
    """Say that there is nothing here yet, and why."""
    _keep(sheet.Text(text, small=True))
    st.markdown(f":gray[:material/hourglass_empty: {text}]")


def exchanges(info: RunInfo) -> bool:
    """Whether the run's method moves groups between members: all but the rows of GRPO alone do."""
    return info.method != "grpo" and not info.method.startswith("grpo-")


def no_steps(info: RunInfo) -> None:
    """The page of a run that has not committed a step."""
    with st.container(border=True):
        if info.status == "running":
            title("Waiting for the first step.", "Its numbers come with the first commit.")
        else:
            title("No step was committed.", f"The run is {info.status}.")


def names(info: RunInfo) -> list[str]:
    """The members' names in slot order, whole, as files have them."""
    return [member.name for member in info.members]


def labels(info: RunInfo, limit: int | None = None) -> list[str]:
    """Short, distinct and harmless names of the members, in slot order."""
    if limit is None:
        limit = 18 if len(info.members) <= 6 else 14
    return formats.abbreviate([member.name for member in info.members], limit)
