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
    health,
    measures,
    parts,
    replays,
    safe_text,
)
from dashboard.controls import Choice, Window, pick
from dashboard.source import Source
from graft.complementarity import wilson_interval
from server.store.reader import NewestTransfers

COUNTED = ("routed", "grafted", "held_out", "responses", "admitted", "refused_floor", "refused_other")
SHOWN_PAIRS = 12
FLOW, NETWORK = "flow", "network"


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
    st.echarts_chart(option, width="stretch", height=height, theme=None, key=f"transfers_{shape}", alt=alt)
    drawn = charts_transfers.strongest(moved)
    shown = sum(int(moved[pair]) for pair in drawn)
    total = int(moved.sum())
    cut = f" Drawn: the {len(drawn)} strongest of {edges} pairs." if len(drawn) < edges else ""
    st.caption(f"{formats.of(shown, total, 'admitted response')}.{cut}")


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
    parts.chart(spec, key=f"transfers_{key}", curves=curves, hover=hover)
    parts.cut_note(len(slots), asked, "with the most")


def _pairs(source: Source, window: Window, pairs: dict[str, np.ndarray]) -> None:
    """One row for each pair that exchanged anything, sortable, and as a file."""
    parts.title(
        "Every pair",
        "counts over the window",
        "All-fail: groups of the receiver in which all failed and that the source sampled too. Solved: those the "
        "source solved. Routed: those whose group came from this source. Mean s: over scored responses. "
        "Mean weight: over admitted ones. The intervals take the responses of one group together, as they stand or "
        "fall together; floor and other: refused responses, s at or below the floor, or another reason.",
    )
    newest = source.ask("newest_transfers", window.first, window.last)
    table = pair_table(parts.labels(source.info), pairs, newest)
    if table.empty:
        parts.nothing("No pair has an all-fail group that both sampled.")
        return
    st.dataframe(
        table,
        hide_index=True,
        width="stretch",
        height="content" if len(table) <= SHOWN_PAIRS else 460,
        placeholder=formats.MISSING,
        column_config=_columns(table),
        # Counts that follow from the others are in the file alone.
        column_order=[name for name in table.columns if name not in ("Solved", "Grafted")],
        key="transfers_pairs",
    )
    st.download_button(
        "CSV",
        table.to_csv(index=False).encode(),
        file_name=f"transfers-{window.first}-{window.last}.csv",
        mime="text/csv",
        on_click="ignore",
        icon=":material/download:",
        key="transfers_csv",
    )
    if newest.first_step > window.first:
        st.caption(f"Intervals: the spread of groups from step {formats.count(newest.first_step)} on, the newest.")


# Pixels of the columns of numbers, as wide as their titles.
_WIDTHS = {
    "All-fail": 58, "Solved %": 70, "Routed": 60, "Held out": 66, "Responses": 80, "Admitted": 74, "Admitted %": 86,
    "Floor": 48, "Other": 50, "Mean s": 62, "Mean w": 64,
}  # fmt: skip


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    """Narrow columns, so that the whole row is in sight."""
    formats_of = {"Solved %": "%.1f", "Admitted %": "%.1f", "Mean s": "%.3f", "Mean w": "%.3f"}
    columns: dict[str, Any] = {}
    for name in table.columns[2:]:
        if name.startswith("95 %"):
            columns[name] = st.column_config.TextColumn("95 %", width=84)
        else:
            columns[name] = st.column_config.NumberColumn(
                width=_WIDTHS.get(name, "small"), format=formats_of.get(name, "localized")
            )
    return columns


def pair_table(labels: list[str], pairs: dict[str, np.ndarray], newest: NewestTransfers) -> pd.DataFrame:
    """Every (receiver, source) with a group that could have moved; ratios are empty where nothing was counted.

    Intervals draw transferred groups whole; their spread is that of the `newest` ones where there are more.
    """
    size, rows = len(labels), []
    admission, mean_s = (
        measures.clustered(newest, part, total, pairs[count], size)
        for part, total, count in (
            (newest.admitted, newest.responses, "responses"),
            (newest.sum_s, newest.n_s, "n_s"),
        )
    )
    for i, receiver in enumerate(labels):
        for j, giver in enumerate(labels):
            fails = int(pairs["both_attempted_fail"][i, j])
            counts = {name: int(pairs[name][i, j]) for name in COUNTED}
            if i == j or not (fails or counts["routed"]):
                continue
            rows.append(
                {
                    "Receiver": receiver,
                    "Source": giver,
                    "All-fail": fails,
                    "Solved": int(pairs["solved"][i, j]),
                    "Solved %": _share(int(pairs["solved"][i, j]), fails),
                    "Routed": counts["routed"],
                    "Held out": counts["held_out"],
                    "Grafted": counts["grafted"],
                    "Responses": counts["responses"],
                    "Admitted": counts["admitted"],
                    "Admitted %": _share(counts["admitted"], counts["responses"]),
                    "95 %": _admitted_range(counts["admitted"], counts["responses"], float(admission[i, j])),
                    "Floor": counts["refused_floor"],
                    "Other": counts["refused_other"],
                    "Mean s": _mean(float(pairs["sum_s"][i, j]), int(pairs["n_s"][i, j])),
                    "95 % ": _range(_mean(float(pairs["sum_s"][i, j]), int(pairs["n_s"][i, j])), float(mean_s[i, j])),
                    "Mean w": _mean(float(pairs["sum_w"][i, j]), counts["admitted"]),
                }
            )
    return pd.DataFrame(rows)


def _share(k: int, n: int) -> float | None:
    return 100 * k / n if n else None


def _mean(total: float, n: int) -> float | None:
    return total / n if n else None


def _range(middle: float | None, half: float) -> str:
    """An interval that cannot go below 0; "–" where it is not known."""
    if middle is None or not np.isfinite(half):
        return formats.MISSING
    return f"{max(0.0, middle - half):.2f}–{middle + half:.2f}"


def _admitted_range(k: int, n: int, half: float) -> str:
    """In percent, by group, and never inside Wilson's: groups that are all alike would leave no width at all."""
    if not n:
        return formats.MISSING
    low, high = wilson_interval(k, n)
    if np.isfinite(half):
        low, high = max(0.0, min(low, k / n - half)), min(1.0, max(high, k / n + half))
    return f"{100 * low:.1f}–{100 * high:.1f}"
