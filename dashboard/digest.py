"""The Overview in three answers: who helps whom, does it work, is it healthy. Each with its counts and its interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import streamlit as st

from dashboard import formats, frames, frames_evaluation, health, parts, safe_text
from dashboard.controls import Window
from dashboard.source import Source
from server.store.reader import EvaluationSummary, MeanInterval

PAIRS = 4
EVENTS_READ = 500
WATCHED_METRICS = ("loss", "grad_norm", "entropy")


def draw(source: Source, window: Window, history: dict[str, np.ndarray]) -> None:
    """Three cards side by side."""
    with st.grid(3, min_column_width=280):
        for title, panel in (("Who helps whom?", _who), ("Does it work?", _works), ("Is it healthy?", _healthy)):
            with parts.card():
                parts.titled(title, panel(source, window, history))


def _who(source: Source, window: Window, _: dict[str, np.ndarray]) -> list[str]:
    """The pairs with the most grafted groups; without an exchange, those that could help most."""
    pairs = source.ask("pair_counts", window.first, window.last)
    labels = [safe_text.inline(label) for label in parts.labels(source.info)]
    if not parts.exchanges(source.info):
        return _could_help(pairs, labels)
    moved = pairs["grafted"]
    order = np.argsort(-moved, axis=None, kind="stable")
    edges = [(int(at) // len(labels), int(at) % len(labels)) for at in order if moved.flat[at]]
    if not edges:
        return [":gray[No group was grafted in these steps.]"]
    lines = [":gray[groups grafted, of all that the receiver got]"]
    lines += [
        f"{labels[i]} ← {labels[j]} &nbsp;**{formats.count(moved[i, j])}** :gray[of {formats.count(moved[i].sum())}]"
        for i, j in edges[:PAIRS]
    ]
    if len(edges) > PAIRS:
        rest = sum(int(moved[edge]) for edge in edges[PAIRS:])
        lines.append(f":gray[{formats.counted(len(edges) - PAIRS, 'more pair')}: {formats.counted(rest, 'group')}]")
    return lines


def _could_help(pairs: dict[str, np.ndarray], labels: list[str]) -> list[str]:
    solved, failed = pairs["solved"], pairs["both_attempted_fail"]
    order = [int(at) for at in np.argsort(-solved, axis=None, kind="stable") if solved.flat[at]]
    lines = [":gray[This method exchanges nothing. What peers solved of what a member failed:]"]
    for at in order[:PAIRS]:
        i, j = divmod(at, len(labels))
        lines.append(f"{labels[i]} ← {labels[j]} &nbsp;**{formats.rate_interval(solved[i, j], failed[i, j])}**")
    return lines if order else [":gray[No member solved what another one failed.]"]


def _works(source: Source, window: Window, history: dict[str, np.ndarray]) -> list[str]:
    """Held-out accuracy since the first evaluation, what grafting changed, and how much is still failed."""
    lines = _held_out(source)
    if parts.exchanges(source.info):
        lines.append(_grafts(source, window))
    fails, groups = history["all_fail"].sum(axis=1), history["groups"].sum(axis=1)
    if len(fails) > 1:
        first, last = (formats.rate_interval(fails[at], groups[at]) for at in (0, -1))
        steps = [frames.bucket_text(frames.bucket_edges(window.first, window.last), at) for at in (0, len(fails) - 1)]
        lines.append(
            f"All-fail groups {first} → **{last}** :gray[steps {steps[0]} and {steps[1]}, n "
            f"{formats.count(groups[0])} and {formats.count(groups[-1])}]"
        )
    return lines


def _held_out(source: Source) -> list[str]:
    evaluations = source.evaluations()
    benchmark = next(iter(reporting(evaluations)), None)
    members = [member.name for member in source.info.members]
    chosen = [result for result in evaluations if result.benchmark == benchmark]
    moves = frames.before_after(members, parts.labels(source.info), chosen)[1] if chosen else []
    twice = [(label, first, last) for label, first, last in moves if first.step != last.step]
    if not twice:
        return [":gray[Held-out accuracy: not yet evaluated twice.]"]
    up = sum(last.mean > first.mean for _, first, last in twice)
    middle, low, high = (formats.signed(100 * part, 1) for part in change(source, twice))
    newest = twice[0][2]
    problems = f"{formats.counted(newest.problems, 'problem')} of {formats.clean(newest.benchmark, 24)}"
    return [
        f"Held-out accuracy **{middle}** points :gray[({low} to {high}) in the mean, {up} of {len(twice)} up, "
        f"n {safe_text.inline(problems)}]"
    ]


def reporting(evaluations: Sequence[EvaluationSummary]) -> list[str]:
    """The benchmarks of these evaluations, test sets first: a validation set may have chosen the checkpoints."""
    roles = {one.benchmark: one.role for one in evaluations}
    return sorted(roles, key=lambda name: roles[name] != "test")


def change(source: Source, moves: Sequence[tuple[str, EvaluationSummary, EvaluationSummary]]) -> MeanInterval:
    """The last less the first evaluation of (label, first, last), the mean of several members, as a share with its
    95 % interval over the problems that all have."""
    pairs = [
        tuple(source.ask("evaluation_problems", one.benchmark, one.step, one.member) for one in (last, first))
        for _, first, last in moves
    ]
    return frames_evaluation.joint_change([(own, base) for own, base in pairs])[0]


def _grafts(source: Source, window: Window) -> str:
    every = health.uptake_every(source, window)
    _, total = source.ask("uptake", window.first, window.last, every=every)
    missing = health.why_no_uptake(total)
    if missing:
        return f":gray[Grafts: {missing}]"
    middle, low, high = frames.uptake_points(total)
    span = f"{formats.signed(low, 1)} to {formats.signed(high, 1)}"
    visits = f"n {formats.count(total['grafted_seen'])} v {formats.count(total['held_out_seen'])} withheld"
    word = ":green-badge[yes]" if low > 0 else ":red-badge[they hurt]" if high < 0 else ":gray-badge[open]"
    if not frames.enough_visits(total):
        word = ":gray-badge[too few visits]"
    return f"Grafts **{formats.signed(middle, 1)}** points :gray[({span}), {visits}{health.uptake_note(every)}] {word}"


def _healthy(source: Source, window: Window, _: dict[str, np.ndarray]) -> list[str]:
    """Is the writer alive, do numbers stay numbers, and what was warned of."""
    lines = [f"{parts.status_badge(source.info)} :gray[{parts.life(source.info)}]"]
    found = [
        event
        for event in source.events(EVENTS_READ)
        if event.level != "info" and (event.step is None or window.first <= event.step <= window.last)
    ]
    counts = {level: sum(event.level == level for event in found) for level in ("error", "warning")}
    broken = not_finite(source, window)
    if not found and not broken:
        lines.append(":gray[No warning and no error in these steps.]")
    for level, colour in (("error", "red"), ("warning", "orange")):
        if counts[level]:
            many = formats.counted(counts[level], level)
            newest = next(event for event in found if event.level == level)
            at = "" if newest.step is None else f"step {formats.count(newest.step)}: "
            text = safe_text.inline(formats.shorten(formats.clean(newest.message, 2_000), 150))
            lines.append(f":{colour}-badge[{many}] :gray[{at}{text}]")
    if broken:
        lines.append(f":red-badge[not a number] :gray[{', '.join(broken)}]")
    return lines


def not_finite(source: Source, window: Window) -> list[str]:
    """Which members' training produced numbers that are none, and how often; such a step enters no mean."""
    labels = parts.labels(source.info, 28)
    found = []
    for name, counted in source.ask("metric_buckets", WATCHED_METRICS, (window.first - 1, window.last)).items():
        what = name.replace("_", " ")
        found += [
            f"{what} of {safe_text.inline(label)} in {formats.counted(times, 'step')}"
            for label, times in zip(labels, counted.not_finite[0].tolist(), strict=True)
            if times
        ]
    return found
