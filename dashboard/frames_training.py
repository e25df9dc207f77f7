"""Frames of the Training page: pure, no Streamlit, no database. Shapes as in `server.store.reader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dashboard import formats
from dashboard.charts_training import ACTIVITIES
from dashboard.frames import Array, ratio, value_curves


@dataclass(frozen=True, slots=True)
class Series:
    """A metric by bucket: numerator and denominator [B, N], and the smallest and largest step's value where read."""

    numerator: Array
    denominator: Array
    low: Array | None
    high: Array | None

    def of(self, slots: Sequence[int]) -> Series:
        """Only these members."""
        chosen = list(slots)
        low, high = (None if part is None else part[:, chosen] for part in (self.low, self.high))
        return Series(self.numerator[:, chosen], self.denominator[:, chosen], low, high)

    @property
    def any(self) -> bool:
        """Whether anything finite was recorded."""
        return bool((self.denominator > 0).any())

    @property
    def value(self) -> np.ndarray:
        """The pooled mean [B, N]; NaN where nothing was recorded."""
        return ratio(self.numerator, self.denominator)

    @property
    def whole(self) -> np.ndarray:
        """The pooled mean of all buckets [N]."""
        return ratio(self.numerator.sum(axis=0), self.denominator.sum(axis=0))


def pooled_curves(
    labels: Sequence[str], edges: Sequence[int], series: Series, share: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Frames "curves" and "hover" of `charts.curves`: pooled means in the band of their single steps."""
    value = series.value
    curves, hover = value_curves(labels, edges, value, np.zeros_like(value))
    if series.low is not None and series.high is not None:
        curves["low"], curves["high"] = series.low.ravel(), series.high.ravel()

    def said(number: float) -> str:
        return formats.percent(number) if share else formats.short(number, 4)

    for slot in range(value.shape[1]):
        texts = []
        for bucket in range(value.shape[0]):
            middle = value[bucket, slot]
            text = said(float(middle)) if np.isfinite(middle) else formats.MISSING
            if series.low is not None and series.high is not None and np.isfinite(middle):
                text += f" ({said(float(series.low[bucket, slot]))} to {said(float(series.high[bucket, slot]))})"
            texts.append(text)
        hover[f"m{slot}"] = texts
    return curves, hover


def clip_rows(
    labels: Sequence[str],
    slots: Sequence[int],
    places: Sequence[int],
    counts: Mapping[tuple[str, int], tuple[Array, Array]],
) -> list[dict[str, str]]:
    """A row for own and one for peers' tokens of every member, a column for every minibatch; a dash where there was no
    such token.
    """
    rows = []
    for label, slot in zip(labels, slots, strict=True):
        for kind in ("own", "peer"):
            row = {"Member": label, "Tokens": kind}
            for place in places:
                clipped, tokens = (float(part[slot]) for part in counts[kind, place])
                row[f"Minibatch {place + 1}"] = (
                    f"{formats.rate(clipped, tokens, 3)} (n {formats.compact(tokens)})" if tokens else formats.MISSING
                )
            rows.append(row)
    return rows


def time_rows(labels: Sequence[str], slots: Sequence[int], totals: Mapping[str, Array]) -> pd.DataFrame:
    """Frame "activities" of `charts_training.activities`; members without any recorded time are left out."""
    rows = []
    for label, slot in zip(labels, slots, strict=True):
        whole = sum(float(part[slot]) for part in totals.values())
        if not whole:
            continue
        for order, (name, activity) in enumerate(ACTIVITIES):
            seconds = float(totals[name][slot]) if name in totals else 0.0
            if seconds:
                rows.append(
                    {
                        "member": label,
                        "activity": activity,
                        "order": order,
                        "share": seconds / whole,
                        "detail": f"{formats.duration(seconds)}, {formats.percent(seconds / whole)}",
                    }
                )
    return pd.DataFrame(rows, columns=["member", "activity", "order", "share", "detail"])
