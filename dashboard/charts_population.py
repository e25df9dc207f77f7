"""Chart specifications of a population: matrices of member against member, and who solved the same prompt.

Plain Vega-Lite as in `dashboard.charts`: pure functions of names, colours and sizes, never of data.
"""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.charts import PERCENT, Spec, base
from dashboard.measures import Measure
from dashboard.palette import Inks

# Beyond this many members a cell is too small for text.
TEXT_MEMBERS = 12
_GAP_PX, _HEADER_PX = 14, 20


def matrix(labels: Sequence[str], colours: Inks, measure: Measure, *, height: int) -> Spec:
    """The N x N matrix of a measure; a click selects (i, j) as the parameter "cell".

    Frame "cells": i, j (slots), row, column (labels), tone (number or null), main, support (texts in the cell),
    selected, counted, range (texts for the tooltip). Cells without a value are drawn empty, the diagonal is left out.
    """
    order = list(labels)
    dense = len(order) > TEXT_MEMBERS
    side = {"type": "nominal", "sort": order, "scale": {"domain": order, "paddingInner": 0.05, "paddingOuter": 0.02}}
    axis: Spec = {"grid": False, "labelLimit": 150, "labelColor": colours.ink, "labelOverlap": False}
    column_axis = {**axis, "orient": "top", "title": measure.column, "labelAngle": 0}
    if len(order) > 6:
        turned = -60 if dense else -35
        column_axis |= {"labelAngle": turned, "labelAlign": "left", "labelBaseline": "middle" if dense else "bottom"}
    if dense:
        axis["labelFontSize"] = column_axis["labelFontSize"] = 11
    x = {"field": "column", **side, "axis": column_axis}
    y = {"field": "row", **side, "axis": {**axis, "title": measure.row}}
    tooltip = [
        {"field": "row", "type": "nominal", "title": measure.row},
        {"field": "column", "type": "nominal", "title": measure.column},
        {"field": "counted", "type": "nominal", "title": measure.title},
        {"field": "range", "type": "nominal", "title": "95 %"},
    ]
    click = {"type": "point", "fields": ["i", "j"], "on": "click", "toggle": False, "clear": False}
    boxes = {
        "params": [{"name": "cell", "select": click}],
        "mark": {"type": "rect", "cornerRadius": 2, "stroke": colours.faint, "strokeWidth": 1, "cursor": "pointer"},
        "encoding": {"color": _tone(colours, measure), "tooltip": tooltip},
    }
    ring = {
        "transform": [{"filter": "datum.selected"}],
        "mark": {"type": "rect", "fillOpacity": 0, "stroke": colours.ring, "strokeWidth": 3, "cornerRadius": 3},
    }
    return {
        **base(colours, height, f"{measure.title}: {measure.explanation}"),
        "data": {"name": "cells"},
        "encoding": {"x": x, "y": y},
        "layer": [boxes, ring, *([] if dense else _cell_texts(colours, measure))],
    }


def _tone(colours: Inks, measure: Measure, legend: bool = True) -> Spec:
    """The colour of a cell: one ramp from 0 on, two where the values have a sign; empty where there is no value."""
    low, high = measure.domain
    ramp = list(colours.ramp) if low >= 0 else [*colours.ramp_below[:0:-1], *colours.ramp]
    gradient = {
        "orient": "bottom",
        "direction": "horizontal",
        "gradientLength": 180,
        "gradientThickness": 8,
        "format": measure.legend,
        "values": [low + (high - low) * part / 4 for part in range(5)],
        "labelColor": colours.muted,
        "offset": 10,
    }
    return {
        "field": "tone",
        "type": "quantitative",
        "scale": {"domain": list(measure.domain), "range": ramp, "clamp": True},
        "legend": gradient if legend else None,
        "condition": {"test": "!isValid(datum.tone)", "value": "transparent"},
    }


def _cell_texts(colours: Inks, measure: Measure) -> list[Spec]:
    """The value and below it its n, sized by the cell and readable on its colour."""
    low, high = measure.domain
    far = f"(datum.tone - {max(low, 0)}) / {high - max(low, 0)}"
    ink = {
        "condition": [
            {"test": "!isValid(datum.tone)", "value": colours.muted},
            {"test": f"abs({far}) >= {colours.flip}", "value": colours.on_far},
        ],
        "value": colours.on_near,
    }
    big = {"expr": "max(10, min(17, bandwidth('x') / 3.6))"}
    small = {"expr": "max(9, min(12, bandwidth('x') / 5.2))"}
    return [
        {
            "mark": {"type": "text", "dy": -7, "fontWeight": 600, "fontSize": big, "cursor": "pointer"},
            "encoding": {"text": {"field": "main", "type": "nominal"}, "color": ink},
        },
        {
            "mark": {"type": "text", "dy": 10, "fontSize": small, "cursor": "pointer"},
            "encoding": {"text": {"field": "support", "type": "nominal"}, "color": ink},
        },
    ]


def tile_columns(members: int, tiles: int) -> int:
    """Small matrices side by side."""
    return min(tiles, 6 if members <= TEXT_MEMBERS else 4)


def tile_units(members: int) -> tuple[float, float, float, float]:
    """(tile pitch across, tile pitch down, header, pixels of a unit) of `multiples`, in cells."""
    pixels = (150 if members <= TEXT_MEMBERS else 230) / members
    header = _HEADER_PX / pixels
    return 1.1 * members, members + header + _GAP_PX / pixels, header, pixels


def multiples(members: int, tiles: int, colours: Inks, measure: Measure) -> Spec:
    """The matrix of a measure in consecutive windows, small, side by side: one view, as wide as there is room.

    Frame "tiles": x, x2, y, y2 (in cells), tone, steps, pair, counted, range (texts). Frame "names": x, y, text (the
    steps).
    """
    columns = tile_columns(members, tiles)
    rows = -(-tiles // columns)
    across, down, _, pixels = tile_units(members)
    x = {
        "field": "x",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [0, columns * across], "nice": False, "zero": False},
    }
    y = {
        "field": "y",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [0, rows * down], "nice": False, "zero": False, "reverse": True},
    }
    tooltip = [
        {"field": "steps", "type": "nominal", "title": "steps"},
        {"field": "pair", "type": "nominal", "title": f"{measure.row} · {measure.column}"},
        {"field": "counted", "type": "nominal", "title": measure.title},
        {"field": "range", "type": "nominal", "title": "95 %"},
    ]
    return {
        **base(colours, round(rows * down * pixels), f"{measure.title} in consecutive windows"),
        "layer": [
            {
                "data": {"name": "tiles"},
                "mark": {"type": "rect", "stroke": colours.faint, "strokeWidth": 0.5},
                "encoding": {
                    "x": x,
                    "x2": {"field": "x2"},
                    "y": y,
                    "y2": {"field": "y2"},
                    "color": _tone(colours, measure, legend=False),
                    "tooltip": tooltip,
                },
            },
            {
                "data": {"name": "names"},
                "mark": {"type": "text", "align": "left", "baseline": "top", "fontSize": 12, "color": colours.muted},
                "encoding": {"x": x, "y": y, "text": {"field": "text", "type": "nominal"}},
            },
        ],
    }


def success_patterns(labels: Sequence[str], colours: Inks, *, bars: int = 110, row: int = 20) -> Spec:
    """Which members solved the same group: bars over a matrix of dots (an UpSet plot), in one view with two y scales.

    Frame "patterns": rank, share, text (above the bar), detail, counted, range (tooltip). Frame "dots": rank, member
    (label), solved. Frame "links": rank, top, bottom (labels of a pattern's first and last solver).
    """
    order = list(labels)
    top, bottom = bars + 14, bars + 14 + row * len(order)
    x = {
        "field": "rank",
        "type": "ordinal",
        "axis": None,
        "scale": {"paddingInner": 0.25, "paddingOuter": 0.1},
    }
    height_scale = {"range": [bars, 16], "zero": True, "nice": False}
    share_axis = {"title": None, "orient": "left", "format": PERCENT, "tickCount": 3}
    y = {"field": "share", "type": "quantitative", "scale": height_scale, "axis": share_axis}
    places = {"domain": order, "range": [top, bottom]}
    who = {
        "field": "member",
        "type": "nominal",
        "sort": order,
        "scale": places,
        "title": None,
        "axis": {"orient": "left", "grid": False, "labelLimit": 130, "labelColor": colours.ink},
    }
    dot = {"condition": {"test": "datum.solved", "value": colours.accent}, "value": colours.faint}
    tooltip = [
        {"field": "detail", "type": "nominal", "title": "solved by"},
        {"field": "text", "title": "share"},
        {"field": "counted", "title": "n"},
        {"field": "range", "title": "95 %"},
    ]
    return {
        **base(colours, bottom, "How often each set of members solved the same prompt"),
        "resolve": {"scale": {"y": "independent"}},
        "layer": [
            {
                "data": {"name": "patterns"},
                "encoding": {"x": x, "y": y},
                "layer": [
                    {
                        "mark": {"type": "bar", "color": colours.accent, "cornerRadiusEnd": 2},
                        "encoding": {"tooltip": tooltip},
                    },
                    {
                        "mark": {"type": "text", "dy": -7, "fontSize": 10.5, "color": colours.muted},
                        "encoding": {"text": {"field": "text", "type": "nominal"}},
                    },
                ],
            },
            {
                "encoding": {"x": x},
                "layer": [
                    {
                        "data": {"name": "links"},
                        "mark": {"type": "rule", "strokeWidth": 2.5, "color": colours.accent},
                        "encoding": {"y": {**who, "field": "top"}, "y2": {"field": "bottom"}},
                    },
                    {
                        "data": {"name": "dots"},
                        "mark": {"type": "circle", "size": 90, "opacity": 1},
                        "encoding": {"y": who, "color": dot},
                    },
                ],
            },
        ],
    }
