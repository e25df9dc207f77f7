"""What the N x N matrices can show: one `Measure` each, from the store's counts to values with n and an interval. Pure.

Counts are those of `Reader.pair_counts` and `Reader.uptake`, [..., N, N] each: row i receives (or fails), column j
gives (or solves). Whatever has no data is NaN, the diagonal included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dashboard import formats
from dashboard.charts import PERCENT
from dashboard.frames import Z, wilson
from graft.complementarity import phi_coefficient, phi_standard_error
from server.store.reader import NewestTransfers

Array = NDArray[np.float64]
Numbers = NDArray[np.int64] | Array
Counts = Mapping[str, NDArray[np.int64] | Array]


@dataclass(frozen=True, eq=False)
class Values:
    """One matrix or a stack of them, [..., N, N] each: value, its 95 % interval, n, and `tone`, what is coloured."""

    value: Array
    low: Array
    high: Array
    n: Array
    tone: Array

    def at(self, place: int) -> Values:
        """One matrix of a stack."""
        return Values(*(getattr(self, one.name)[place] for one in fields(self)))


@dataclass(frozen=True)
class Measure:
    """One matrix: how it is called in the address, what it says, and how it is computed, written and coloured.

    `domain` is that of `tone`; one that goes below 0 takes the two-sided ramp. `row` and `column` title the axes.
    `pair` says in words what a cell is about, `asks` what the history of a row answers, both with {row} and {column}.
    `counted` is one of n, `several` its plural where that is another word; `text` writes a value, `short` the same in
    a cell. `course` is what a chart over steps draws, with the interval of the values, `axis` its number format.
    """

    key: str
    title: str
    explanation: str
    help: str
    row: str
    column: str
    pair: str
    asks: str
    counted: str
    domain: tuple[float, float]
    legend: str
    axis: str
    read: Callable[[Counts], Values]
    text: Callable[[float], str]
    short: Callable[[float], str]
    several: str = ""
    course: Callable[[Values], Array] = lambda values: values.value

    def n_text(self, n: int) -> str:
        """ "n = 207 all-fail groups"."""
        return f"n = {formats.counted(n, self.counted, self.several)}"


def _complementarity(counts: Counts) -> Values:
    share, low, high = wilson(counts["solved"], counts["both_attempted_fail"])
    return Values(share, low, high, np.asarray(counts["both_attempted_fail"], np.float64), share)


def _compatibility(counts: Counts) -> Values:
    n = np.asarray(counts["n_s"], np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(n > 0, counts["sum_s"] / n, np.nan)
    # The s of single responses are not in the counts: their spread comes from the newest groups, `clustered`.
    return Values(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan), n, mean)


def _admitted(counts: Counts) -> Values:
    n = np.asarray(counts["responses"], np.float64)
    admitted = np.where(n > 0, np.asarray(counts["admitted"], np.float64), np.nan)
    _, low, high = wilson(counts["admitted"], counts["responses"])
    largest = np.nanmax(admitted) if np.isfinite(admitted).any() else 0.0
    return Values(admitted, low, high, n, admitted / largest if largest else np.where(n > 0, 0.0, np.nan))


def _admitted_share(values: Values) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values.n > 0, values.value / values.n, np.nan)


def _uptake(counts: Counts) -> Values:
    """The difference of two shares with the interval of `graft.complementarity.uptake`, for all pairs at once."""
    sides = [
        (np.asarray(counts[f"{side}_solved"], np.float64), np.asarray(counts[f"{side}_seen"], np.float64))
        for side in ("grafted", "held_out")
    ]
    both = (sides[0][1] > 0) & (sides[1][1] > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.where(both, sides[0][0] / sides[0][1] - sides[1][0] / sides[1][1], np.nan)
    rates = [((k + 1) / (n + 2), n + 2) for k, n in sides]
    half = np.where(both, Z * np.sqrt(sum(rate * (1 - rate) / n for rate, n in rates)), np.nan)
    low, high = np.maximum(-1.0, change - half), np.minimum(1.0, change + half)
    return Values(change, low, high, np.minimum(sides[0][1], sides[1][1]), change)


def _failing_together(counts: Counts) -> Values:
    three = [counts[name] for name in ("both_graded", "failed_beside", "failed_together")]
    phi, half = phi_coefficient(*three), Z * phi_standard_error(*three)
    n = np.asarray(counts["both_graded"], np.float64)
    return Values(phi, np.maximum(-1.0, phi - half), np.minimum(1.0, phi + half), n, phi)


def _whole_percent(value: float) -> str:
    return formats.percent(value, 0)


# A matrix of what moves: who receives against who gives.
_exchanged = partial(
    Measure,
    row="receives (row)",
    column="gives (column)",
    pair="{column} gives, {row} receives",
)

MEASURES = (
    Measure(
        key="complementarity",
        title="Complementarity",
        explanation="share of the row's all-fail groups that the column solved",
        help=(
            "A group is all-fail when every rollout of the row's member failed; the column solved it when at least one "
            "of its rollouts on the same prompt in the same step is right. n: all-fail groups of the row that the "
            "column sampled too."
        ),
        row="fails every rollout (row)",
        column="solves (column)",
        pair="{row} fails, {column} solves",
        asks="{row} fails: who solves?",
        counted="all-fail group",
        domain=(0.0, 1.0),
        legend=".0%",
        axis=PERCENT,
        read=_complementarity,
        text=formats.percent,
        short=_whole_percent,
    ),
    _exchanged(
        key="compatibility",
        title="Compatibility s",
        explanation="mean s of the column's responses under the row's policy",
        help=(
            "s is how likely the receiver's policy finds a response, per token, against its author's: exp of the "
            "difference of mean log-probabilities, gated at the floor. n: scored responses."
        ),
        asks="{row} receives: how likely does it find each peer's responses?",
        counted="scored response",
        domain=(0.0, 1.0),
        legend=".2f",
        axis=".2~f",
        read=_compatibility,
        text=formats.number,
        short=lambda value: formats.number(value, 2),
    ),
    _exchanged(
        key="admitted",
        title="Admitted responses",
        explanation="responses of the column's member that entered the row's update",
        help="How many the gate let in; coloured by the share of the largest cell. n: responses that were transferred.",
        asks="{row} receives: what share of each peer's responses is admitted?",
        counted="response",
        domain=(0.0, 1.0),
        legend=".0%",
        axis=PERCENT,
        read=_admitted,
        course=_admitted_share,
        text=formats.count,
        short=formats.compact,
    ),
    _exchanged(
        key="uptake",
        title="Uptake",
        explanation="solved at the next visit: after a graft, less after a withheld one",
        help=(
            "The difference of two shares, in percentage points: receivers that solved the prompt when they met it "
            "again after a graft, and after one that was withheld. n: visits of the smaller side."
        ),
        asks="{row} receives: whose grafts take?",
        counted="visit on the smaller side",
        several="visits on the smaller side",
        domain=(-0.5, 0.5),
        legend="+.0%",
        axis="+.0%",
        read=_uptake,
        text=lambda value: f"{formats.signed(100 * value, 1)} points",
        short=lambda value: formats.signed(100 * value, 0),
    ),
    Measure(
        key="failing",
        title="Failing together",
        explanation="phi of two members' all-fail prompts",
        help=(
            "1: they fail on the same prompts, so neither can help the other; 0: independent; below 0: each fails "
            "where the other does not. n: prompts that both were graded on."
        ),
        row="member",
        column="member",
        pair="{row} and {column} fail together",
        asks="{row}: who fails on the same prompts?",
        counted="prompt",
        domain=(-1.0, 1.0),
        legend="+.1f",
        axis="+.2~f",
        read=_failing_together,
        text=formats.signed,
        short=lambda value: formats.signed(value, 1 if abs(value) >= 0.095 else 2),
    ),
)
# Those that mean something where nothing is exchanged.
WITHOUT_EXCHANGE = ("complementarity", "failing")


def group_error(receiver: NDArray[np.int64], source: NDArray[np.int64], k: Numbers, n: Numbers, members: int) -> Array:
    """[N, N] standard errors of sum(k) / sum(n) with each transferred group drawn whole (linearised ratio).

    One entry a group in the arrays [R]; one with n of 0, as a withheld one, is no group. NaN where a pair has fewer
    than two groups.
    """
    cell = receiver * members + source
    size = members * members
    groups, total_n, total_k = (np.bincount(cell, weights=weights, minlength=size) for weights in (n > 0, n, k))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = total_k / total_n
        spread = np.bincount(cell, weights=(k - ratio[cell] * n) ** 2, minlength=size)
        error = np.sqrt(spread * groups / (groups - 1)) / total_n
    error[(groups < 2) | (total_n == 0)] = np.nan
    result: Array = error.reshape(members, members)
    return result


def with_group_bounds(values: Values, newest: NewestTransfers, members: int) -> Values:
    """Values of compatibility [N, N] with the intervals that groups drawn whole give: responses of one group share a
    prompt and an author."""
    half = clustered(newest, newest.sum_s, newest.n_s, values.n, members)
    return replace(values, low=np.maximum(0.0, values.value - half), high=values.value + half)


def within(newest: NewestTransfers, first: int, last: int) -> NewestTransfers:
    """Those of the transfers that are of these steps."""
    chosen = (newest.step >= first) & (newest.step <= last)
    arrays = {one.name: getattr(newest, one.name)[chosen] for one in fields(newest) if one.name != "first_step"}
    return replace(newest, **arrays)


def clustered(newest: NewestTransfers, k: Numbers, n: Numbers, counted: Numbers, members: int) -> Array:
    """[N, N] half widths of the 95 % intervals of pair ratios over `counted` [N, N] observations, groups drawn whole.

    k, n [R] are a transfer's parts of the ratio. Where the newest transfers are not all, their spread is taken for all.
    """
    cell = newest.receiver * members + newest.source
    drawn = np.bincount(cell, weights=n, minlength=members * members).reshape(members, members)
    error = group_error(newest.receiver, newest.source, k, n, members)
    with np.errstate(divide="ignore", invalid="ignore"):
        half: Array = Z * error * np.sqrt(np.where(counted > 0, drawn / counted, np.nan))
    return half
