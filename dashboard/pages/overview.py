"""Overview: is the run alive, and is it worth it?"""

from __future__ import annotations

import time

import numpy as np
import streamlit as st

from dashboard import charts, formats, frames, parts, safe_text
from dashboard.palette import member_colour
from dashboard.controls import Choice, Pages, Window
from dashboard.source import Source

TABLE_METRICS = ("entropy", "clip_own", "clip_peer", "tokens_per_second_rollout")
ETA_STEPS = 50
EVENTS = 8


def draw(source: Source, choice: Choice, pages: Pages) -> None:
    """The whole page, at one revision of the store."""
    window = choice.window(source.info)
    parts.status_line(source, window)
    if window is None:
        parts.no_steps(source.info)
        _evaluation_and_events(source)
        return
    _cards(source, window)
    edges = frames.bucket_edges(window.first, window.last)
    history = source.ask("member_history", tuple(edges))
    left, right = st.columns(2)
    with left, parts.card():
        parts.title("Rollout accuracy", "share of sampled responses that are right")
        _curves(source, edges, history["successes"], history["rollouts"], "accuracy")
    with right, parts.card():
        parts.title("All-fail rate", "groups without one right response: nothing to learn from alone")
        _curves(source, edges, history["all_fail"], history["groups"], "all_fail")
    with parts.guarded():
        _members(source, window, history)
    _evaluation_and_events(source)
    per_point = edges[-1] - edges[-2] if len(edges) == 2 else edges[2] - edges[1] if len(edges) > 2 else 1
    st.caption(
        f"1 point = {formats.count(per_point)} step{'' if per_point == 1 else 's'} · bands and ranges: 95 % Wilson intervals; "
        "rollouts of one group are correlated, so they are somewhat too narrow."
    )


def _cards(source: Source, window: Window) -> None:
    """Five numbers: how far, how often everyone is stuck, who helps, what the gate lets in, and whether it is alive."""
    info = source.info
    counts = source.ask("member_counts", window.first, window.last)
    pairs = source.ask("pair_counts", window.first, window.last)
    fails, groups = int(counts["all_fail"].sum()), int(counts["groups"].sum())
    received = int(counts["received"].sum())
    admitted, responses = int(pairs["admitted"].sum()), int(pairs["responses"].sum())
    grid = st.grid(5, min_column_width=165)
    with grid:
        done = info.last_step or 0
        eta = f"ETA {formats.duration(_eta_s(source))}" if info.status == "running" else info.status
        _card(
            "Progress",
            formats.rate(done, info.total_steps, 0),
            f"{eta} · step {formats.count(done)} of {formats.count(info.total_steps)}",
        )
        _rate_card("All-fail groups", fails, groups, "", "Groups in which every rollout of a member failed.")
        _rate_card(
            "Rescued by a peer",
            received,
            fails,
            "",
            "All-fail groups whose place a peer's group took, with at least one response admitted by the gate.",
        )
        _rate_card(
            "Admitted by the gate",
            admitted,
            responses,
            "",
            "Transferred responses whose compatibility s lies above the floor.",
        )
        _card("Heartbeat", formats.ago(info.heartbeat), parts.status(info))


def _card(label: str, value: str, chip: str, help_text: str | None = None, note: str | None = None) -> None:
    st.metric(
        label,
        value,
        chip,
        delta_color="off",
        delta_arrow="off",
        border=True,
        height="stretch",
        help=help_text,
        delta_description=note,
    )


def _rate_card(label: str, k: int, n: int, unit: str, help_text: str) -> None:
    """A share with its k of n and its interval."""
    note = f"95 %: {formats.interval(k, n)}" if n else None
    _card(label, formats.rate(k, n), formats.of(k, n, unit), help_text, note)


def _eta_s(source: Source) -> float | None:
    """Remaining steps times the median time of the newest ones; None where no time was recorded."""
    info = source.info
    if info.last_step is None or info.first_step is None:
        return None
    first = max(info.first_step, info.last_step - ETA_STEPS + 1)
    seconds, steps = source.ask("run_metric_history", "step_seconds", tuple(range(first - 1, info.last_step + 1)))
    known = seconds[steps > 0] / steps[steps > 0]
    return float(np.median(known)) * max(0, info.total_steps - info.last_step) if len(known) else None


def _curves(source: Source, edges: list[int], k: np.ndarray, n: np.ndarray, key: str) -> None:
    names = parts.labels(source.info)
    curves, hover = frames.rate_curves(names, edges, k, n)
    spec = charts.curves(names, parts.colours(), quantity=key.replace("_", "-"))
    parts.chart(spec, key=f"overview_{key}", curves=curves, hover=hover)


def _members(source: Source, window: Window, history: dict[str, np.ndarray]) -> None:
    names = parts.labels(source.info, 28)
    counts = source.ask("member_counts", window.first, window.last)
    metrics = {name: source.ask("metric", name, window.first, window.last) for name in TABLE_METRICS}
    share, _, _ = frames.wilson(history["successes"], history["rollouts"])
    table = frames.member_table(names, counts, share.T.tolist(), metrics)
    column = st.column_config
    st.dataframe(
        table.style.apply(lambda _: [f"color: {colour}" for colour in _member_colours(len(names))], subset=["Colour"]),
        hide_index=True,
        height=35 * (len(table) + 1) + 2,
        key="overview_members",
        column_config={
            "Colour": column.TextColumn("", width=28),
            "Member": column.TextColumn(width="medium"),
            "Trend": column.LineChartColumn(width="small", help="Accuracy over the window."),
            "Entropy": column.TextColumn(alignment="right", help="Mean −log p of the sampled tokens, in nats."),
            "Clip own": column.TextColumn(
                alignment="right", help="Share of the member's own tokens whose ratio the objective clipped."
            ),
            "Clip peer": column.TextColumn(alignment="right", help="The same for grafted tokens."),
            **{
                name: column.TextColumn(alignment="right")
                for name in ("Accuracy", "95 %", "Rollouts", "All-fail", "95 % ", "Groups", "Tokens/s")
            },
        },
    )


def _member_colours(members: int) -> list[str]:
    colours = parts.colours()
    return [member_colour(colours, slot) for slot in range(members)]


def _evaluation_and_events(source: Source) -> None:
    left, right = st.columns([3, 2])
    with left, parts.card():
        _evaluation(source)
    with right, parts.card():
        _events(source)


def _evaluation(source: Source) -> None:
    """Held-out accuracy before and now, one benchmark at a time."""
    evaluations = source.ask("evaluations")
    benchmarks = list(dict.fromkeys(result.benchmark for result in evaluations))
    parts.title("Held-out evaluation", "hollow: before training, filled: now, with 95 % intervals")
    if not benchmarks:
        parts.nothing("No evaluation yet; it comes with the schedule in `evaluation.every_steps`.")
        return
    chosen = benchmarks[0]
    if len(benchmarks) > 1:
        chosen = st.selectbox("Benchmark", benchmarks, key="bench", bind="query-params", label_visibility="collapsed")
    names = parts.labels(source.info)
    scores, moves = frames.before_after(
        [member.name for member in source.info.members], names, [e for e in evaluations if e.benchmark == chosen]
    )
    parts.chart(charts.before_after(names, parts.colours()), key="overview_evaluation", scores=scores)
    for label, first, last in moves:
        st.caption(f"{safe_text.inline(label)}: {first.mean} {last.mean}")


def _events(source: Source) -> None:
    events = source.events(EVENTS)
    parts.title("Last events", "newest first")
    if not events:
        parts.nothing("Nothing to report.")
    now = time.time()
    shades = {"info": "gray", "warning": "orange", "error": "red"}
    for event in events:
        where = " · ".join(
            text
            for text in (
                formats.ago(event.created, now),
                f"step {formats.count(event.step)}" if event.step is not None else "",
                safe_text.inline(formats.clean(event.member, 24)) if event.member else "",
            )
            if text
        )
        level = event.level if event.level in shades else "info"
        st.markdown(
            f":{shades[level]}-badge[{level}] {safe_text.inline(formats.clean(event.message, 220))} :gray[{where}]"
        )
