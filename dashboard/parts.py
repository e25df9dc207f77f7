"""What all pages share: the status line, cards, titles, and what is shown when there is nothing to show."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import charts, formats, safe_text
from dashboard.controls import Window
from dashboard.palette import Inks, inks
from dashboard.source import Source
from server.store.reader import RunInfo, StoreError

# A run writes a heartbeat every few seconds; silent for this long, it has probably been killed.
SILENT_S = 90.0
_STATUS_COLOURS = {"running": "green", "finished": "blue", "failed": "red", "interrupted": "orange", "silent": "orange"}

_log = logging.getLogger(__name__)


def colours() -> Inks:
    """The chart colours of the theme the browser shows."""
    return inks(st.context.theme.type)


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
    """A card's title: the quantity in bold, then what it is in plain words."""
    st.markdown(f"**{quantity}** &nbsp;:gray[{explanation}]", help=help_text)


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
        st.error(safe_text.inline(str(error)), icon=":material/database_off:")
    except Exception as error:
        _log.exception("a panel of the dashboard failed")
        st.error(f"This panel could not be drawn ({type(error).__name__}).", icon=":material/error:")


def side_by_side() -> Any:
    """Two panels a row where the window is wide enough, else one below the other."""
    return st.grid(2, min_column_width=400, vertical_alignment="center")


def curve_height(members: int) -> int:
    """Pixels of a chart of curves: the legend takes a line for every three members."""
    return 200 + 18 * -(-members // 3)


def chart(spec: charts.Spec, *, key: str, on_select: Any = "ignore", **frames: pd.DataFrame) -> Any:
    """Draw a specification with its frames, in our own look rather than Streamlit's."""
    return st.vega_lite_chart(
        charts.with_data(spec, **frames), width="stretch", theme=None, key=key, on_select=on_select
    )


def nothing(text: str) -> None:
    """Say that there is nothing here yet, and why."""
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


def labels(info: RunInfo, limit: int | None = None) -> list[str]:
    """Short, distinct and harmless names of the members, in slot order."""
    if limit is None:
        limit = 18 if len(info.members) <= 6 else 14
    return formats.abbreviate([member.name for member in info.members], limit)
