"""ECharts options of this dashboard as Vega specifications, since ECharts draws in a browser alone. Pure.

Only what `charts_transfers` and `charts_graph` use: nodes with given places and straight or bent lines ("graph"), and
flows between two columns in the given order ("sankey").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dashboard.charts import Spec
from dashboard.palette import FILE_FONT

Option = Mapping[str, Any]
# ECharts symbols as paths in a box from -1 to 1, where Vega has none of that name.
_SHAPES = {
    "circle": "circle",
    "rect": "square",
    "diamond": "diamond",
    "triangle": "M0,-1L1,1L-1,1Z",
    "roundRect": "M-0.5,-1L0.5,-1Q1,-1,1,-0.5L1,0.5Q1,1,0.5,1L-0.5,1Q-1,1,-1,0.5L-1,-0.5Q-1,-1,-0.5,-1Z",
    "pin": "M0,1C-0.9,0.1,-0.9,-1,0,-1C0.9,-1,0.9,0.1,0,1Z",
}
_DASHES = {"dashed": [6, 4], "solid": [1, 0]}
_GAP = 6
# Pixels of every picture, and of the widest.
WIDTH, WIDEST = 760, 1200
PADDING = {"left": 14, "right": 18, "top": 12, "bottom": 12}


def still(option: Option) -> Spec:
    """The option as a Vega specification; its height is the option's, its width WIDTH, or more where the height has
    room for more."""
    (series,) = option["series"]
    height, width = int(option["height"]), WIDTH
    if series["type"] == "graph":
        width = max(WIDTH, min(WIDEST, _full_width(series, height)))
    draw = _flow if series["type"] == "sankey" else _graph
    lines, arrows, nodes, labels = draw(series, width, height)
    values = {"lines": lines, "arrows": arrows, "nodes": nodes, "labels": labels}
    return {
        "$schema": "https://vega.github.io/schema/vega/v6.json",
        "width": width,
        "height": option["height"],
        "padding": PADDING,
        "autosize": {"type": "pad", "contains": "padding"},
        "data": [{"name": name, "values": rows} for name, rows in values.items()],
        "marks": [_lines(), _arrows(), _nodes(), _labels()],
    }


def _fields(*names: str) -> Spec:
    return {name: {"field": name} for name in names}


def _mark(kind: str, data: str, encoding: Spec) -> Spec:
    return {"type": kind, "from": {"data": data}, "aria": False, "encode": {"enter": encoding}}


def _lines() -> Spec:
    looks = _fields("path", "fill", "fillOpacity", "stroke", "strokeWidth", "strokeOpacity", "strokeDash")
    return _mark("path", "lines", looks)


def _arrows() -> Spec:
    return _mark("path", "arrows", _fields("path", "fill", "fillOpacity"))


def _nodes() -> Spec:
    return _mark("symbol", "nodes", _fields("x", "y", "shape", "size", "fill"))


def _labels() -> Spec:
    looks = _fields("x", "y", "text", "align", "baseline", "angle", "fill", "fontSize", "limit")
    return _mark("text", "labels", looks | {"font": {"value": FILE_FONT}})


Rows = list[dict[str, Any]]


def _graph(series: Option, width: int, height: int) -> tuple[Rows, Rows, Rows, Rows]:
    """(lines, arrow heads, nodes, labels) with places in pixels: as large as fits, its proportions kept."""
    data = series["data"]
    left, top, scale = _fitted(series, width, height)
    base = min(node["x"] for node in data), min(node["y"] for node in data)
    at = {node["id"]: (left + scale * (node["x"] - base[0]), top + scale * (node["y"] - base[1])) for node in data}
    radius = {node["id"]: node["symbolSize"] / 2 for node in data}
    lines, arrows = [], []
    pointed = series.get("edgeSymbol", ["none", "none"])[1] == "arrow"
    for link in series["links"]:
        look = link["lineStyle"]
        start, end = at[link["source"]], at[link["target"]]
        bend = look["curveness"]
        middle = (
            (start[0] + end[0]) / 2 - (start[1] - end[1]) * bend,
            (start[1] + end[1]) / 2 - (end[0] - start[0]) * bend,
        )
        if pointed:
            end, head = _head(middle, end, radius[link["target"]], series["edgeSymbolSize"])
            arrows.append({"path": head, "fill": look["color"], "fillOpacity": look["opacity"]})
        path = f"M{_xy(start)}Q{_xy(middle)},{_xy(end)}" if bend else f"M{_xy(start)}L{_xy(end)}"
        dash = _DASHES[look.get("type", "solid")]
        lines.append(_line(path, look["color"], look["width"], look["opacity"], dash))
    size, ink = series["label"]["fontSize"], series["label"]["color"]
    nodes = [
        {
            "x": at[node["id"]][0],
            "y": at[node["id"]][1],
            "shape": _SHAPES[node.get("symbol", "circle")],
            "size": node["symbolSize"] ** 2,
            "fill": node["itemStyle"]["color"],
        }
        for node in data
    ]
    labels = [_label(at[node["id"]], radius[node["id"]], node, ink, size) for node in data]
    return lines, arrows, nodes, labels


def _full_width(series: Option, height: int) -> int:
    """Pixels in which the nodes fill the height."""
    xs, ys = ([node[axis] for node in series["data"]] for axis in ("x", "y"))
    scale = (height - series["top"] - series["bottom"]) / max(max(ys) - min(ys), 1e-9)
    return round(series["left"] + series["right"] + min(scale * (max(xs) - min(xs)), WIDEST))


def _fitted(series: Option, width: int, height: int) -> tuple[float, float, float]:
    """(left, top, pixels of a unit) of the drawing in the middle of the room that the option leaves."""
    xs, ys = ([node[axis] for node in series["data"]] for axis in ("x", "y"))
    spans = max(max(xs) - min(xs), 1e-9), max(max(ys) - min(ys), 1e-9)
    room = width - series["left"] - series["right"], height - series["top"] - series["bottom"]
    scale = min(room[0] / spans[0], room[1] / spans[1])
    wide, high = ((max(part) - min(part)) * scale for part in (xs, ys))
    return series["left"] + (room[0] - wide) / 2, series["top"] + (room[1] - high) / 2, scale


def _head(
    middle: tuple[float, float], end: tuple[float, float], radius: float, size: float
) -> tuple[tuple[float, float], str]:
    """(where the line ends, the arrow head's path): the tip touches the node, in the line's last direction."""
    away = end[0] - middle[0], end[1] - middle[1]
    length = math.hypot(*away) or 1.0
    x, y = away[0] / length, away[1] / length
    tip = end[0] - radius * x, end[1] - radius * y
    back = tip[0] - size * x, tip[1] - size * y
    sides = (back[0] - y * size / 2, back[1] + x * size / 2), (back[0] + y * size / 2, back[1] - x * size / 2)
    return back, f"M{_xy(tip)}L{_xy(sides[0])}L{_xy(sides[1])}Z"


def _line(path: str, colour: str, width: float, opacity: float, dash: list[int]) -> dict[str, Any]:
    stroke = {"stroke": colour, "strokeWidth": width, "strokeOpacity": opacity, "strokeDash": dash}
    return {"path": path, "fill": None, "fillOpacity": 0} | stroke


def _label(at: tuple[float, float], radius: float, node: Option, ink: str, size: float) -> dict[str, Any]:
    """A node's name beside it, or where its label's own place is, counted from the symbol's upper left corner."""
    look = node["label"]
    text = {"text": node["name"], "fill": ink, "fontSize": size, "limit": look.get("width", 0)}
    place = look["position"]
    if isinstance(place, list):
        x, y = at[0] - radius + place[0], at[1] - radius + place[1]
        return text | {"x": x, "y": y, "align": look["align"], "baseline": "middle", "angle": -look["rotate"]}
    reach = radius + _GAP
    dx, dy, align, baseline = {
        "left": (-reach, 0, "right", "middle"),
        "right": (reach, 0, "left", "middle"),
        "top": (0, -reach, "center", "bottom"),
        "bottom": (0, reach, "center", "top"),
    }[place]
    return text | {"x": at[0] + dx, "y": at[1] + dy, "align": align, "baseline": baseline, "angle": 0}


def _flow(series: Option, width: int, height: int) -> tuple[Rows, Rows, Rows, Rows]:
    """(bands and bars, no arrow heads, no symbols, labels): columns in the given order, bars as high as what moved."""
    data, links = series["data"], series["links"]
    moved = {node["name"]: 0.0 for node in data}
    for link in links:
        for end in ("source", "target"):
            moved[link[end]] += link["value"]
    columns = [[node for node in data if node["depth"] == depth] for depth in (0, 1)]
    room = height - series["top"] - series["bottom"]
    gap = min(series["nodeGap"], room / (2 * max(map(len, columns))))
    scale = min((room - gap * (len(one) - 1)) / sum(moved[node["name"]] for node in one) for one in columns)
    left, right = series["left"], width - series["right"]
    top: dict[str, float] = {}
    bars, labels = [], []
    for column, x in zip(columns, (left, right - series["nodeWidth"]), strict=True):
        y = float(series["top"])
        for node in column:
            top[node["name"]], high = y, scale * moved[node["name"]]
            path = f"M{_xy((x, y))}h{series['nodeWidth']}v{high:.2f}h-{series['nodeWidth']}Z"
            bars.append(_band(path, node["itemStyle"]["color"], 1.0))
            middle = (x + series["nodeWidth"] / 2, y + high / 2)
            named = {"name": node["label"]["formatter"], "label": {"position": node["label"]["position"]}}
            look = series["label"]
            labels.append(_label(middle, series["nodeWidth"] / 2, named, look["color"], look["fontSize"]))
            y += high + gap
    place = {node["name"]: order for order, node in enumerate(data)}
    ink = {node["name"]: node["itemStyle"]["color"] for node in data}
    starts = _stacked(links, scale, top, lambda link: (place[link["source"]], place[link["target"]]), "source")
    ends = _stacked(links, scale, top, lambda link: (place[link["target"]], place[link["source"]]), "target")
    inner = left + series["nodeWidth"], right - series["nodeWidth"]
    bands = [
        _band(_ribbon(inner, start, end, scale * link["value"]), ink[link["source"]], series["lineStyle"]["opacity"])
        for link, start, end in zip(links, starts, ends, strict=True)
    ]
    return [*bands, *bars], [], [], labels


def _stacked(
    links: list[Option], scale: float, top: Mapping[str, float], order: Callable[[Option], tuple[int, int]], end: str
) -> list[float]:
    """Where each link begins on its bar: below those of the bar that come before it in this order."""
    free, found = dict(top), [0.0] * len(links)
    for at in sorted(range(len(links)), key=lambda at: order(links[at])):
        found[at] = free[links[at][end]]
        free[links[at][end]] += scale * links[at]["value"]
    return found


def _band(path: str, colour: str, opacity: float) -> dict[str, Any]:
    return {
        "path": path,
        "fill": colour,
        "fillOpacity": opacity,
        "stroke": None,
        "strokeWidth": 0,
        "strokeDash": [1, 0],
    }


def _ribbon(x: tuple[float, float], start: float, end: float, size: float) -> str:
    """A band of one height from the left bar to the right one, bent half-way."""
    middle = (x[0] + x[1]) / 2
    return (
        f"M{_xy((x[0], start))}C{_xy((middle, start))},{_xy((middle, end))},{_xy((x[1], end))}v{size:.2f}"
        f"C{_xy((middle, end + size))},{_xy((middle, start + size))},{_xy((x[0], start + size))}Z"
    )


def _xy(place: tuple[float, float]) -> str:
    return f"{place[0]:.2f},{place[1]:.2f}"
