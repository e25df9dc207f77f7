"""Panels on the population's health: did the grafts take, and do the members still differ?"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from dashboard import charts, formats, frames, frames_files, health_charts, parts, safe_text
from dashboard.controls import Window
from dashboard.source import Source
from graft.complementarity import phi_coefficient, phi_standard_error

# Rows of the uptake chart besides the total, and lines of the correlation chart, before they are cut or pooled.
MOST_EDGES = 12
MOST_PAIRS = 6
WARNINGS = 3
# Transfers whose next visit is looked up for one answer.
MOST_UPTAKE = 5_000
_PHI_COUNTS = ("both_graded", "failed_beside", "failed_together")


def uptake(source: Source, window: Window) -> None:
    """What receivers did at the next visit of a prompt: after a graft, and after one that was withheld."""
    parts.title(
        "Did the grafts take?",
        "solved at the next visit: after a graft, less after a withheld one",
        "A share of the chosen groups (exchange.holdout) is withheld at random. A receiver that meets the prompt again "
        "solved it when at least one rollout is right. The difference to the withheld groups is what grafting changed; "
        "without them, a prompt that is easier the second time would look like learning. Bars: 95 % intervals.",
    )
    every = uptake_every(source, window)
    edges, total = source.ask("uptake", window.first, window.last, every=every)
    missing = why_no_uptake(total)
    if missing:
        parts.nothing(missing)
        return
    rows, cut = frames.uptake_rows(parts.labels(source.info), edges, total, MOST_EDGES)
    parts.chart(
        health_charts.uptake(parts.colours(), len(rows)),
        key="overview_uptake",
        data=lambda: frames_files.uptake(parts.names(source.info), edges, total),
        uptake=rows,
    )
    waiting = formats.of(total["grafted_seen"] + total["held_out_seen"], total["grafted"] + total["held_out"], "place")
    note = f" · {formats.counted(cut, 'pair')} with fewer visits left out" if cut else ""
    note += uptake_note(every)
    parts.caption(f"n: visits after a graft v after a withheld one · met again so far: {waiting}{note}")


def uptake_every(source: Source, window: Window) -> int:
    """1, 2, 5, 10, ...: of which steps the transfers are followed, so that MOST_UPTAKE of them are looked up at most
    (or those of one step)."""
    pairs = source.ask("pair_counts", window.first, window.last)
    chosen = int(pairs["routed"].sum() + pairs["held_out"].sum())
    widths = (base * 10**power for power in range(9) for base in (1, 2, 5))
    return next(width for width in widths if chosen <= MOST_UPTAKE * width or width > window.last - window.first)


def uptake_note(every: int) -> str:
    """What is said where only some steps were looked at."""
    return "" if every == 1 else f" · of transfers in steps that {formats.count(every)} divides"


def why_no_uptake(total: dict[str, int]) -> str:
    """Why nothing can be said yet; empty where something can."""
    if not total["grafted"] + total["held_out"]:
        return "No group was transferred in these steps."
    if not total["held_out"]:
        return "No group was withheld as a control (exchange.holdout): what the grafts changed cannot be told."
    if not (total["grafted_seen"] and total["held_out_seen"]):
        return (
            f"No receiver has met both kinds of prompt again: {formats.count(total['grafted'])} grafted and "
            f"{formats.counted(total['held_out'], 'withheld place')} wait for the next visit."
        )
    return ""


def coverage(source: Source, window: Window) -> None:
    """The share of prompts that anybody solves, against the mean and the best member."""
    parts.title(
        "Coverage",
        "share of prompts solved at least once",
        "Together: by at least one member. When this stands still while the mean rises, members learn what others knew "
        "already, and less is left to exchange. Bands: 95 % Wilson intervals over prompts.",
    )
    edges = frames.bucket_edges(window.first, window.last, 30)
    union, prompts = source.ask("run_metric_history", "union_solved", tuple(edges))
    solved, asked = source.ask("metric_history", "solved", tuple(edges))
    if not asked.any():
        parts.nothing("This run did not record its coverage.")
        return
    labels = ["together", "best member", "mean of members"]
    k, n = frames.coverage_counts(union, prompts, solved, asked)
    curves, hover = frames.rate_curves(labels, edges, k, n)
    spec = charts.curves(labels, parts.colours(), quantity="share of prompts solved", slots=_unlike_members(source, 3))
    parts.chart(
        spec,
        key="health_coverage",
        data=lambda: frames_files.history(labels, edges, curves, "of", numerator=k, denominator=n),
        curves=curves,
        hover=hover,
    )


def correlation(source: Source, window: Window) -> None:
    """How far members fail on the same prompts."""
    parts.title(
        "Failing together",
        "phi of two members' all-fail prompts",
        "1: they fail on the same prompts, so that neither can help the other. 0: independent. Below 0: each fails "
        "where the other does not. n: prompts that both were graded on. Bands: 95 % intervals.",
    )
    edges = frames.bucket_edges(window.first, window.last, 12)
    history = source.ask("pair_history", tuple(edges))
    counts = [history[name] for name in _PHI_COUNTS]
    phi, error = phi_coefficient(*counts), phi_standard_error(*counts)
    # One pair has the legend to itself.
    names = parts.labels(source.info, 18 if len(source.info.members) == 2 else 9)
    pairs = list(combinations(range(len(names)), 2))
    labels = [f"{names[i]} · {names[j]}" for i, j in pairs]
    value, half, n = (np.stack([part[:, i, j] for i, j in pairs], axis=1) for part in (phi, error, counts[0]))
    if len(pairs) > MOST_PAIRS:
        # The error of a mean is at most the mean of the errors, however alike the pairs are.
        labels = ["mean of the pairs that have one"]
        known = np.isfinite(value)
        many = known.sum(axis=1, keepdims=True)
        value, half, n = (
            frames.ratio(np.where(known, part, 0.0).sum(axis=1, keepdims=True), many) for part in (value, half, n)
        )
    if not np.isfinite(value).any():
        parts.nothing("No two members both failed some prompts and solved others in these steps.")
        return
    curves, hover = frames.value_curves(labels, edges, value, frames.Z * half, n, bounds=(-1.0, 1.0))
    slots = _unlike_members(source, len(labels))
    spec = charts.curves(labels, parts.colours(), quantity="failure correlation", slots=slots, number=charts.PLAIN)
    parts.chart(
        spec,
        key="health_correlation",
        data=lambda: frames_files.history(labels, edges, curves, "pair", n=n),
        curves=curves,
        hover=hover,
    )


def _unlike_members(source: Source, lines: int) -> list[int]:
    """Places in the palette after the members', whose colours mean a member everywhere."""
    return list(range(len(source.info.members), len(source.info.members) + lines))


def warnings(source: Source, window: Window) -> None:
    """The newest warnings of these steps."""
    found = [
        event
        for event in source.events(500)
        if event.level == "warning" and event.step is not None and window.first <= event.step <= window.last
    ]
    for event in found[:WARNINGS]:
        member = f" **{safe_text.inline(formats.clean(event.member, 24))}**" if event.member else ""
        text = safe_text.inline(formats.shorten(formats.clean(event.message, 2_000), 320))
        parts.text(f":orange-badge[step {formats.count(event.step or 0)}]{member} {text}")
    if len(found) > WARNINGS:
        parts.caption(f"{formats.counted(len(found) - WARNINGS, 'earlier warning')} in these steps.")
