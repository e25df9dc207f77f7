"""From the store's arrays to the frames that charts and tables show: pure, no Streamlit, no database.

Shapes as in `server.store.reader`: N members in slot order, histories of B buckets [B, N] and [B, N, N].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard import formats
from graft.complementarity import uptake
from server.store.reader import EvaluationSummary, TransferRecord

Array = NDArray[np.float64] | NDArray[np.int64]

# Normal quantile of 95 %.
Z = 1.959963984540054
# With at most this many buckets every point is marked: a line through two points hides that they are two.
_MARKED_BUCKETS = 12
_BUCKET_WIDTHS = (1, 2, 5)
# The normal interval of a difference of shares is too narrow for fewer.
FEWEST_VISITS = 5


def bucket_edges(first: int, last: int, most: int = 45) -> list[int]:
    """Edges of at most `most` + 1 buckets over the steps first .. last (bucket b: edges[b] + 1 .. edges[b + 1]).

    Inner edges are multiples of a round width (1, 2, 5, 10, 20, ...), so a bucket that is full never changes again as
    the run goes on.
    """
    width = next(
        base * 10**power
        for power in range(12)
        for base in _BUCKET_WIDTHS
        if last - first + 1 <= (most - 1) * base * 10**power or (last - first + 1 <= most and base * 10**power == 1)
    )
    inner = range((first - 1) // width * width + width, last, width)
    return [first - 1, *inner, last]


def fewer(members: int) -> int:
    """Buckets of a chart with a line for each member: the more lines, the smoother each must be to be followed."""
    return 30 if members <= 6 else 15 if members <= 12 else 8


def most_telling(slots: Sequence[int], weight: Array, most: int = 8) -> list[int]:
    """These slots, or of more than 12 the `most` of the largest weight [N], in order: more lines cannot be followed."""
    if len(slots) <= 12:
        return list(slots)
    return sorted(sorted(slots, key=lambda slot: -float(weight[slot]))[:most])


def unlike(values: Array) -> NDArray[np.float64]:
    """How far each member's value [N] lies from the mean of those that have one; 0 for a member that has none."""
    known = np.isfinite(values)
    middle = float(np.mean(values[known])) if known.any() else 0.0
    return np.where(known, np.abs(values - middle), 0.0)


def ratio(k: Array, n: Array) -> NDArray[np.float64]:
    """k / n; NaN where n is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(n > 0, np.asarray(k, np.float64) / n, np.nan)


def bucket_text(edges: Sequence[int], bucket: int) -> str:
    """The steps of a bucket: "441" or "436–440"."""
    low, high = edges[bucket] + 1, edges[bucket + 1]
    return formats.count(low) if low == high else f"{formats.count(low)}–{formats.count(high)}"


def wilson(k: Array, n: Array) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(share, low, high) of k of n in any shape, as `wilson_interval` of each at 95 %; NaN where n is 0."""
    hits, total = np.asarray(k, np.float64), np.asarray(n, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total > 0, hits / total, np.nan)
        scale = 1 + Z**2 / total
        centre = (share + Z**2 / (2 * total)) / scale
        half = Z / scale * np.sqrt(share * (1 - share) / total + Z**2 / (4 * total**2))
    return share, np.maximum(0.0, centre - half), np.minimum(1.0, centre + half)


def curve_frame(labels: Sequence[str], edges: Sequence[int], value: Array, low: Array, high: Array) -> pd.DataFrame:
    """Frame "curves" of `charts.curves` for values and their bounds, [B, K] each, K being the labels' length; NaN is a
    gap."""
    values = np.asarray(value, np.float64)
    return pd.DataFrame(
        {
            "member": np.tile(np.asarray(labels, dtype=object), len(values)),
            "step": np.repeat(np.asarray(edges[1:], dtype=np.int64), len(labels)),
            "value": values.ravel(),
            "low": low.ravel(),
            "high": high.ravel(),
            "lone": _lone(values).ravel(),
        }
    )


def hover_frame(edges: Sequence[int], texts: Sequence[Sequence[str]]) -> pd.DataFrame:
    """Frame "hover" of `charts.curves`: `texts` holds those of every line, a text a bucket."""
    steps = [bucket_text(edges, bucket) for bucket in range(len(edges) - 1)]
    hover = pd.DataFrame({"step": np.asarray(edges[1:], dtype=np.int64), "steps": steps})
    for line, text in enumerate(texts):
        hover[f"m{line}"] = text
    return hover


def rate_curves(labels: Sequence[str], edges: Sequence[int], k: Array, n: Array) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Frames "curves" and "hover" of `charts.curves` for the shares k / n, [B, K] each, K being the labels' length."""
    texts = [
        [
            f"{formats.rate(hits, total)} ({_hits(hits)}/{formats.count(total)})" if total else formats.MISSING
            for hits, total in zip(k[:, slot].tolist(), n[:, slot].tolist(), strict=True)
        ]
        for slot in range(len(labels))
    ]
    return curve_frame(labels, edges, *wilson(k, n)), hover_frame(edges, texts)


def _hits(k: float) -> str:
    """A count; a mean of counts keeps a decimal."""
    return formats.count(k) if float(k).is_integer() else formats.number(k, 1)


def value_curves(
    labels: Sequence[str],
    edges: Sequence[int],
    value: Array,
    half: Array,
    n: Array | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Frames "curves" and "hover" of `charts.curves` for values with intervals value - half .. value + half, cut at
    `bounds`, each over n observations, [B, K] each; NaN is a gap."""
    counted = (
        [[""] * len(labels)] * len(value) if n is None else [[f" (n {formats.count(k)})" for k in row] for row in n]
    )
    texts = [
        [
            f"{formats.signed(middle)} ± {formats.number(width, 2)}{counted[bucket][line]}"
            if math.isfinite(middle)
            else formats.MISSING
            for bucket, (middle, width) in enumerate(zip(value[:, line].tolist(), half[:, line].tolist(), strict=True))
        ]
        for line in range(len(labels))
    ]
    low, high = np.maximum(bounds[0], value - half), np.minimum(bounds[1], value + half)
    return curve_frame(labels, edges, value, low, high), hover_frame(edges, texts)


def coverage_counts(union: Array, prompts: Array, solved: Array, asked: Array) -> tuple[Array, Array]:
    """(k, n) [B, 3] of together, the best member and the mean of members, from `union` of `prompts` [B] that anybody
    solved, and `solved` of `asked` [B, N] of every member. The mean's k may be a fraction."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(asked > 0, solved / asked, np.nan)
    known = np.isfinite(share).any(axis=1)
    best = np.argmax(np.nan_to_num(share, nan=-1.0), axis=1)[:, None]
    n = np.concatenate([prompts[:, None], np.take_along_axis(asked, best, 1), asked.max(axis=1, keepdims=True)], axis=1)
    mean = np.array([np.nanmean(row) if there else 0.0 for row, there in zip(share, known, strict=True)])
    k = np.concatenate([union[:, None], np.take_along_axis(solved, best, 1), (mean * n[:, 2])[:, None]], axis=1)
    return k, n


def uptake_points(counts: Mapping[str, int]) -> tuple[float, float, float]:
    """What grafting changed at the next visit with its 95 % interval, in percentage points, from counts of visits."""
    names = ("grafted_solved", "grafted_seen", "held_out_solved", "held_out_seen")
    change = uptake(*(counts[name] for name in names))
    middle, half = 100 * change.difference, 100 * Z * change.standard_error
    return middle, max(-100.0, middle - half), min(100.0, middle + half)


def enough_visits(counts: Mapping[str, int]) -> bool:
    """Whether both sides have so many visits that the interval of their difference can be trusted."""
    return min(counts["grafted_seen"], counts["held_out_seen"]) >= FEWEST_VISITS


def uptake_rows(
    labels: Sequence[str], edges: Mapping[str, Array], total: Mapping[str, int], most: int
) -> tuple[pd.DataFrame, int]:
    """(frame "uptake" of `health_charts.uptake`, how many pairs were left out): all together first, then the `most`
    pairs with the most withheld visits, of those with enough of both kinds. Counts as `Reader.uptake` gives them."""
    pairs = [
        (f"{labels[i]} ← {labels[j]}", {name: int(counts[i, j]) for name, counts in edges.items()})
        for i in range(len(labels))
        for j in range(len(labels))
        if edges["grafted_seen"][i, j] and edges["held_out_seen"][i, j]
    ]
    pairs.sort(key=lambda pair: -pair[1]["held_out_seen"])
    most = min(most, sum(enough_visits(counts) for _, counts in pairs))
    rows = []
    for order, (label, counts) in enumerate([("all", total), *pairs[:most]]):
        k, n, held_k, held_n = (
            counts[name] for name in ("grafted_solved", "grafted_seen", "held_out_solved", "held_out_seen")
        )
        middle, low, high = uptake_points(counts)
        rows.append(
            {
                "row": f"{label}  (n {formats.count(n)} v {formats.count(held_n)})",
                "order": order,
                "value": middle,
                "low": low,
                "high": high,
                "total": order == 0,
                "after": f"{formats.rate(k, n)} ({formats.count(k)}/{formats.count(n)})",
                "withheld": f"{formats.rate(held_k, held_n)} ({formats.count(held_k)}/{formats.count(held_n)})",
                "detail": f"{formats.signed(middle, 1)} ({formats.signed(low, 1)} to {formats.signed(high, 1)})",
            }
        )
    return pd.DataFrame(rows), max(0, len(pairs) - most)


def mean_lines(labels: Sequence[str], values: Array) -> pd.DataFrame:
    """Frame "means" of `charts.curves`: the value of every label that has one."""
    rows = [
        {"member": label, "value": value}
        for label, value in zip(labels, np.ravel(values).tolist(), strict=True)
        if math.isfinite(value)
    ]
    return pd.DataFrame(rows, columns=["member", "value"])


def _lone(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Points [B, K] that need a mark of their own: all of them when there are few, else those between two gaps."""
    there = np.isfinite(values)
    if len(values) <= _MARKED_BUCKETS:
        return there
    padded = np.pad(there, ((1, 1), (0, 0)))
    return there & ~padded[:-2] & ~padded[2:]


def before_after(
    names: Sequence[str], labels: Sequence[str], evaluations: Sequence[EvaluationSummary]
) -> tuple[pd.DataFrame, list[tuple[str, EvaluationSummary, EvaluationSummary]]]:
    """Frame "scores" of `charts.before_after`, and (label, first, last) evaluation of every member that has one.

    `evaluations` are of one benchmark. A member evaluated once has only a "before".
    """
    rows, moves = [], []
    for name, label in zip(names, labels, strict=True):
        own = sorted((e for e in evaluations if e.member == name), key=lambda e: e.step)
        if not own:
            continue
        moves.append((label, own[0], own[-1]))
        for when, result in [("before", own[0]), ("now", own[-1])][: 1 if len(own) == 1 else 2]:
            rows.append(
                {
                    "member": label,
                    "when": when,
                    "value": result.mean,
                    "low": result.low,
                    "high": result.high,
                    "detail": f"{formats.percent(result.mean)} ({formats.span(result.low, result.high)}), "
                    f"step {formats.count(result.step)}, {formats.counted(result.problems, 'problem')}",
                }
            )
    return pd.DataFrame(rows, columns=["member", "when", "value", "low", "high", "detail"]), moves


def member_table(
    labels: Sequence[str],
    counts: Mapping[str, Array],
    trend: Sequence[Sequence[float]],
    metrics: Mapping[str, tuple[Array, Array]],
    accuracy: NDArray[np.float64],
    all_fail: NDArray[np.float64],
) -> pd.DataFrame:
    """One row a member, everything already text except the trend. `metrics` holds (numerator [N], denominator [N]) of
    "entropy", "clip_own", "clip_peer" and "tokens_per_second_rollout"; accuracy and all_fail are bounds [2, N]."""
    rows = []
    for slot, label in enumerate(labels):
        wins, tries = int(counts["successes"][slot]), int(counts["rollouts"][slot])
        fails, groups = int(counts["all_fail"][slot]), int(counts["groups"][slot])
        rows.append(
            {
                "Colour": "●",
                "Member": label,
                "Accuracy": formats.rate(wins, tries),
                "95 %": formats.bounds(*accuracy[:, slot].tolist()),
                "Rollouts": f"{formats.count(wins)}/{formats.count(tries)}" if tries else formats.MISSING,
                "Trend": [value for value in trend[slot] if math.isfinite(value)],
                "All-fail": formats.rate(fails, groups),
                "95 % ": formats.bounds(*all_fail[:, slot].tolist()),
                "Groups": f"{formats.count(fails)}/{formats.count(groups)}" if groups else formats.MISSING,
                "Entropy": _ratio_text(metrics, "entropy", slot, lambda k, n: _with_n(formats.number(k / n), n)),
                "Clip own": _ratio_text(metrics, "clip_own", slot, lambda k, n: _with_n(formats.rate(k, n), n)),
                "Clip peer": _ratio_text(metrics, "clip_peer", slot, lambda k, n: _with_n(formats.rate(k, n), n)),
                "Tokens/s": _ratio_text(metrics, "tokens_per_second_rollout", slot, lambda k, n: formats.count(k / n)),
            }
        )
    return pd.DataFrame(rows)


def _ratio_text(
    metrics: Mapping[str, tuple[Array, Array]], name: str, slot: int, text: Callable[[float, float], str]
) -> str:
    numerator, denominator = metrics[name]
    return text(float(numerator[slot]), float(denominator[slot])) if denominator[slot] else formats.MISSING


def _with_n(text: str, n: float) -> str:
    return f"{text} (n {formats.compact(n)})"


def gate_frames(transfer: TransferRecord, rewards: Sequence[float], floor: float | None) -> dict[str, pd.DataFrame]:
    """Frames "responses" and "floor" of `charts.gate_strip`; responses without an s are left out.

    `rewards` are the source group's; where they are not stored, as for an absent group, the answer is "unknown".
    """
    rows: list[dict[str, object]] = [
        {
            "index": f"#{response.index}",
            "s": response.s,
            "verdict": "admitted" if response.refusal is None else "refused",
            "answer": _answer(rewards, response.index),
            "detail": formats.number(response.s),
        }
        for response in transfer.responses
        if response.s is not None and math.isfinite(response.s)
    ]
    for row, lift in zip(rows, lifts([cast(float, row["s"]) for row in rows], floor), strict=True):
        row["lift"] = lift
    floors = [] if floor is None else [{"floor": floor, "text": f"floor {formats.number(floor, 2)}"}]
    return {
        "responses": pd.DataFrame(rows, columns=["index", "s", "lift", "verdict", "answer", "detail"]),
        "floor": pd.DataFrame(floors, columns=["floor", "text"]),
    }


def _answer(rewards: Sequence[float], index: int) -> str:
    if index >= len(rewards):
        return "unknown"
    return "right" if rewards[index] > 0 else "wrong"


def lifts(values: Sequence[float], floor: float | None, gap: float = 0.025) -> list[int]:
    """Levels of points on a strip, so that none hides another: the lowest whose last point is `gap` widths away."""
    ends = [*values, *([] if floor is None else [floor])]
    width = (max(ends) - min(ends)) if ends else 0.0
    levels: list[float] = []
    chosen = [0] * len(values)
    for place in sorted(range(len(values)), key=lambda at: values[at]):
        value = values[place]
        level = next((at for at, last in enumerate(levels) if value - last > gap * width), len(levels))
        levels[level : level + 1] = [value]
        chosen[place] = level
    return chosen
