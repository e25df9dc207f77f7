"""Chart specifications as plain Vega-Lite dictionaries: pure functions of names, colours and sizes, never of data.

Streamlit keeps a chart's node while only its data change, so everything that moves with a step is a data column and the
specification stays the same. Data go in by `with_data`, as named frames whose columns each builder's docstring lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dashboard.palette import Inks, member_colour, member_dash

Spec = dict[str, Any]

FONT = '"Source Sans", "Source Sans Pro", sans-serif'


# Formats of values on an axis: shares, and numbers of any size.
PERCENT, PLAIN = "~%", ""


def ticks(number: str) -> Spec:
    """How an axis writes its values: in a format, or for PLAIN with as many digits as they need, thousands as 2.6k."""
    if number != PLAIN:
        return {"format": number}
    return {"labelExpr": "abs(datum.value) >= 1000 ? format(datum.value, '~s') : format(datum.value, '~g')"}


def with_data(spec: Spec, **frames: pd.DataFrame) -> Spec:
    """The specification with its named frames, ready for `st.vega_lite_chart`."""
    return {**spec, "datasets": frames}


def base(colours: Inks, height: int, description: str) -> Spec:
    """Size, font, axes and legend that all charts share. No blank strip below: the bottom padding is ours."""
    return {
        "width": "container",
        "height": height,
        "padding": {"left": 2, "right": 6, "top": 4, "bottom": 2},
        "autosize": {"type": "fit", "contains": "padding"},
        "description": description,
        "config": {
            "background": "transparent",
            "font": FONT,
            "view": {"stroke": None},
            "axis": {
                "labelColor": colours.muted,
                "titleColor": colours.muted,
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "gridColor": colours.grid,
                "domain": False,
                "ticks": False,
                "labelPadding": 6,
                "titlePadding": 8,
            },
            "legend": {
                "labelColor": colours.ink,
                "labelFontSize": 12,
                "symbolSize": 130,
                "symbolStrokeWidth": 3,
                "rowPadding": 3,
                "columnPadding": 14,
                "labelLimit": 220,
                "title": None,
            },
            "text": {"font": FONT},
        },
    }


def member_scale(labels: Sequence[str], colours: Inks, slots: Sequence[int] | None = None) -> Spec:
    """A colour encoding of the column `member` (labels), each in its slot's colour, with a legend above the chart."""
    slots = range(len(labels)) if slots is None else slots
    return {
        "field": "member",
        "type": "nominal",
        "sort": list(labels),
        "scale": {"domain": list(labels), "range": [member_colour(colours, slot) for slot in slots]},
        "legend": _member_legend(labels),
    }


def _member_legend(labels: Sequence[str]) -> Spec:
    longest = max(map(len, labels), default=0)
    # Pixels of an entry, with its symbol.
    entry = 130 if longest <= 18 else 46 + 7 * longest
    return {
        "orient": "top",
        "columns": {"expr": f"max(1, min(4, floor(width / {entry})))"},
        "symbolType": "stroke",
        "symbolOpacity": 1,
        "offset": 8,
    }


def _dashes(labels: Sequence[str], colours: Inks, slots: Sequence[int] | None) -> Spec:
    """A dash encoding where colours repeat, else nothing."""
    slots = range(len(labels)) if slots is None else slots
    if max(slots, default=0) < len(colours.members):
        return {}
    scale = {"domain": list(labels), "range": [member_dash(slot, colours) for slot in slots]}
    legend = _member_legend(labels)
    return {
        "strokeDash": {"field": "member", "type": "nominal", "sort": list(labels), "scale": scale, "legend": legend}
    }


def curves(
    labels: Sequence[str],
    colours: Inks,
    *,
    quantity: str,
    height: int = 250,
    slots: Sequence[int] | None = None,
    means: bool = False,
    number: str = PERCENT,
) -> Spec:
    """Lines over training steps with 95 % bands, one line a member; `number` is the format of the values.

    Frame "curves": member (label), step (x position), value, low, high, lone (a point that no line would show).
    Frame "hover": step, steps (text), m0 .. mK (text per member, in the order of `labels`).
    Frame "means" (with means=True): member, value; dotted lines over the whole range.
    Missing values are gaps: nothing is interpolated.
    """
    colour = member_scale(labels, colours, slots)
    axis = {"title": None, "tickCount": 5, **ticks(number)}
    x = {
        "field": "step",
        "type": "quantitative",
        "title": "training step",
        "scale": {"nice": False, "zero": False, "padding": 4},
        "axis": {"grid": False, "format": ",d", "tickMinStep": 1, "tickCount": 6},
    }
    y = {"field": "value", "type": "quantitative", "scale": {"zero": False, "nice": True}, "axis": axis}
    bounds = {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour}
    picked = {"param": "picked", "value": 1}
    fade = {"opacity": {"condition": picked, "value": 0.12}}
    layers: list[Spec] = [
        {
            "mark": {
                "type": "area",
                "fillOpacity": 0.13 if len(labels) <= 5 else 0.07,
                "invalid": "break-paths-filter-domains",
            },
            "encoding": bounds,
        },
        {
            "mark": {"type": "line", "strokeWidth": 2, "strokeJoin": "round", "invalid": "break-paths-filter-domains"},
            "params": [{"name": "picked", "select": {"type": "point", "fields": ["member"]}, "bind": "legend"}],
            "encoding": {"y": y, "color": colour, **_dashes(labels, colours, slots)},
        },
        {
            "transform": [{"filter": "datum.lone"}],
            "mark": {"type": "rule", "strokeWidth": 1.5, "strokeOpacity": 0.55},
            "encoding": bounds,
        },
        {
            "transform": [{"filter": "datum.lone"}],
            "mark": {"type": "point", "filled": True, "size": 55},
            "encoding": {"y": y, "color": colour},
        },
    ]
    for layer in layers:
        layer["data"] = {"name": "curves"}
        layer["encoding"] |= {"x": x, **fade}
    if means:
        layers.append(_mean_lines(colour, y, fade))
    layers.append(_hover_rule(labels, colours, x))
    return {**base(colours, height, f"{quantity} of every member over training steps"), "layer": layers}


def _mean_lines(colour: Spec, y: Spec, fade: Spec) -> Spec:
    return {
        "data": {"name": "means"},
        "mark": {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.5},
        "encoding": {"y": y, "color": colour, **fade},
    }


def _hover_rule(labels: Sequence[str], colours: Inks, x: Spec) -> Spec:
    """A rule at the bucket nearest to the pointer; its tooltip reads out every member there."""
    nearest = {"type": "point", "on": "pointermove", "nearest": True, "clear": "pointerout", "fields": ["step"]}
    tooltip = [{"field": "steps", "type": "nominal", "title": "steps"}]
    tooltip += [{"field": f"m{slot}", "type": "nominal", "title": label} for slot, label in enumerate(labels)]
    shown = {"condition": {"param": "near", "empty": False, "value": 0.8}, "value": 0}
    return {
        "data": {"name": "hover"},
        "params": [{"name": "near", "select": nearest}],
        "mark": {"type": "rule", "color": colours.muted, "strokeWidth": 1},
        "encoding": {"x": x, "opacity": shown, "tooltip": tooltip},
    }


def before_after(labels: Sequence[str], colours: Inks, slots: Sequence[int], *, row: int = 34) -> Spec:
    """Held-out accuracy before training (hollow) and now (filled), each with its 95 % interval.

    Frame "scores": member (label), when ("before" or "now"), value, low, high, detail (tooltip text).
    """
    order = list(labels)
    y = {
        "field": "member",
        "type": "nominal",
        "sort": order,
        "scale": {"domain": order},
        "axis": {"title": None, "grid": False, "labelLimit": 130, "labelColor": colours.ink},
    }
    x = {
        "field": "value",
        "type": "quantitative",
        "scale": {"zero": False, "nice": True, "padding": 8},
        "axis": {"title": "held-out accuracy", "format": PERCENT, "tickCount": 5},
    }
    colour = {**member_scale(order, colours, slots), "legend": None}
    tooltip = [{"field": "when", "title": "when"}, {"field": "detail", "title": "accuracy"}]
    shape: Spec = {"size": 90, "opacity": 1, "strokeWidth": 2}
    shift = {"field": "when", "type": "nominal", "sort": ["before", "now"]}
    return {
        **base(colours, row * len(order), "Held-out accuracy of every member before training and now"),
        "height": {"step": row / 2},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "encoding": {"y": y, "yOffset": shift},
        "layer": [
            {
                "data": {"name": "scores"},
                "mark": {"type": "rule", "strokeWidth": 2.5, "strokeCap": "round"},
                "encoding": {
                    "x": {**x, "field": "low"},
                    "x2": {"field": "high"},
                    "color": colour,
                    "opacity": {"condition": {"test": "datum.when == 'now'", "value": 0.9}, "value": 0.4},
                },
            },
            {
                "data": {"name": "scores"},
                "transform": [{"filter": "datum.when == 'before'"}],
                "mark": {"type": "point", "fill": colours.background, **shape},
                "encoding": {"x": x, "stroke": colour, "tooltip": tooltip},
            },
            {
                "data": {"name": "scores"},
                "transform": [{"filter": "datum.when == 'now'"}],
                "mark": {"type": "point", "filled": True, **shape},
                "encoding": {"x": x, "color": colour, "tooltip": tooltip},
            },
        ],
    }


def gate_strip(colours: Inks, *, height: int = 110) -> Spec:
    """Compatibility s of every response of one transferred group, against the gate's floor.

    Frame "responses": index, s, lift (0, 1, ...: height, so that equal s do not hide each other), verdict
    ("admitted" or "refused"), answer ("right", "wrong" or "unknown"), detail (tooltip).
    Frame "floor": floor, text.
    """
    x = {
        "field": "s",
        "type": "quantitative",
        "scale": {"zero": False, "nice": True, "padding": 12},
        "axis": {"title": "compatibility s", "tickCount": 6, "format": ".3~f"},
    }
    fates = {"domain": ["admitted", "refused"], "range": [colours.accent, colours.bad]}
    shapes = {"domain": ["right", "wrong", "unknown"], "range": ["circle", "cross", "diamond"]}
    tooltip = [{"field": "index", "title": "response"}, {"field": "detail", "title": "s"}, {"field": "answer"}]
    legend = {"orient": "right", "symbolSize": 80, "symbolStrokeWidth": 1}
    shape_legend = {
        **legend,
        "values": ["right", "wrong"],
        "symbolFillColor": colours.muted,
        "symbolStrokeColor": colours.muted,
    }
    level = {"field": "lift", "type": "quantitative", "axis": None, "scale": {"domain": [-1, 4], "nice": False}}
    return {
        **base(colours, height, "Compatibility of every transferred response against the floor"),
        "layer": [
            {
                "data": {"name": "floor"},
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": colours.ring, "strokeWidth": 1.5},
                "encoding": {"x": {**x, "field": "floor"}},
            },
            {
                "data": {"name": "floor"},
                "mark": {"type": "text", "align": "left", "dx": 4, "y": 6, "fontSize": 11, "color": colours.ring},
                "encoding": {"x": {**x, "field": "floor"}, "text": {"field": "text"}},
            },
            {
                "data": {"name": "responses"},
                "mark": {"type": "point", "filled": True, "size": 90, "opacity": 0.9},
                "encoding": {
                    "x": x,
                    "color": {"field": "verdict", "type": "nominal", "scale": fates, "legend": legend},
                    "y": level,
                    "shape": {"field": "answer", "type": "nominal", "scale": shapes, "legend": shape_legend},
                    "tooltip": tooltip,
                },
            },
        ],
    }
