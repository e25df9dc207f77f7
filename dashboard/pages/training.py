"""Training: is every member's update healthy, and where does its time go?"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from dashboard import charts, charts_training, formats, frames, frames_files, frames_training, paper, parts, safe_text
from dashboard.controls import Choice, Window, pick
from dashboard.frames_training import Series
from dashboard.source import Source
from server.store.reader import Buckets

# Metric, quantity, explanation, whether it is a share, help.
CURVES = (
    ("entropy", "Entropy", "mean −log-probability of sampled tokens, nats", False, "A fall to 0 is a collapse."),
    ("response_tokens", "Response length", "tokens of a sampled response", False, ""),
    ("truncated", "Truncated", "responses that reached the length limit", True, "They count as wrong."),
    ("loss", "Loss", "of the policy objective, mean over minibatches", False, ""),
    ("grad_norm", "Gradient norm", "before clipping, mean over minibatches", False, ""),
    ("learning_rate", "Learning rate", "", False, ""),
    ("tokens_per_second_rollout", "Sampling speed", "tokens per second of sampling", False, ""),
    ("peer_token_share", "Peer tokens", "share of an update's tokens that a peer wrote", True, ""),
)
MISMATCH = (
    ("engine_trainer_gap", "Mean |trainer − engine|", "nats per token"),
    ("mismatch_kl", "KL(engine, trainer)", "k3 estimate, nats per token"),
    ("mismatch_far", "Far apart", "share of tokens more than 0.1 nats apart"),
    ("mismatch_capped", "Capped", "share of importance weights that the cap cut"),
)
# A band of the smallest and largest step needs every step of the window to be read.
RANGE_STEPS = 2_000
POINTS = {"fine": 45, "medium": 20, "coarse": 8}


def draw(source: Source, choice: Choice) -> None:
    """The whole page, at one revision of the store."""
    window = choice.window(source.info)
    parts.status_line(source, window)
    if window is None:
        parts.no_steps(source.info)
        return
    points = pick(
        "Points",
        list(POINTS),
        key="points",
        default="fine",
        segments=True,
        help="How many steps a point pools. The band always shows the smallest and the largest single step.",
    )
    slots, edges = choice.slots(source.info), frames.bucket_edges(window.first, window.last, POINTS[points])
    known = set(source.ask("metric_names"))
    buckets = source.ask("metric_buckets", tuple(name for name, *_ in CURVES if name in known), tuple(edges))
    with parts.guarded():
        _not_finite(source, slots, buckets)
    beside = parts.side_by_side()
    with beside, parts.card():
        _reward(source, slots, edges)
    for name, quantity, explanation, share, help_text in CURVES:
        if name in buckets:
            with beside, parts.card():
                _curve(source, slots, edges, window, buckets[name], name, quantity, explanation, share, help_text)
    parts.caption(_about(edges, window))
    with parts.card(stretch=False):
        _clipped(source, slots, window, known)
    with parts.card(stretch=False):
        _mismatch(source, slots, window, known)
    with parts.card(stretch=False):
        _time(source, slots, window, known)


def _about(edges: list[int], window: Window) -> str:
    width = max(np.diff(edges))
    text = f"1 point = {formats.counted(width, 'step')}, pooled"
    if width == 1:
        return text + "."
    if window.last - window.first >= RANGE_STEPS:
        return text + f" · bands of single steps are drawn for windows of up to {formats.count(RANGE_STEPS)} steps."
    return text + " · bands: smallest and largest single step."


def _not_finite(source: Source, slots: list[int], buckets: dict[str, Buckets]) -> None:
    """Values that are no numbers are counted and named; their place in a curve is a gap."""
    labels = parts.labels(source.info)
    found = []
    for name, quantity, *_ in CURVES:
        if name in buckets:
            broken = buckets[name].not_finite
            found += [
                f"{safe_text.inline(labels[slot])}: {quantity.lower()} ({formats.count(broken[:, slot].sum())})"
                for slot in slots
                if broken[:, slot].any()
            ]
    if found:
        parts.warn("Not a number: " + ", ".join(found) + ". Gaps in the curves.", "error")


def _reward(source: Source, slots: list[int], edges: list[int]) -> None:
    parts.title("Reward", "share of sampled responses that are right", "With its 95 % Wilson interval.")
    history, asked = source.ask("member_history", tuple(edges)), len(slots)
    right, rollouts = history["successes"], history["rollouts"]
    slots = frames.most_telling(slots, frames.unlike(frames.ratio(right.sum(axis=0), rollouts.sum(axis=0))))
    shown = [parts.labels(source.info)[slot] for slot in slots]
    curves, hover = frames.rate_curves(shown, edges, right[:, slots], rollouts[:, slots])
    spec = charts.curves(shown, parts.colours(), quantity="reward", height=parts.curve_height(len(shown)), slots=slots)
    whole, k, n = [parts.names(source.info)[slot] for slot in slots], right[:, slots], rollouts[:, slots]
    parts.chart(
        spec,
        key="training_reward",
        data=lambda: frames_files.history(whole, edges, curves, numerator=k, denominator=n),
        curves=curves,
        hover=hover,
    )
    parts.cut_note(len(slots), asked, "furthest from the mean")


def _curve(
    source: Source,
    slots: list[int],
    edges: list[int],
    window: Window,
    buckets: Buckets,
    name: str,
    quantity: str,
    explanation: str,
    share: bool,
    help_text: str,
) -> None:
    """One metric of every member: pooled mean, and the range of single steps around it."""
    parts.title(quantity, explanation, help_text or None)
    recorded, asked = _series(source, name, edges, window, buckets), len(slots)
    slots = frames.most_telling(slots, frames.unlike(recorded.whole))
    series = recorded.of(slots)
    if not series.any:
        parts.nothing("Nothing finite was recorded in these steps.")
        return
    shown = [parts.labels(source.info)[slot] for slot in slots]
    curves, hover = frames_training.pooled_curves(shown, edges, series, share)
    spec = charts.curves(
        shown,
        parts.colours(),
        quantity=quantity,
        height=parts.curve_height(len(shown)),
        slots=slots,
        number=charts.PERCENT if share else charts.PLAIN,
    )
    whole = [parts.names(source.info)[slot] for slot in slots]
    parts.chart(
        spec,
        key=f"training_{name}",
        data=lambda: frames_files.pooled(whole, edges, series),
        curves=curves,
        hover=hover,
    )
    parts.cut_note(len(slots), asked, "furthest from the mean")


def _series(source: Source, name: str, edges: list[int], window: Window, buckets: Buckets) -> Series:
    if max(np.diff(edges)) == 1 or window.last - window.first >= RANGE_STEPS:
        return Series(buckets.numerator, buckets.denominator, None, None)
    return Series(buckets.numerator, buckets.denominator, *source.ask("metric_range", name, tuple(edges)))


def _clipped(source: Source, slots: list[int], window: Window, known: set[str]) -> None:
    """Clipped tokens by the minibatch's place in the step, own and peers', as in the paper's table 9."""
    parts.title(
        "Clipped tokens",
        "by the minibatch's place in the step",
        "Share of tokens on which the clip acted. The first minibatch is at the weights that sampled, so its own "
        "tokens are never clipped; grafted groups come last. –: no such token.",
    )
    places = sorted(int(m.group(1)) for name in known if (m := re.fullmatch(r"clip_own_mb(\d+)", name)))
    if not places:
        parts.nothing("This run recorded no clipping by minibatch.")
        return
    labels = parts.labels(source.info)
    wanted = {(kind, place): f"clip_{kind}_mb{place}" for kind in ("own", "peer") for place in places}
    totals = source.metrics(tuple(wanted.values()), window.first, window.last)
    counts = {cell: totals[name] for cell, name in wanted.items()}
    rows = frames_training.clip_rows([safe_text.inline(labels[slot]) for slot in slots], slots, places, counts)
    parts.table(
        pd.DataFrame(rows),
        key="training_clipped",
        data=lambda: frames_files.clipped(parts.names(source.info), slots, counts),
        alt="Share of clipped tokens by minibatch and origin",
    )
    parts.caption(paper.clipping())


def _mismatch(source: Source, slots: list[int], window: Window, known: set[str]) -> None:
    """What the engine said against the trainer, under the same weights."""
    parts.title(
        "Engine against trainer",
        "log-probabilities of own tokens under the same weights",
        "Measured on the first minibatch of every step. 0 up to rounding where sampling and training share their "
        "arithmetic; a few hundredths of a nat between bfloat16 kernels; more says that a sync did not land.",
    )
    labels = parts.labels(source.info)
    rows = []
    recorded = [entry for entry in MISMATCH if entry[0] in known]
    totals = source.metrics(tuple(name for name, _, _ in recorded), window.first, window.last)
    for slot in slots:
        row = {"Member": safe_text.inline(labels[slot])}
        for name, quantity, unit in recorded:
            numerator, denominator = (float(part[slot]) for part in totals[name])
            row[f"{quantity}, {unit}"] = (
                f"{formats.short(numerator / denominator)} (n {formats.compact(denominator)})"
                if denominator
                else formats.MISSING
            )
        rows.append(row)
    if not recorded:
        parts.nothing("This run recorded no engine log-probabilities.")
        return
    parts.table(
        pd.DataFrame(rows),
        key="training_mismatch",
        data=lambda: frames_files.metrics(parts.names(source.info), slots, totals),
        alt="Engine against trainer, by member",
    )


def _time(source: Source, slots: list[int], window: Window, known: set[str]) -> None:
    """Every member's seconds by what it did, and idle ones by what it waited for."""
    parts.title(
        "Time",
        "of every member, by what it did and what it waited for",
        "Shares of the steps' wall time. Waits: for the device that it shares (turn), for other members (barrier), for "
        "answers to be verified (grading), for the run itself (other).",
    )
    names = tuple(name for name, _ in charts_training.ACTIVITIES if name in known)
    totals = {name: seconds for name, (seconds, _) in source.metrics(names, window.first, window.last).items()}
    labels = parts.labels(source.info)
    rows = frames_training.time_rows([labels[slot] for slot in slots], slots, totals)
    if rows.empty:
        parts.nothing("This run recorded no times by member.")
        return
    spec = charts_training.activities([labels[slot] for slot in slots], parts.colours())
    parts.chart(
        spec,
        key="training_time",
        data=lambda: frames_files.seconds(parts.names(source.info), slots, totals),
        activities=rows,
    )
