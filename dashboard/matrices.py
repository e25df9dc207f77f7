"""The panel of N x N matrices: one measure over the window, or in consecutive windows side by side."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import streamlit as st

from dashboard import charts_population, formats, frames, frames_files, frames_population, health, parts, responses
from dashboard.controls import Window, pick, switch
from dashboard.measures import MEASURES, WITHOUT_EXCHANGE, Measure, Values, with_group_bounds, within
from dashboard.source import Source
from server.store.reader import RunInfo

KEY = "complementarity_heatmap"
# From this many members the matrix takes the whole width.
WIDE_MEMBERS = 7
TILES, WIDE_TILES = 6, 4


def take_click(members: int) -> tuple[int, int] | None:
    """A click on a matrix since the last run goes into the address; clicks before it stay where they are."""
    for measure in MEASURES:
        state: Any = st.session_state.get(f"{KEY}_{measure.key}")
        picked = (state or {}).get("selection", {}).get("cell") or []
        if not picked:
            continue
        cell = int(picked[0].get("i", -1)), int(picked[0].get("j", -1))
        is_pair = min(cell) >= 0 and max(cell) < members and cell[0] != cell[1]
        mark = f"cell_clicked_{measure.key}"
        if not is_pair or cell == st.session_state.get(mark):
            continue
        st.session_state[mark] = cell
        st.query_params["cell"] = f"{cell[0]}-{cell[1]}"
        st.query_params.pop("at", None)
        return cell
    return None


def offered(info: RunInfo) -> list[Measure]:
    """The measures that mean something for a run."""
    return [one for one in MEASURES if parts.exchanges(info) or one.key in WITHOUT_EXCHANGE]


class Shown(NamedTuple):
    """The measure that was chosen, its values over the window, and whether it is wanted over time too."""

    measure: Measure
    values: Values
    over_time: bool


def draw(source: Source, window: Window, pairs: dict[str, np.ndarray], cell: tuple[int, int]) -> Shown:
    """The chosen measure; a click on a cell chooses the pair that the rest of the page is about."""
    labels = parts.labels(source.info)
    choices = offered(source.info)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        key = pick("Matrix", [one.key for one in choices], key="matrix", segments=True, hide_label=True)
        wanted = switch("Over time", key="over", help="The same matrix in consecutive windows, side by side.")
    measure = next(one for one in choices if one.key == key)
    parts.title(measure.title, measure.explanation, f"{measure.help} Click a cell for its history and its prompts.")
    values, note = window_values(source, window, pairs, measure)
    if not np.isfinite(values.value).any():
        parts.nothing(_why_nothing(source, window, measure))
        return Shown(measure, values, False)
    spec = charts_population.matrix(labels, parts.colours(), measure, height=_height(len(labels)))
    cells = frames_population.matrix_cells(labels, measure, values, cell)
    parts.chart(
        spec,
        key=f"{KEY}_{measure.key}",
        data=lambda: frames_files.matrix(parts.names(source.info), values),
        on_select="rerun",
        cells=cells,
    )
    if note:
        parts.caption(note)
    return Shown(measure, values, wanted)


def _height(members: int) -> int:
    """Pixels: large cells for few members, cells without text for many."""
    if members > charts_population.TEXT_MEMBERS:
        return 24 * members + 150
    return 46 * members + 120 if members >= WIDE_MEMBERS else 440 + 25 * members


def _why_nothing(source: Source, window: Window, measure: Measure) -> str:
    if measure.key == "uptake":
        every = health.uptake_every(source, window)
        missing = health.why_no_uptake(source.ask("uptake", window.first, window.last, every=every)[1])
        return missing or "No pair has met both kinds of prompt again."
    if measure.key == "failing":
        return "No two members both failed some prompts and solved others in these steps."
    return f"No pair has any {measure.several or measure.counted + 's'} in these steps."


def window_values(source: Source, window: Window, pairs: dict[str, np.ndarray], measure: Measure) -> tuple[Values, str]:
    """(the measure of every pair over the window [N, N], what is said below it)."""
    if measure.key == "uptake":
        every = health.uptake_every(source, window)
        # The windows of the history are looked at in any case, and add up to the whole one.
        edges = frames.bucket_edges(window.first, window.last, TILES)
        counts, _ = source.ask("uptake_history", tuple(edges), every=every)
        whole = {name: part.sum(axis=0) for name, part in counts.items()}
        return measure.read(whole), health.uptake_note(every).removeprefix(" · ").capitalize()
    values = measure.read(pairs)
    if measure.key != "compatibility":
        return values, ""
    newest = source.ask("newest_transfers", window.first, window.last)
    since = (
        "" if newest.first_step <= window.first else f"; their spread from step {formats.count(newest.first_step)} on"
    )
    bounded = with_group_bounds(values, newest, len(source.info.members))
    normaliser = responses.exchange_settings(source.info.config)[1]
    return bounded, f"Intervals take the responses of one group together{since}. s normalised by: {normaliser}."


def course(source: Source, window: Window, measure: Measure, edges: list[int]) -> Values:
    """The measure of every pair in each of these buckets, [B, N, N]."""
    if measure.key == "uptake":
        counts, _ = source.ask("uptake_history", tuple(edges), every=health.uptake_every(source, window))
        return measure.read(counts)
    values = measure.read(source.ask("pair_history", tuple(edges)))
    if measure.key != "compatibility":
        return values
    newest, members = source.ask("newest_transfers", window.first, window.last), len(source.info.members)
    single = [
        with_group_bounds(values.at(bucket), within(newest, low + 1, high), members)
        for bucket, (low, high) in enumerate(pairwise(edges))
    ]
    return replace(values, low=np.stack([one.low for one in single]), high=np.stack([one.high for one in single]))


def over_time(source: Source, window: Window, measure: Measure) -> None:
    """The measure in consecutive windows."""
    labels = parts.labels(source.info)
    parts.title(
        f"{measure.title} over time",
        "rows and columns as in the matrix",
        f"{measure.help} Colours as in the matrix; point at a cell for its pair and number.",
    )
    most = TILES if len(labels) <= charts_population.TEXT_MEMBERS else WIDE_TILES
    edges = frames.bucket_edges(window.first, window.last, most)
    if len(edges) < 3:
        parts.nothing("One step has no course over time yet.")
        return
    spec = charts_population.multiples(len(labels), len(edges) - 1, parts.colours(), measure)
    values = course(source, window, measure, edges)
    tiles = frames_population.tile_frames(labels, measure, values, edges)
    parts.chart(
        spec,
        key=f"{KEY}_tiles_{measure.key}",
        data=lambda: frames_files.matrix_history(parts.names(source.info), edges, values),
        **tiles,
    )
