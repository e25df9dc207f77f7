"""Chart specifications of the Training page: pure functions, as in `dashboard.charts`."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.charts import PERCENT, Spec, base
from dashboard.palette import Inks

# Metric of the store, and what it is called; work first, then what a member waited for.
ACTIVITIES = (
    ("seconds_sample", "samples"),
    ("seconds_grade", "is graded"),
    ("seconds_score", "scores"),
    ("seconds_update", "trains"),
    ("seconds_sync", "syncs"),
    ("idle_turn", "waits: turn"),
    ("idle_barrier", "waits: barrier"),
    ("idle_grading", "waits: grading"),
    ("idle_other", "waits: other"),
)
_WORK = 5


def activities(labels: Sequence[str], colours: Inks, *, row: int = 30) -> Spec:
    """One bar for each member, divided by what it did; waits are pale, so that work stands out.

    Frame "activities": member (label), activity, order (its place in the bar), share, detail (tooltip).
    """
    names = [name for _, name in ACTIVITIES]
    waits = [colours.muted, colours.grid, colours.faint, colours.ramp[1]]
    scale = {"domain": names, "range": [*colours.members[:_WORK], *waits]}
    legend = {"orient": "top", "columns": {"expr": "max(2, min(9, floor(width / 120)))"}, "symbolType": "square"}
    order = list(labels)
    y_axis = {"title": None, "grid": False, "labelLimit": 130, "labelColor": colours.ink}
    return {
        **base(colours, row * len(order) + 110, "Share of every member's time by what it did"),
        "data": {"name": "activities"},
        "mark": {"type": "bar", "stroke": colours.background, "strokeWidth": 1},
        "encoding": {
            "y": {"field": "member", "type": "nominal", "sort": order, "scale": {"domain": order}, "axis": y_axis},
            "x": {
                "field": "share",
                "type": "quantitative",
                "stack": "zero",
                "scale": {"domain": [0, 1]},
                "axis": {"title": "share of the steps' time", "format": PERCENT, "tickCount": 5},
            },
            "color": {"field": "activity", "type": "nominal", "sort": names, "scale": scale, "legend": legend},
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": [
                {"field": "member", "title": "member"},
                {"field": "activity", "title": "does"},
                {"field": "detail", "title": "time"},
            ],
        },
    }
