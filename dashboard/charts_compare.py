"""Chart specifications of Compare and Evaluation: runs as lines through their own points.

As in `dashboard.charts`, pure functions of names, colours and sizes. Nothing is interpolated: every point was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.charts import PERCENT, PLAIN, Spec, base, ticks
from dashboard.palette import DASHES, Inks, member_colour

# One more than DASHES has, so that six arms differ without their colours.
_MORE_DASHES = ((10, 4), (4, 2, 1, 2))


def arm_dash(place: int) -> list[int]:
    """The dash pattern of the arm in this place; the first is solid."""
    dashes = (*DASHES, *_MORE_DASHES)
    return list(dashes[place % len(dashes)])


def _look(names: Sequence[str], colours: Inks) -> tuple[Spec, Spec]:
    """(colour, dash) encodings of the column `arm`, in one legend."""
    legend: Spec = {"orient": "top", "columns": {"expr": "max(1, min(3, floor(width / 220)))"}, "symbolType": "stroke"}
    legend |= {"symbolSize": 400, "offset": 8, "labelLimit": 420}
    kind = {"field": "arm", "type": "nominal", "sort": list(names), "legend": legend}
    places = range(len(names))
    colour = {"domain": list(names), "range": [member_colour(colours, place) for place in places]}
    dash = {"domain": list(names), "range": [arm_dash(place) for place in places]}
    return {**kind, "scale": colour}, {**kind, "scale": dash}


def overlay(
    names: Sequence[str],
    colours: Inks,
    *,
    x_title: str,
    x_format: str,
    quantity: str,
    percent: bool,
    height: int,
) -> Spec:
    """One line a run, in its arm's colour and dashes; where arms have several runs, a thick line for their mean.

    Frame "points": arm, run, x, value, low, high (its own 95 % interval, or missing), detail (tooltip), lone (a point
    that no line would show).
    Frame "means": arm, x, value, low, high (95 % t interval over three seeds or more, else missing), detail.
    """
    colour, dash = _look(names, colours)
    x = {
        "field": "x",
        "type": "quantitative",
        "title": x_title,
        "scale": {"nice": False, "zero": False, "padding": 6},
        "axis": {"grid": False, "tickCount": 6, "format": x_format},
    }
    y_axis = {"title": None, "tickCount": 5, **ticks(PERCENT if percent else PLAIN)}
    y = {"field": "value", "type": "quantitative", "scale": {"zero": False, "nice": True}, "axis": y_axis}
    tooltip = [
        {"field": "arm", "title": "arm"},
        {"field": "run", "title": "run"},
        {"field": "detail", "title": quantity},
    ]
    mean_tooltip = [tooltip[0], {"field": "detail", "title": f"{quantity}, mean over seeds"}]
    gaps = "break-paths-filter-domains"
    means, points = {"data": {"name": "means"}}, {"data": {"name": "points"}}
    one_run = {"field": "run", "type": "nominal"}
    bounds = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour}
    return {
        **base(colours, height, f"{quantity} of every arm against {x_title}"),
        "layer": [
            {
                **points,
                "mark": {"type": "area", "fillOpacity": 0.1, "invalid": gaps},
                "encoding": {**bounds, "detail": one_run},
            },
            {
                **points,
                "transform": [{"filter": "datum.lone && isValid(datum.low)"}],
                "mark": {"type": "rule", "strokeWidth": 1.5, "strokeOpacity": 0.55},
                "encoding": bounds,
            },
            {
                **means,
                "mark": {"type": "area", "fillOpacity": 0.12, "invalid": gaps},
                "encoding": bounds,
            },
            {
                **points,
                "mark": {"type": "line", "strokeWidth": 1.6, "strokeOpacity": 0.6, "invalid": gaps},
                "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash, "detail": one_run},
            },
            {
                **points,
                "mark": {"type": "point", "filled": True, "size": {"expr": "datum.lone ? 60 : 26"}, "opacity": 0.85},
                "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip},
            },
            {
                **means,
                "mark": {"type": "line", "strokeWidth": 3, "invalid": gaps},
                "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash, "tooltip": mean_tooltip},
            },
        ],
    }


def differences(colours: Inks, rows: int, *, row: int = 28) -> Spec:
    """Differences to the baseline in percentage points, with their intervals, against the line of no difference.

    Frame "differences": row (label), order, value, low, high, detail (tooltip); low and high are missing without an
    interval.
    """
    y_axis = {"title": None, "grid": False, "labelLimit": 360, "labelColor": colours.ink}
    y = {"field": "row", "type": "nominal", "sort": {"field": "order", "op": "min"}, "axis": y_axis}
    x = {
        "field": "value",
        "type": "quantitative",
        "scale": {"zero": True, "nice": True, "padding": 8},
        "axis": {"title": "percentage points", "format": "+~g", "tickCount": 6},
    }
    return {
        **base(colours, row * rows + 45, "Differences to the baseline with 95 % intervals"),
        "data": {"name": "differences"},
        "layer": [
            {
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": colours.muted},
                "encoding": {"x": {"datum": 0, "type": "quantitative"}},
            },
            {
                "transform": [{"filter": "isValid(datum.low)"}],
                "mark": {"type": "rule", "strokeWidth": 2.5, "strokeCap": "round", "color": colours.accent},
                "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1, "color": colours.accent},
                "encoding": {
                    "y": y,
                    "x": x,
                    "tooltip": [{"field": "row", "title": "against"}, {"field": "detail", "title": "difference"}],
                },
            },
        ],
    }


# Kinds of runs in the frontier, the two that have a line with its dashes.
_KINDS = ("this run", "baseline", "other runs")
_LINES = (("this run", (1, 0)), ("baseline", (6, 4)))


def frontier(colours: Inks, kinds: Sequence[str], *, x_title: str, height: int = 300) -> Spec:
    """Score against cost, as in the paper's figure 3a: this run's evaluations, the baseline's dashed, and others' best.

    `kinds`: those of "this run", "baseline" and "other runs" that there are; the legend names no other.
    Frame "runs": kind, run, x, value, low, high, detail, best (the run's best point).
    Frame "frontier": x, value; the highest score that each cost bought, as steps.
    """
    inks = dict(zip(_KINDS, (colours.accent, colours.ring, colours.muted), strict=True))
    scale = {"domain": list(kinds), "range": [inks[kind] for kind in kinds]}
    legend = {"orient": "top", "symbolType": "circle", "symbolSize": 80, "symbolStrokeWidth": 1, "offset": 8}
    colour = {"field": "kind", "type": "nominal", "sort": list(kinds), "scale": scale, "legend": legend}
    x = {
        "field": "x",
        "type": "quantitative",
        "title": x_title,
        "scale": {"zero": True, "nice": True},
        "axis": {"grid": False, "tickCount": 6, "format": "~g"},
    }
    y_axis = {"title": None, "format": PERCENT, "tickCount": 5}
    y = {"field": "value", "type": "quantitative", "scale": {"zero": False, "nice": True}, "axis": y_axis}
    tooltip = [{"field": "run", "title": "run"}, {"field": "detail", "title": "score"}]
    runs: Spec = {"data": {"name": "runs"}}
    steps: Spec = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.2, "color": colours.muted}
    size = {"condition": {"test": "datum.best", "value": 130}, "value": 35}
    return {
        **base(colours, height, f"Score of runs against {x_title}"),
        "layer": [
            {"data": {"name": "frontier"}, "mark": steps, "encoding": {"x": x, "y": y}},
            {
                **runs,
                "mark": {"type": "rule", "strokeWidth": 1.5, "strokeOpacity": 0.55},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
            },
            *(_run_line(kind, dash, {"x": x, "y": y, "color": colour}) for kind, dash in _LINES if kind in kinds),
            {
                **runs,
                "mark": {"type": "point", "filled": True, "opacity": 0.9},
                "encoding": {"x": x, "y": y, "color": colour, "size": size, "tooltip": tooltip},
            },
        ],
    }


def _run_line(kind: str, dash: Sequence[int], encoding: Spec) -> Spec:
    mark = {"type": "line", "strokeWidth": 2, "strokeDash": list(dash)}
    chosen = [{"filter": f"datum.kind == '{kind}'"}]
    return {"data": {"name": "runs"}, "transform": chosen, "mark": mark, "encoding": encoding}
