"""Overview: is the run alive, and is it worth it?"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import by_prompt, charts, digest, formats, frames, frames_files, health, parts, safe_text
from dashboard.controls import Choice, Window
from dashboard.palette import member_colour
from dashboard.source import Source
from server.store.reader import EvaluationSummary, MeanInterval

TABLE_METRICS = ("entropy", "clip_own", "clip_peer", "tokens_per_second_rollout")
ETA_STEPS = 50
EVENTS = 6
_EVENT_COLOURS = {"info": "gray", "warning": "orange", "error": "red"}


def draw(source: Source, choice: Choice) -> None:
    """The whole page, at one revision of the store."""
    window = choice.window(source.info)
    parts.status_line(source, window)
    if window is None:
        parts.no_steps(source.info)
        _below(source)
        return
    bounds = _bounds(source, window)
    with parts.guarded():
        _cards(source, window, bounds)
    edges = frames.bucket_edges(window.first, window.last)
    history = source.ask("member_history", tuple(edges))
    digest.draw(source, window, history)
    slots = choice.slots(source.info)
    beside = parts.side_by_side()
    with beside, parts.card():
        parts.title("Rollout accuracy", "share of sampled responses that are right")
        _curves(source, slots, edges, history["successes"], history["rollouts"], "accuracy")
    with beside, parts.card():
        parts.title("All-fail rate", "groups without one right response")
        _curves(source, slots, edges, history["all_fail"], history["groups"], "all_fail")
    with parts.guarded():
        broken = digest.not_finite(source, window)
        if broken:
            parts.warn(f"Not a number: {', '.join(broken)}.")
        _members(source, slots, window, history, bounds)
    if parts.exchanges(source.info):
        with parts.card(stretch=False):
            health.uptake(source, window)
    _below(source)
    width = max(np.diff(edges))
    parts.caption(
        f"1 point = {formats.counted(width, 'step')} · figures and table: {by_prompt.HELP} Bands of the curves: "
        "Wilson's, which take each for itself and are somewhat too narrow."
    )


def _bounds(source: Source, window: Window) -> by_prompt.Bounds:
    """The intervals of the figures and of the table, from the newest 5,000 groups and transfers."""
    mark = repr((source.url, source.file, source.info.uid, window, source.newest_step(window.last)))
    return _drawn_by_prompt(mark, source, window.first, window.last)


# Drawing prompts takes longer than any question of a page, and its answer stays until a step is committed.
@st.cache_data(show_spinner=False, max_entries=16)
def _drawn_by_prompt(mark: str, _source: Source, _first: int, _last: int) -> by_prompt.Bounds:
    pairs = _source.ask("pair_counts", _first, _last)
    return by_prompt.bounds(
        _source.ask("newest_groups", _first, _last),
        _source.ask("newest_transfers", _first, _last),
        _source.ask("member_counts", _first, _last),
        int(pairs["admitted"].sum()),
        int(pairs["responses"].sum()),
    )


def _cards(source: Source, window: Window, bounds: by_prompt.Bounds) -> None:
    """How far, how often a member is stuck, who helps and what the gate lets in (with an exchange), and is it alive."""
    counts = source.ask("member_counts", window.first, window.last)
    pairs = source.ask("pair_counts", window.first, window.last)
    fails, groups = int(counts["all_fail"].sum()), int(counts["groups"].sum())
    admitted, responses = int(pairs["admitted"].sum()), int(pairs["responses"].sum())
    exchange = parts.exchanges(source.info)
    received = int(counts["received"].sum())
    cards = [_Card("All-fail groups", fails, groups, bounds.failed, "group", _HELP["all_fail"])]
    if exchange:
        cards.append(_Card("Rescued by a peer", received, fails, bounds.received, "group", _HELP["received"]))
        cards.append(_Card("Admitted by the gate", admitted, responses, bounds.admitted, "response", _HELP["admitted"]))
    with st.grid(2 + len(cards), min_column_width=180):
        _progress_card(source)
        for card in cards:
            _rate_card(card)
        _heartbeat_card(source)
    parts.begin("Figures of the run", str(window), by_prompt.HELP)
    parts.numbers("overview_figures", lambda: _figures(cards), pd.DataFrame([card.shown() for card in cards]))


_HELP = {
    "all_fail": "Groups in which every rollout of the member failed.",
    "received": "All-fail groups for which a peer's group came, with at least one response that was admitted.",
    "admitted": "Transferred responses that enter the update. The others have a compatibility s at or below the floor, "
    "or do not fit the receiver's tokens.",
}


class _Card(NamedTuple):
    """A share with its k of n and its interval."""

    label: str
    k: int
    n: int
    bounds: tuple[float, float]
    unit: str
    help: str

    def interval(self) -> str:
        return formats.bounds(*self.bounds) if self.n else formats.MISSING

    def shown(self) -> dict[str, str]:
        """The same as a row of a table."""
        share = formats.rate(self.k, self.n)
        return {
            "Figure": self.label,
            "Share": share,
            "95 %": self.interval(),
            "Of": formats.of(self.k, self.n, self.unit),
        }


def _figures(cards: list[_Card]) -> pd.DataFrame:
    heads = {"figure": [card.label for card in cards]}
    k, n = (np.array([getattr(card, name) for card in cards]) for name in ("k", "n"))
    return frames_files.bounded(heads, k, n, np.array([card.bounds for card in cards]).T)


def _progress_card(source: Source) -> None:
    info = source.info
    done = info.last_step or 0
    with st.container(border=True, height="stretch", gap="xsmall"):
        st.metric("Progress", formats.rate(done, info.total_steps, 0))
        st.progress(min(1.0, done / info.total_steps) if info.total_steps else 0.0)
        eta = f"ETA {formats.duration(_eta_s(source))} · " if parts.status(info) == "running" else ""
        st.caption(f"{eta}step {formats.count(done)} of {formats.count(info.total_steps)}")


def _rate_card(card: _Card) -> None:
    with st.container(border=True, height="stretch", gap="xsmall"):
        st.metric(card.label, formats.rate(card.k, card.n), help=card.help)
        st.markdown(f":gray-badge[{formats.of(card.k, card.n, card.unit)}]")
        if card.n:
            st.caption(f"95 %: {card.interval()}")


def _heartbeat_card(source: Source) -> None:
    info = source.info
    alive = parts.status(info) == "running"
    with st.container(border=True, height="stretch", gap="xsmall"):
        st.metric("Heartbeat" if alive else "Last heartbeat", formats.ago(info.heartbeat))
        st.markdown(parts.status_badge(info))
        st.caption(f"started {formats.ago(info.created)}")


def _eta_s(source: Source) -> float | None:
    """Remaining steps times the median time of the newest ones; None where no time was recorded."""
    info = source.info
    if info.last_step is None or info.first_step is None:
        return None
    first = max(info.first_step, info.last_step - ETA_STEPS + 1)
    seconds, steps = source.ask("run_metric_history", "step_seconds", tuple(range(first - 1, info.last_step + 1)))
    known = seconds[steps > 0] / steps[steps > 0]
    return float(np.median(known)) * max(0, info.total_steps - info.last_step) if len(known) else None


def _curves(source: Source, slots: list[int], edges: list[int], k: np.ndarray, n: np.ndarray, key: str) -> None:
    labels, asked = parts.labels(source.info), len(slots)
    slots = frames.most_telling(slots, frames.unlike(frames.ratio(k.sum(axis=0), n.sum(axis=0))))
    names = [labels[slot] for slot in slots]
    curves, hover = frames.rate_curves(names, edges, k[:, slots], n[:, slots])
    spec = charts.curves(
        names,
        parts.colours(),
        quantity=key.replace("_", "-"),
        height=parts.curve_height(len(names)),
        slots=slots,
    )
    whole, k, n = [parts.names(source.info)[slot] for slot in slots], k[:, slots], n[:, slots]
    parts.chart(
        spec,
        key=f"overview_{key}",
        data=lambda: frames_files.history(whole, edges, curves, numerator=k, denominator=n),
        curves=curves,
        hover=hover,
    )
    parts.cut_note(len(slots), asked, "furthest from the mean")


def _members(
    source: Source, slots: list[int], window: Window, history: dict[str, np.ndarray], bounds: by_prompt.Bounds
) -> None:
    labels = parts.labels(source.info, 28)
    counts = source.ask("member_counts", window.first, window.last)
    metrics = source.metrics(TABLE_METRICS, window.first, window.last)
    share, _, _ = frames.wilson(history["successes"], history["rollouts"])
    table = frames.member_table(
        [labels[slot] for slot in slots],
        {name: part[slots] for name, part in counts.items()},
        share.T[slots].tolist(),
        {name: (k[slots], n[slots]) for name, (k, n) in metrics.items()},
        bounds.accuracy[:, slots],
        bounds.all_fail[:, slots],
    )
    colours = parts.colours()
    dots = [f"color: {member_colour(colours, slot)}" for slot in slots]
    parts.begin("Members", str(window), by_prompt.HELP)
    parts.sortable_table(
        table.style.apply(lambda _: dots, subset=["Colour"]),
        key="overview_members",
        data=lambda: frames_files.member_figures(
            parts.names(source.info), slots, counts, metrics, bounds.accuracy, bounds.all_fail
        ),
        text=table.drop(columns=["Colour", "Trend"]),
        height="content",
        column_config=_member_columns(table),
        alt="Accuracy, all-fail rate, entropy, clipped tokens and speed of every member",
    )


def _member_columns(table: pd.DataFrame) -> dict[str, object]:
    column = st.column_config
    notes = {
        "95 %": by_prompt.HELP,
        "95 % ": by_prompt.HELP,
        "Rollouts": "Right responses of all sampled ones.",
        "Groups": "All-fail groups of all groups.",
        "Entropy": "Mean −log p of n sampled tokens, in nats.",
        "Clip own": "Share of the member's n own tokens whose ratio the objective clipped.",
        "Clip peer": "Share of n grafted tokens whose ratio the objective clipped.",
        "Tokens/s": "Sampled tokens per second of the rollout phase.",
    }
    numbers = {
        name: column.TextColumn(name.strip(), alignment="right", help=notes.get(name)) for name in table.columns[2:]
    }
    return numbers | {
        "Colour": column.TextColumn("", width=28),
        "Member": column.TextColumn(),
        "Trend": column.LineChartColumn(width="small", help="Accuracy over the window, scaled to its own range."),
    }


def _below(source: Source) -> None:
    """What does not depend on the window."""
    with parts.card(stretch=False):
        _evaluation(source)
    with parts.card(stretch=False):
        _events(source)


def _evaluation(source: Source) -> None:
    """Held-out accuracy before and now, one benchmark at a time."""
    parts.title("Held-out evaluation", "hollow: before training, filled: now, with 95 % intervals")
    evaluations = source.evaluations()
    benchmarks = digest.reporting(evaluations)
    if not benchmarks:
        configured = source.info.config.get("evaluation", {}).get("benchmarks")
        parts.nothing("No evaluation yet." if configured else "No benchmark is configured for this run.")
        return
    chosen = benchmarks[0]
    if len(benchmarks) > 1:
        chosen = st.selectbox("Benchmark", benchmarks, key="bench", bind="query-params", label_visibility="collapsed")
    names = parts.labels(source.info)
    members = [member.name for member in source.info.members]
    scores, moves = frames.before_after(members, names, [e for e in evaluations if e.benchmark == chosen])
    measured = [label for label, _, _ in moves]
    slots = [names.index(label) for label in measured]
    # Its intervals need the wider part.
    left, right = st.columns([2, 3], vertical_alignment="center")
    own = [one for one in evaluations if one.benchmark == chosen]
    with left:
        parts.chart(
            charts.before_after(measured, parts.colours(), slots),
            key="overview_evaluation",
            data=lambda: pd.DataFrame([asdict(one) for one in own]),
            scores=scores,
        )
    with right:
        parts.table(
            _moves_table(source, moves),
            key="overview_moves",
            data=lambda: _move_numbers(source, moves),
            alt="Held-out accuracy before training and now, by member",
        )
    problems = moves[0][2]
    parts.caption(
        f"{safe_text.inline(formats.clean(chosen, 60))}: {formats.counted(problems.problems, 'problem')}, "
        f"{formats.counted(problems.responses, 'response')} a member, T = {formats.number(problems.temperature, 1)}; "
        "intervals over problems, of a change over its differences problem by problem."
    )


def _moves_table(source: Source, moves: list[tuple[str, EvaluationSummary, EvaluationSummary]]) -> pd.DataFrame:
    rows = []
    for label, first, last in moves:
        once = first.step == last.step
        rows.append(
            {
                "Member": safe_text.inline(label),
                f"Before (step {formats.count(first.step)})": _score(first),
                f"Now (step {formats.count(moves[0][2].step)})": formats.MISSING if once else _score(last),
                "Change": formats.MISSING if once else _change(digest.change(source, [(label, first, last)])),
            }
        )
    return pd.DataFrame(rows)


def _move_numbers(source: Source, moves: list[tuple[str, EvaluationSummary, EvaluationSummary]]) -> pd.DataFrame:
    """First and last evaluation and the change between them, for files: shares."""
    rows = []
    for label, first, last in moves:
        moved = digest.change(source, [(label, first, last)]) if first.step != last.step else (None, None, None)
        rows += [
            (one.member, one.benchmark, when, one.step, one.problems, one.responses, one.mean, one.low, one.high)
            for when, one in (("before", first), ("now", last))
        ]
        rows.append((first.member, first.benchmark, "change", last.step, last.problems, last.responses, *moved))
    columns = ["member", "benchmark", "when", "step", "problems", "responses", "value", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def _change(change: MeanInterval) -> str:
    middle, low, high = (formats.signed(100 * part, 1) for part in change)
    return f"**{middle}** points &nbsp;:gray[{low} to {high}]"


def _score(result: EvaluationSummary) -> str:
    return f"{formats.percent(result.mean)} &nbsp;:gray[{formats.span(result.low, result.high)}]"


def _events(source: Source) -> None:
    parts.title("Last events", "newest first")
    events = source.events(EVENTS)
    if not events:
        parts.nothing("Nothing to report.")
    now = time.time()
    for event in events:
        where = [formats.ago(event.created, now)]
        if event.step is not None:
            where.append(f"step {formats.count(event.step)}")
        if event.member:
            where.append(safe_text.inline(formats.clean(event.member, 24)))
        level = event.level if event.level in _EVENT_COLOURS else "info"
        message = safe_text.inline(formats.shorten(formats.clean(event.message, 2_000), 220))
        parts.text(f":{_EVENT_COLOURS[level]}-badge[{level}] {message} :small[:gray[{' · '.join(where)}]]")
