"""Complementarity: who solves what another member fails, how that moves, and on which prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from dashboard import charts, formats, frames, parts, safe_text
from dashboard.controls import Choice, Pages, Window, cell_parameter, integer_parameter, link_parameters
from dashboard.source import Source
from server.store.reader import PromptRow

PATTERNS = 14
ROWS = 8
# From this many members the heatmap takes the whole width.
WIDE_MEMBERS = 7
HEATMAP_KEY = "complementarity_heatmap"
_FATES = {"grafted": "green", "refused": "orange", "held out": "violet"}


def draw(source: Source, choice: Choice, pages: Pages) -> None:
    """The whole page, at one revision of the store."""
    window = choice.window(source.info)
    parts.status_line(source, window)
    members = len(source.info.members)
    if window is None:
        parts.no_steps(source.info)
        return
    if members < 2:
        with st.container(border=True):
            parts.nothing("This run has one member: there is no peer to compare it with.")
        return
    pairs = source.ask("pair_counts", window.first, window.last)
    cell = _take_click(members) or cell_parameter(members) or _first_cell(pairs)
    wide = members >= WIDE_MEMBERS
    left, right = (st.container(), st.container()) if wide else st.columns([6, 5])
    with left, parts.card():
        _heatmap(source, pairs, cell)
    with right:
        first, second = st.columns(2) if wide else (st.container(), st.container())
        with first, parts.card():
            _history(source, window, pairs, cell)
        with second, parts.card():
            _patterns(source, window)
    with parts.guarded():
        _prompts(source, window, pairs, cell, pages)


def _first_cell(pairs: dict[str, np.ndarray]) -> tuple[int, int]:
    """Without a choice: the pair with the most groups solved by the peer."""
    row, column = np.unravel_index(int(np.argmax(pairs["solved"])), pairs["solved"].shape)
    return (int(row), int(column)) if row != column else (0, 1)


def _take_click(members: int) -> tuple[int, int] | None:
    """A click on the heatmap since the last run goes into the address; clicks before it stay where they are."""
    state: Any = st.session_state.get(HEATMAP_KEY)
    picked = (state or {}).get("selection", {}).get("cell") or []
    if not picked:
        return None
    cell = int(picked[0].get("i", -1)), int(picked[0].get("j", -1))
    if (
        cell == st.session_state.get("cell_clicked")
        or not (0 <= min(cell) and max(cell) < members)
        or cell[0] == cell[1]
    ):
        return None
    st.session_state["cell_clicked"] = cell
    st.query_params["cell"] = f"{cell[0]}-{cell[1]}"
    st.query_params.pop("at", None)
    return cell


def _heatmap(source: Source, pairs: dict[str, np.ndarray], cell: tuple[int, int]) -> None:
    names = parts.labels(source.info)
    parts.title(
        "Complementarity",
        "share of the row's all-fail groups that the column solved",
        "A group is all-fail when every rollout of the row's member failed. The column solved it when at least one of "
        "its rollouts on the same prompt in the same step is right. n: all-fail groups of the row that the column "
        "sampled too. Click a cell for its history and its prompts.",
    )
    per_row = 74 if len(names) <= 5 else 60 if len(names) < WIDE_MEMBERS else 46
    spec = charts.heatmap(names, parts.colours(), height=max(300, per_row * len(names) + 110))
    cells = frames.heatmap_cells(names, pairs["solved"], pairs["both_attempted_fail"], cell)
    parts.chart(spec, key=HEATMAP_KEY, on_select="rerun", cells=cells)


def _history(source: Source, window: Window, pairs: dict[str, np.ndarray], cell: tuple[int, int]) -> None:
    row = cell[0]
    names = parts.labels(source.info)
    others = [slot for slot in range(len(names)) if slot != row]
    peers = [names[slot] for slot in others]
    parts.title(f"{safe_text.inline(names[row])} fails: who solves?", "dotted: mean over the window")
    edges = frames.bucket_edges(window.first, window.last, 40)
    history = source.ask("pair_history", tuple(edges))
    curves, hover = frames.rate_curves(
        peers, edges, history["solved"][:, row, others], history["both_attempted_fail"][:, row, others]
    )
    means = frames.mean_lines(peers, pairs["solved"][row, others], pairs["both_attempted_fail"][row, others])
    spec = charts.curves(
        peers,
        parts.colours(),
        quantity="share of the row's all-fail groups solved",
        height=225,
        slots=others,
        means=True,
    )
    parts.chart(spec, key="complementarity_history", curves=curves, hover=hover, means=means)


def _patterns(source: Source, window: Window) -> None:
    names = parts.labels(source.info)
    found, total = source.ask("patterns", window.first, window.last, limit=10_000)
    parts.title("Success patterns", "which members solved the same prompt in the same step")
    if not total:
        parts.nothing("No prompt was sampled by the members yet.")
        return
    shown = found[:PATTERNS]
    row = 20 if len(names) <= 8 else 16
    parts.chart(
        charts.success_patterns(names, parts.colours(), row=row),
        key="complementarity_patterns",
        **frames.pattern_frames(names, shown, total),
    )
    covered = sum(occurrences for _, occurrences in shown)
    st.caption(
        f"{len(shown)} most frequent of {formats.count(len(found))} patterns: {formats.of(covered, total, 'prompts')} "
        f"({formats.rate(covered, total)})."
    )


def _prompts(source: Source, window: Window, pairs: dict[str, np.ndarray], cell: tuple[int, int], pages: Pages) -> None:
    """The prompts behind the chosen cell, a page at a time, each with a link to its responses."""
    members = source.info.members
    i, j = cell
    labels = parts.labels(source.info)
    solved, support = int(pairs["solved"][i, j]), int(pairs["both_attempted_fail"][i, j])
    rate = f"{formats.of(solved, support, 'groups')} = {formats.rate(solved, support)} (95 %: {formats.interval(solved, support)})"
    offset = integer_parameter("at") or 0
    rows, total = source.ask(
        "prompts_for", members[i].name, members[j].name, window.first, window.last, offset=offset, limit=ROWS
    )
    if not rows and total and offset:
        offset = (total - 1) // ROWS * ROWS
        rows, total = source.ask(
            "prompts_for", members[i].name, members[j].name, window.first, window.last, offset=offset, limit=ROWS
        )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"##### {safe_text.inline(labels[i])} fails, {safe_text.inline(labels[j])} solves: "
            + (rate if support else "no all-fail group yet")
        )
        if total > ROWS:
            _pager(offset, total)
    if not rows:
        parts.nothing("No such prompt in these steps.")
        return
    with st.container(border=True, gap="xsmall"):
        _header(labels[i], labels[j])
        for row in rows:
            _prompt_row(row, i, j, pages["trajectories"])


def _pager(offset: int, total: int) -> None:
    def turn(to: int) -> None:
        st.query_params["at"] = str(to)

    last = min(offset + ROWS, total)
    st.caption(f"{formats.count(offset + 1)}–{formats.count(last)} of {formats.count(total)}", width="content")
    st.button(
        "",
        icon=":material/chevron_left:",
        key="newer",
        on_click=turn,
        args=(max(0, offset - ROWS),),
        disabled=not offset,
        help="Newer",
    )
    st.button(
        "",
        icon=":material/chevron_right:",
        key="older",
        on_click=turn,
        args=(offset + ROWS,),
        disabled=last >= total,
        help="Older",
    )


_WIDTHS = [1, 2.2, 1.1, 1.1, 8, 1.5, 1.1]


def _header(receiver: str, solver: str) -> None:
    texts = ("Step", "Subject", safe_text.inline(receiver), safe_text.inline(solver), "Prompt", "Transfer", "")
    for column, text in zip(st.columns(_WIDTHS, vertical_alignment="center"), texts, strict=True):
        column.caption(text)


def _prompt_row(row: PromptRow, i: int, j: int, target_page: st.Page) -> None:
    subject = safe_text.inline(formats.clean(row.subject, 30)) if row.subject else formats.MISSING
    level = f" :gray[level {row.level}]" if row.level is not None else ""
    fate = f":{_FATES[row.transfer]}-badge[{row.transfer}]" if row.transfer in _FATES else ":gray[–]"
    texts = (
        formats.count(row.step),
        subject + level,
        f"{row.receiver_successes}/{row.receiver_n}",
        f"{row.source_successes}/{row.source_n}",
        safe_text.math_line(row.text, 150),
        fate,
    )
    columns = st.columns(_WIDTHS, vertical_alignment="center")
    for column, text in zip(columns[:-1], texts, strict=True):
        column.markdown(text)
    target = link_parameters(step=row.step, prompt=row.prompt, receiver=i, source=j)
    columns[-1].page_link(target_page, label="open", icon="", query_params=target)
