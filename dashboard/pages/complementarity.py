"""Complementarity: who solves what another member fails, how that moves, and on which prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from urllib.parse import urlencode

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import (
    charts,
    charts_population,
    formats,
    frames,
    frames_files,
    frames_population,
    graph_panels,
    health,
    matrices,
    parts,
    safe_text,
)
from dashboard.controls import Choice, Window, cell_parameter, integer_parameter, link_parameters
from dashboard.matrices import Shown
from dashboard.source import Source
from graft.complementarity import bootstrap_ratio_interval
from server.store.reader import PromptRow

PATTERNS = 14
ROWS = 8
# Prompts of a pair in a file.
FILE_ROWS = 10_000
_FATES = {"grafted": "green", "refused": "orange", "held out": "violet"}


def views(source: Source, window: Window) -> Iterator[dict[str, str]]:
    """Every matrix, each over time too, and every kind of graph."""
    for measure in matrices.offered(source.info):
        yield {"matrix": measure.key, "over": "true"}
    yield from ({"graph": kind} for kind in (graph_panels.MEMBER, graph_panels.PROMPT))


def draw(source: Source, choice: Choice) -> None:
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
    cell = matrices.take_click(members) or cell_parameter(members) or _remembered_cell(source) or _first_cell(pairs)
    st.session_state["cell_shown"] = source.info.uid, cell
    wide = members >= matrices.WIDE_MEMBERS
    left, right = (st.container(), st.container()) if wide else st.columns([6, 5])
    shown = None
    with left, parts.card():
        shown = matrices.draw(source, window, pairs, cell)
    with right:
        below = parts.side_by_side() if wide else st.container()
        if shown is not None:
            with below, parts.card():
                _history(source, window, shown, cell, height=165 + 16 * min(members, 16) if wide else 225)
        with below, parts.card():
            _patterns(source, window)
    if shown is not None:
        if shown.over_time:
            with parts.card(stretch=False):
                matrices.over_time(source, window, shown.measure)
        with parts.guarded():
            _pair(source, window, pairs, cell, shown)
    with parts.card(stretch=False):
        graph_panels.draw(source, window, pairs, cell)
    beside = parts.side_by_side()
    for panel in (health.coverage, health.correlation):
        with beside, parts.card():
            panel(source, window)
    with parts.guarded():
        health.warnings(source, window)


def _first_cell(pairs: dict[str, np.ndarray]) -> tuple[int, int]:
    """Without a choice: the pair with the most groups solved by the peer."""
    row, column = np.unravel_index(int(np.argmax(pairs["solved"])), pairs["solved"].shape)
    return (int(row), int(column)) if row != column else (0, 1)


def _remembered_cell(source: Source) -> tuple[int, int] | None:
    """The cell this reader last looked at, when another page was shown in between."""
    run, cell = st.session_state.get("cell_shown", (None, None))
    return cell if run == source.info.uid else None


def _history(source: Source, window: Window, shown: Shown, cell: tuple[int, int], height: int) -> None:
    """The chosen measure of the chosen row against every peer, over the steps."""
    measure, row, names = shown.measure, cell[0], parts.labels(source.info)
    others = [slot for slot in range(len(names)) if slot != row]
    peers_in_all = len(others)
    others = frames.most_telling(others, np.nan_to_num(np.abs(shown.values.value) * shown.values.n)[row])
    peers = [names[slot] for slot in others]
    cut = "" if len(peers) == peers_in_all else f"; the {len(peers)} of {peers_in_all} peers with the most to tell"
    asks = measure.asks.format(row=safe_text.inline(names[row]))
    parts.title(asks, f"dotted: over the whole window{cut}")
    most = matrices.TILES if measure.key == "uptake" else frames.fewer(len(names))
    edges = frames.bucket_edges(window.first, window.last, most)
    values = matrices.course(source, window, measure, edges)
    if not np.isfinite(values.value[:, row, others]).any():
        parts.nothing("Nothing is known of this member in these steps.")
        return
    curves, hover = frames_population.row_curves(peers, edges, measure, values, row, others)
    means = frames.mean_lines(peers, measure.course(shown.values)[row, others])
    spec = charts.curves(
        peers, parts.colours(), quantity=measure.title, height=height, slots=others, means=True, number=measure.axis
    )
    whole = parts.names(source.info)
    against, counted = [whole[slot] for slot in others], values.n[:, row, others]
    parts.chart(
        spec,
        key=f"complementarity_history_{measure.key}",
        data=lambda: frames_files.history(against, edges, curves, "column", n=counted).assign(row=whole[row]),
        curves=curves,
        hover=hover,
        means=means,
    )


def _patterns(source: Source, window: Window) -> None:
    names = parts.labels(source.info)
    first = source.ask("patterns_from", window.first, window.last)
    found, total = source.ask("patterns", first, window.last, limit=10_000)
    parts.title(
        "Success patterns",
        "which members solved the same prompt",
        "Of the prompts of each step, the share that exactly these members solved, with its 95 % Wilson interval.",
    )
    if not total:
        parts.nothing("No prompt was sampled by the members yet.")
        return
    shown = found[:PATTERNS]
    row = 20 if len(names) <= 8 else 16
    parts.chart(
        charts_population.success_patterns(names, parts.colours(), row=row),
        key="complementarity_patterns",
        data=lambda: frames_files.patterns(parts.names(source.info), found, total),
        **frames_population.pattern_frames(names, shown, total),
    )
    covered = sum(occurrences for _, occurrences in shown)
    some = (
        "All patterns"
        if len(shown) == len(found)
        else f"{len(shown)} most frequent of {formats.count(len(found))} patterns"
    )
    newest = f" Counted over {Window(first, window.last)}." if first > window.first else ""
    parts.caption(f"{some}: {formats.of(covered, total, 'prompt')} ({formats.rate(covered, total)}).{newest}")


def _heading(source: Source, window: Window, pairs: dict[str, np.ndarray], cell: tuple[int, int], shown: Shown) -> None:
    """What the chosen measure says of the chosen pair, with its interval."""
    measure, labels = shown.measure, [safe_text.inline(label) for label in parts.labels(source.info)]
    pair = measure.pair.format(row=labels[cell[0]], column=labels[cell[1]])
    value, low, high, n = (
        float(part[cell]) for part in (shown.values.value, shown.values.low, shown.values.high, shown.values.n)
    )
    k, support = int(pairs["solved"][cell]), int(pairs["both_attempted_fail"][cell])
    help_text = None
    if measure.key == "complementarity":
        said = f"{formats.of(k, support, 'group')} = {formats.rate(k, support)}" if support else "no all-fail group"
        bounds = formats.interval(k, support) + _by_prompt(source, window, cell)
        help_text = (
            "The first interval takes every group for itself (Wilson). Visits of one prompt are alike, so the second "
            "draws prompts whole (bootstrap), over the newest 5,000 places where there are more."
        )
    else:
        said = frames_population.counted(measure, value, int(n))
        bounds = frames_population.interval(measure, low, high)
    st.subheader(f"{pair}: {said}", anchor=False, width="content")
    parts.begin(f"{pair}: {said}", "", help_text)
    if np.isfinite(low):
        parts.caption(f"95 %: {bounds}", width="stretch", help=help_text)


def _pair(source: Source, window: Window, pairs: dict[str, np.ndarray], cell: tuple[int, int], shown: Shown) -> None:
    """The chosen pair: its value, and the prompts behind it, a page at a time, each with a link to its responses."""
    labels = parts.labels(source.info)
    rows, total, offset = _page_of_prompts(source, window, cell)
    # Of the other measures these prompts are not what was counted, so they have a title of their own.
    counted_here = shown.measure.key == "complementarity"
    with st.container(horizontal=True, vertical_alignment="center"):
        _heading(source, window, pairs, cell, shown)
        if counted_here and total > ROWS:
            _pager(offset, total)
    if not counted_here:
        failed, solved = (safe_text.inline(labels[slot]) for slot in cell)
        with st.container(horizontal=True, vertical_alignment="center"):
            parts.title(f"{failed} failed, {solved} solved", "prompts, newest first")
            if total > ROWS:
                _pager(offset, total)
    if not rows:
        parts.nothing("No such prompt in these steps.")
        return
    parts.table(
        pd.DataFrame([_prompt_row(row, source.info.uid, labels, cell) for row in rows]),
        key="complementarity_prompts",
        data=lambda: _all_prompts(source, window, cell, total),
        alt="Prompts that the row's member failed and the column's member solved",
    )


def _all_prompts(source: Source, window: Window, cell: tuple[int, int], total: int) -> pd.DataFrame:
    """The prompts of every page, up to FILE_ROWS of them, for files."""
    receiver, giver = (source.info.members[slot].name for slot in cell)
    rows, _ = source.ask(
        "prompts_for", receiver, giver, window.first, window.last, offset=0, limit=min(total, FILE_ROWS)
    )
    return pd.DataFrame([{"failed": receiver, "solved": giver} | asdict(row) for row in rows])


def _by_prompt(source: Source, window: Window, cell: tuple[int, int]) -> str:
    """The interval of the cell's share with prompts drawn whole; empty where no prompt came twice."""
    i, j = cell
    places = source.ask("newest_places", window.first, window.last)
    chosen = places.all_fail[:, i] & places.attempted[:, j]
    prompts, inverse = np.unique(places.prompt[chosen], return_inverse=True)
    if len(prompts) in (0, len(inverse)):
        return ""
    visits = np.bincount(inverse)
    solved = np.bincount(inverse, weights=places.solved[chosen, j])
    low, high = bootstrap_ratio_interval(solved, visits, seed=0)
    return f" · by prompt: {formats.span(low, high)} ({formats.counted(len(prompts), 'prompt')})"


def _page_of_prompts(source: Source, window: Window, cell: tuple[int, int]) -> tuple[list[PromptRow], int, int]:
    """(rows, how many there are, offset); an offset beyond the end, from an old link, becomes the last page."""
    members = source.info.members
    where = members[cell[0]].name, members[cell[1]].name, window.first, window.last
    offset = integer_parameter("at") or 0
    rows, total = source.ask("prompts_for", *where, offset=offset, limit=ROWS)
    if not rows and total:
        offset = (total - 1) // ROWS * ROWS
        rows, total = source.ask("prompts_for", *where, offset=offset, limit=ROWS)
    return rows, total, offset


def _pager(offset: int, total: int) -> None:
    last = min(offset + ROWS, total)
    st.caption(f"{formats.count(offset + 1)}–{formats.count(last)} of {formats.count(total)}", width="content")
    for key, icon, to, ends in (
        ("newer", "chevron_left", max(0, offset - ROWS), offset == 0),
        ("older", "chevron_right", offset + ROWS, last == total),
    ):
        st.button(
            "", icon=f":material/{icon}:", key=f"prompts_{key}", on_click=_turn, args=(to,), disabled=ends, help=key
        )


def _turn(to: int) -> None:
    st.query_params["at"] = str(to)


def _prompt_row(row: PromptRow, uid: str, labels: list[str], cell: tuple[int, int]) -> dict[str, str]:
    """One row in Markdown; member text goes through `safe_text`."""
    i, j = cell
    query = urlencode(link_parameters(run=uid, step=row.step, prompt=row.prompt, receiver=i, source=j))
    around = urlencode(link_parameters(run=uid, cell=f"{i}-{j}", graph=graph_panels.PROMPT, prompt=row.prompt))
    # A group without a failure has no advantage to give, so it is never a candidate.
    not_routed = ":gray[all solved]" if row.source_successes == row.source_n else ":gray[not routed]"
    fate = f":{_FATES[row.transfer]}-badge[{row.transfer}]" if row.transfer in _FATES else not_routed
    return {
        "Step": formats.count(row.step),
        "Subject": safe_text.inline(formats.clean(row.subject, 24)) if row.subject else formats.MISSING,
        "Level": formats.MISSING if row.level is None else str(row.level),
        f"{safe_text.inline(labels[i])} ✓": f"{row.receiver_successes}/{row.receiver_n}",
        f"{safe_text.inline(labels[j])} ✓": f"{row.source_successes}/{row.source_n}",
        "Prompt": safe_text.math_line(row.text, 160),
        "Transfer": fate,
        "Responses": f"[open ↗](trajectories?{query})",
        "Graph": f"[who else ↗](complementarity?{around})",
    }
