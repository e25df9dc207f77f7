"""Frames of `dashboard.charts_population`: matrices of member against member, and who solved the same prompt. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from dashboard import formats
from dashboard.charts_population import tile_columns, tile_units
from dashboard.frames import bucket_text, curve_frame, hover_frame
from dashboard.measures import Measure, Values


def matrix_cells(
    labels: Sequence[str], measure: Measure, values: Values, selected: tuple[int, int] | None
) -> pd.DataFrame:
    """Frame "cells" of `charts_population.matrix` from values [N, N]; the diagonal is left out."""
    rows = []
    for i, row in enumerate(labels):
        for j, column in enumerate(labels):
            if i == j:
                continue
            value, n = float(values.value[i, j]), int(values.n[i, j])
            known = math.isfinite(value)
            rows.append(
                {
                    "i": i,
                    "j": j,
                    "row": row,
                    "column": column,
                    "tone": float(values.tone[i, j]),
                    "main": measure.short(value) if known else formats.MISSING,
                    "support": f"n = {formats.count(n)}" if len(labels) <= 5 else f"n {formats.compact(n)}",
                    "counted": counted(measure, value, n),
                    "range": interval(measure, float(values.low[i, j]), float(values.high[i, j])),
                    "selected": (i, j) == selected,
                }
            )
    return pd.DataFrame(rows)


def counted(measure: Measure, value: float, n: int) -> str:
    """A value with what it is counted over: "37.2 % of 207 all-fail groups"."""
    text = measure.text(value) if math.isfinite(value) else formats.MISSING
    return f"{text} ({measure.n_text(n)})"


def row_curves(
    labels: Sequence[str], edges: Sequence[int], measure: Measure, values: Values, row: int, columns: Sequence[int]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Frames "curves" and "hover" of `charts.curves`: the row of values [B, N, N] against these columns, called
    `labels`."""
    drawn = measure.course(values)
    curves = curve_frame(labels, edges, *(part[:, row, columns] for part in (drawn, values.low, values.high)))
    texts = [
        [
            counted(measure, value, int(n)) if math.isfinite(value) else formats.MISSING
            for value, n in zip(values.value[:, row, slot].tolist(), values.n[:, row, slot].tolist(), strict=True)
        ]
        for slot in columns
    ]
    return curves, hover_frame(edges, texts)


def interval(measure: Measure, low: float, high: float) -> str:
    """A measure's interval; "–" where it is not known. A count's is that of its share."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return formats.MISSING
    if measure.key == "admitted":
        return f"{formats.span(low, high)} of the responses"
    return f"{measure.text(low)} to {measure.text(high)}"


def tile_frames(
    labels: Sequence[str], measure: Measure, values: Values, edges: Sequence[int]
) -> dict[str, pd.DataFrame]:
    """Frames "tiles" and "names" of `charts_population.multiples` from values [B, N, N]."""
    size = len(labels)
    across, down, header, _ = tile_units(size)
    tiles, names = [], []
    for bucket in range(len(edges) - 1):
        row, column = divmod(bucket, tile_columns(size, len(edges) - 1))
        left, top = column * across, row * down
        steps = bucket_text(edges, bucket)
        names.append({"x": left, "y": top, "text": f"steps {steps}"})
        for i, j in np.argwhere(~np.eye(size, dtype=bool)).tolist():
            value, n = float(values.value[bucket, i, j]), int(values.n[bucket, i, j])
            tiles.append(
                {
                    "x": left + j,
                    "x2": left + j + 1,
                    "y": top + header + i,
                    "y2": top + header + i + 1,
                    "tone": float(values.tone[bucket, i, j]),
                    "steps": steps,
                    "pair": f"{labels[i]} · {labels[j]}",
                    "counted": counted(measure, value, n),
                    "range": interval(measure, *(float(part[bucket, i, j]) for part in (values.low, values.high))),
                }
            )
    return {"tiles": pd.DataFrame(tiles), "names": pd.DataFrame(names)}


def pattern_frames(
    labels: Sequence[str], patterns: Sequence[tuple[Sequence[bool], int]], total: int
) -> dict[str, pd.DataFrame]:
    """Frames "patterns", "dots" and "links" of `charts.success_patterns`, in the given order."""
    bars, dots, links = [], [], []
    for rank, (solved, occurrences) in enumerate(patterns):
        solvers = [label for label, hit in zip(labels, solved, strict=True) if hit]
        detail = "nobody" if not solvers else "everybody" if len(solvers) == len(labels) else ", ".join(solvers)
        share = occurrences / total
        text = formats.percent(share, 0 if share >= 0.0095 else 1) if share >= 0.0005 else "<0.1%"
        bars.append(
            {
                "rank": rank,
                "share": share,
                "text": text.replace("\u00a0%", "%"),
                "detail": detail,
                "counted": formats.of(occurrences, total, "prompt"),
                "range": formats.interval(occurrences, total),
            }
        )
        dots += [
            {"rank": rank, "member": label, "solved": bool(hit)} for label, hit in zip(labels, solved, strict=True)
        ]
        if len(solvers) > 1:
            links.append({"rank": rank, "top": solvers[0], "bottom": solvers[-1]})
    return {
        "patterns": pd.DataFrame(bars, columns=["rank", "share", "text", "detail", "counted", "range"]),
        "dots": pd.DataFrame(dots, columns=["rank", "member", "solved"]),
        "links": pd.DataFrame(links, columns=["rank", "top", "bottom"]),
    }
