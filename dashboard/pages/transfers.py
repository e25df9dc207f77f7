"""Transfers: who gave to whom, what the gate let in, and what it changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import (
    charts,
    charts_population,
    charts_transfers,
    formats,
    frames,
    frames_files,
    health,
    parts,
    replays,
    safe_text,
)
from dashboard.controls import Choice, Window, pick
from dashboard.source import Source
from server.store.reader import NewestTransfers

SHOWN_PAIRS = 12
FLOW, NETWORK = "flow", "network"


def views(source: Source, window: Window) -> list[dict[str, str]]:
    """Both drawings."""
    return [{"shape": FLOW}, {"shape": NETWORK}]


def draw(source: Source, choice: Choice) -> None:
    """The whole page, at one revision of the store."""
    window = choice.window(source.info)
    parts.status_line(source, window)
    if window is None:
        parts.no_steps(source.info)
        return
    if not parts.exchanges(source.info):
        with st.container(border=True):
            method = safe_text.inline(formats.clean(source.info.method, 40))
            parts.nothing(f"Nothing moves between members under {method}.")
        return
    pairs = source.ask("pair_counts", window.first, window.last)
    slots = choice.slots(source.info)
    wide = len(source.info.members) > charts_population.TEXT_MEMBERS
    left, right = (st.container(), parts.side_by_side()) if wide else st.columns([6, 5])
    with left, parts.card():
        _moved(source, pairs)
    edges = frames.bucket_edges(window.first, window.last, frames.fewer(len(slots)))
    with right, parts.card():
        _rescued(source, slots, edges)
    with right, parts.card():
        _admission(source, slots, edges)
    with parts.card(stretch=False):
        _pairs(source, window, pairs)
    with parts.card(stretch=False):
        health.uptake(source, window)
    replays.draw(source)


def _moved(source: Source, pairs: dict[str, np.ndarray]) -> None:
    """Admitted responses from source to receiver."""
    parts.title(
        "Admitted responses",
        "from the member that gave to the one that received",
        "Responses of a peer's group that the gate admitted into a receiver's update, over the window. Colour: the "
        "member that gave.",
    )
    shape = pick(
        "Drawing",
        [FLOW, NETWORK],
        key="shape",
        default=FLOW,
        segments=True,
        help="As a flow from givers to receivers, or as a network.",
    )
    labels, colours, moved = parts.labels(source.info), parts.colours(), pairs["admitted"]
    edges = int(np.count_nonzero(moved))
    if not edges:
        parts.nothing("No response was admitted in these steps.")
        return
    height = max(parts.curve_height(len(labels)) * 2 - 60, 24 * len(labels) + 60)
    if shape == FLOW:
        option = charts_transfers.sankey(labels, colours, moved)
    else:
        option = charts_transfers.network(labels, colours, moved, height=height)
    alt = charts_transfers.described(labels, moved)
    parts.diagram(
        option,
        key=f"transfers_{shape}",
        height=height,
        alt=alt,
        data=lambda: frames_files.flows(parts.names(source.info), moved, "admitted"),
    )
    drawn = charts_transfers.strongest(moved)
    shown = sum(int(moved[pair]) for pair in drawn)
    total = int(moved.sum())
    text = f"{formats.counted(total, 'admitted response')}."
    if len(drawn) < edges:
        whole = formats.of(shown, total, "admitted response")
        text = f"{whole}. Drawn: the {len(drawn)} strongest of {edges} pairs."
    parts.caption(text)


def _rescued(source: Source, slots: list[int], edges: list[int]) -> None:
    parts.title(
        "Rescue rate",
        "all-fail groups for which a peer's group came",
        "Of the groups in which every rollout of the member failed: those for which at least one response of a peer "
        "was admitted.",
    )
    history = source.ask("member_history", tuple(edges))
    _curves(source, slots, edges, history["received"], history["all_fail"], "rescue")


def _admission(source: Source, slots: list[int], edges: list[int]) -> None:
    parts.title(
        "Gate admission",
        "transferred responses that the update took in",
        "Admitted responses of those transferred to the receiver, over all its sources. Responses of one group stand "
        "or fall together, so the band is somewhat too narrow; the table below takes that into account.",
    )
    history = source.ask("pair_history", tuple(edges))
    admitted, responses = history["admitted"].sum(axis=2), history["responses"].sum(axis=2)
    _curves(source, slots, edges, admitted, responses, "admission")


def _curves(source: Source, slots: list[int], edges: list[int], k: np.ndarray, n: np.ndarray, key: str) -> None:
    names, asked = parts.labels(source.info), len(slots)
    slots = frames.most_telling(slots, n.sum(axis=0))
    shown = [names[slot] for slot in slots]
    curves, hover = frames.rate_curves(shown, edges, k[:, slots], n[:, slots])
    spec = charts.curves(shown, parts.colours(), quantity=key, height=parts.curve_height(len(shown)), slots=slots)
    whole, k, n = [parts.names(source.info)[slot] for slot in slots], k[:, slots], n[:, slots]
    parts.chart(
        spec,
        key=f"transfers_{key}",
        data=lambda: frames_files.history(whole, edges, curves, numerator=k, denominator=n),
        curves=curves,
        hover=hover,
    )
    parts.cut_note(len(slots), asked, "with the most")


def _pairs(source: Source, window: Window, pairs: dict[str, np.ndarray]) -> None:
    """One row for each pair that exchanged anything, sortable."""
    parts.title(
        "Every pair",
        "counts over the window",
        "All-fail: groups of the receiver in which all failed and that the source sampled too. Solved: those the "
        "source solved. Routed: those whose group came from this source. Mean s: over scored responses. "
        "Mean weight: over admitted ones. The intervals take the responses of one group together, as they stand or "
        "fall together; floor and other: refused responses, s at or below the floor, or another reason. "
        "–: nothing was counted, or too little for an interval.",
    )
    newest = source.ask("newest_transfers", window.first, window.last)
    table = pair_table(parts.labels(source.info), pairs, newest)
    if table.empty:
        parts.nothing("No pair has an all-fail group that both sampled.")
        return
    parts.sortable_table(
        table,
        key="transfers_pairs",
        data=lambda: frames_files.pairs(parts.names(source.info), pairs, newest),
        width="stretch",
        height="content" if len(table) <= SHOWN_PAIRS else 460,
        placeholder=formats.MISSING,
        column_config=_columns(table),
        # Counts that follow from the others are in the file alone.
        column_order=[name for name in table.columns if name not in ("Solved", "Grafted")],
    )
    if newest.first_step > window.first:
        parts.caption(f"Intervals: the spread of groups from step {formats.count(newest.first_step)} on, the newest.")


# Pixels of the columns of numbers, as wide as their titles.
_WIDTHS = {
    "All-fail": 54, "Solved %": 66, "Routed": 54, "Held out": 60, "Responses": 74, "Admitted": 66, "Admitted %": 78,
    "Floor": 44, "Other": 44, "Mean s": 56, "Mean w": 58,
}  # fmt: skip


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    """Narrow columns, so that the whole row is in sight."""
    formats_of = {"Solved %": "%.1f", "Admitted %": "%.1f", "Mean s": "%.3f", "Mean w": "%.3f"}
    columns: dict[str, Any] = {}
    for name in table.columns[2:]:
        if name.startswith("95 %"):
            columns[name] = st.column_config.TextColumn("95 %", width=78)
        else:
            columns[name] = st.column_config.NumberColumn(
                width=_WIDTHS.get(name, "small"), format=formats_of.get(name, "localized")
            )
    return columns


def pair_table(labels: list[str], pairs: dict[str, np.ndarray], newest: NewestTransfers) -> pd.DataFrame:
    """Every (receiver, source) with a group that could have moved; ratios are empty where nothing was counted."""
    numbers = frames_files.pairs(labels, pairs, newest)
    table = numbers.rename(columns=dict(_TITLES))[[title for _, title in _TITLES]]
    table["Solved %"] *= 100
    table["Admitted %"] *= 100
    for title, name, scale, digits in (("95 %", "admitted", 100, 1), ("95 % ", "mean_s", 1, 2)):
        bounds = zip(numbers[f"{name}_low"], numbers[f"{name}_high"], strict=True)
        text = [_range(scale * low, scale * high, digits) for low, high in bounds]
        table.insert(table.columns.get_loc("Admitted %" if scale == 100 else "Mean s") + 1, title, text)
    return table


# Columns of `frames_files.pairs` and their titles.
_TITLES = (
    ("receiver", "Receiver"), ("source", "Source"), ("all_fail", "All-fail"), ("solved", "Solved"),
    ("solved_share", "Solved %"), ("routed", "Routed"), ("held_out", "Held out"), ("grafted", "Grafted"),
    ("responses", "Responses"), ("admitted", "Admitted"), ("admitted_share", "Admitted %"), ("refused_floor", "Floor"),
    ("refused_other", "Other"), ("mean_s", "Mean s"), ("mean_weight", "Mean w"),
)  # fmt: skip


def _range(low: float, high: float, digits: int) -> str:
    """An interval; "–" where it is not known."""
    return f"{low:.{digits}f}–{high:.{digits}f}" if np.isfinite(low) else formats.MISSING
