"""Chart specification of a replay: recorded and replayed counts of every pair. Pure, as in `dashboard.charts`."""

from __future__ import annotations

from dashboard.charts import Spec, base
from dashboard.palette import Inks


def change(colours: Inks, rows: int, *, title: str, row: int = 26) -> Spec:
    """One line a row from the recorded count (hollow) to the replayed one (filled); pale: what a replay cannot tell.

    Frame "points": row (label), order, when ("recorded" or "replayed"), value, detail (tooltip).
    Frame "spans": row, order, recorded, replayed, most (if all unknown responses were admitted), end (right end), text.
    """
    axis = {"title": None, "grid": False, "labelLimit": 260, "labelColor": colours.ink, "labelPadding": 14}
    y = {"field": "row", "type": "nominal", "sort": {"field": "order", "op": "min"}, "axis": axis}
    x = {
        "field": "value",
        "type": "quantitative",
        "scale": {"zero": True, "nice": True},
        "axis": {"title": title, "format": ",d", "tickMinStep": 1, "tickCount": 5},
    }
    ends = ["recorded", "replayed"]
    tooltip = [{"field": "row", "title": "receives ← gives"}, {"field": "when"}, {"field": "detail", "title": title}]
    spans: Spec = {"data": {"name": "spans"}}
    shape: Spec = {"size": 85, "opacity": 1, "strokeWidth": 2, "stroke": colours.accent}
    legend = {"orient": "top", "symbolType": "circle", "symbolStrokeColor": colours.accent, "symbolStrokeWidth": 2}
    fill = {
        "field": "when",
        "type": "nominal",
        "sort": ends,
        "scale": {"domain": ends, "range": [colours.background, colours.accent]},
        "legend": {**legend, "symbolSize": 85, "offset": 8},
    }
    return {
        **base(colours, row * rows + 85, f"{title}, recorded and replayed"),
        "layer": [
            {
                **spans,
                "transform": [{"filter": "datum.most > datum.replayed"}],
                "mark": {"type": "bar", "size": 9, "color": colours.accent, "opacity": 0.25},
                "encoding": {"y": y, "x": {**x, "field": "replayed"}, "x2": {"field": "most"}},
            },
            {
                **spans,
                "mark": {"type": "rule", "strokeWidth": 2, "color": colours.muted},
                "encoding": {"y": y, "x": {**x, "field": "recorded"}, "x2": {"field": "replayed"}},
            },
            {
                "data": {"name": "points"},
                "mark": {"type": "point", **shape},
                "encoding": {"y": y, "x": x, "fill": fill, "tooltip": tooltip},
            },
            {
                **spans,
                "mark": {"type": "text", "align": "left", "dx": 11, "fontSize": 12, "color": colours.muted},
                "encoding": {"y": y, "x": {**x, "field": "end"}, "text": {"field": "text", "type": "nominal"}},
            },
        ],
    }
