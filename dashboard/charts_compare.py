"""Chart specifications of Compare and Evaluation: runs as lines through their own points.

As in `dashboard.charts`, pure functions of names, colours and sizes. Nothing is interpolated: every point was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.charts import Spec, base
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

    Frame "points": arm, run, x, value, detail (tooltip), lone (a point that no line would show).
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
    y_axis = {"title": None, "tickCount": 5, "format": ".0%" if percent else "~g"}
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
    return {
        **base(colours, height, f"{quantity} of every arm against {x_title}"),
        "layer": [
            {
                **means,
                "mark": {"type": "area", "fillOpacity": 0.12, "invalid": gaps},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
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


def frontier(colours: Inks, *, x_title: str, height: int = 300) -> Spec:
    """Score against cost, as in the paper's figure 3a: this run's evaluations, the baseline's dashed, and others' best.

    Frame "runs": kind ("this run", "baseline" or "other runs"), run, x, value, detail, best (the run's best point).
    Frame "frontier": x, value; the highest score that each cost bought, as steps.
    """
    kinds = ["this run", "baseline", "other runs"]
    scale = {"domain": kinds, "range": [colours.accent, colours.ring, colours.muted]}
    legend = {"orient": "top", "symbolType": "circle", "symbolSize": 80, "symbolStrokeWidth": 1, "offset": 8}
    colour = {"field": "kind", "type": "nominal", "sort": kinds, "scale": scale, "legend": legend}
    x = {
        "field": "x",
        "type": "quantitative",
        "title": x_title,
        "scale": {"zero": True, "nice": True},
        "axis": {"grid": False, "tickCount": 6, "format": "~g"},
    }
    y_axis = {"title": None, "format": ".0%", "tickCount": 5}
    y = {"field": "value", "type": "quantitative", "scale": {"zero": False, "nice": True}, "axis": y_axis}
    tooltip = [{"field": "run", "title": "run"}, {"field": "detail", "title": "score"}]
    runs: Spec = {"data": {"name": "runs"}}
    line: Spec = {"type": "line", "strokeWidth": 2}
    return {
        **base(colours, height, f"Score of runs against {x_title}"),
        "layer": [
            {
                "data": {"name": "frontier"},
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.2, "color": colours.muted},
                "encoding": {"x": x, "y": y},
            },
            {
                **runs,
                "transform": [{"filter": "datum.kind == 'this run'"}],
                "mark": line,
                "encoding": {"x": x, "y": y, "color": colour},
            },
            {
                **runs,
                "transform": [{"filter": "datum.kind == 'baseline'"}],
                "mark": {**line, "strokeDash": [6, 4]},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            {
                **runs,
                "mark": {"type": "point", "filled": True, "opacity": 0.9},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": colour,
                    "size": {"condition": {"test": "datum.best", "value": 130}, "value": 35},
                    "tooltip": tooltip,
                },
            },
        ],
    }
