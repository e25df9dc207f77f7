"""Chart specifications of the health panels; as `dashboard.charts`, pure and free of data."""

from __future__ import annotations

from dashboard.charts import Spec, base
from dashboard.palette import Inks


def uptake(colours: Inks, rows: int, *, row: int = 26) -> Spec:
    """Uptake of every pair and of all, in percentage points, with 95 % intervals against the line of no difference.

    Frame "uptake": row (label), order (place from the top), value, low, high (points), total (bool), after, withheld,
    detail (texts).
    """
    y = {
        "field": "row",
        "type": "nominal",
        "sort": {"field": "order", "op": "min"},
        "axis": {"title": None, "grid": False, "labelLimit": 320, "labelColor": colours.ink},
    }
    x = {
        "field": "value",
        "type": "quantitative",
        "scale": {"zero": True, "nice": True, "padding": 8},
        "axis": {"title": "percentage points", "format": "+.0f", "tickCount": 6},
    }
    ink = {"condition": {"test": "datum.total", "value": colours.ring}, "value": colours.accent}
    tooltip = [
        {"field": "row", "title": "receiver ← source"},
        {"field": "after", "title": "after a graft"},
        {"field": "withheld", "title": "after a withheld one"},
        {"field": "detail", "title": "difference, 95 %"},
    ]
    return {
        **base(
            colours, row * rows + 45, "Difference in solving at the next visit between grafted and withheld prompts"
        ),
        "data": {"name": "uptake"},
        "layer": [
            {
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": colours.muted},
                "encoding": {"x": {"datum": 0, "type": "quantitative"}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2.5, "strokeCap": "round"},
                "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": ink},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
                "encoding": {"y": y, "x": x, "color": ink, "tooltip": tooltip},
            },
        ],
    }
