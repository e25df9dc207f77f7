"""ECharts options of the Transfers page: who gave admitted responses to whom, as a flow and as a network.

Both take `moved` [N, N] (row receives, column gives) and draw every member in its own colour. Places in the network are
a circle in slot order, so that nothing moves when the numbers do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard import formats
from dashboard.palette import Inks, member_colour

Option = dict[str, Any]
Counts = NDArray[np.integer[Any]]

# Beyond this many edges the thinnest are left out of the drawing; the table has them all.
MOST_EDGES = 60


def strongest(moved: Counts, most: int = MOST_EDGES) -> list[tuple[int, int]]:
    """The (receiver, source) pairs with the most, in slot order; pairs without any are no edges."""
    pairs = [(int(i), int(j)) for i, j in zip(*np.nonzero(moved), strict=True)]
    kept = sorted(pairs, key=lambda pair: (-int(moved[pair]), pair))[:most]
    return sorted(kept)


def sankey(labels: Sequence[str], colours: Inks, moved: Counts) -> Option:
    """Admitted responses from sources (left) to receivers (right)."""
    edges = strongest(moved)
    givers = sorted({source for _, source in edges})
    takers = sorted({receiver for receiver, _ in edges})
    return {
        "animation": False,
        "tooltip": {"trigger": "item", **_tooltip(colours)},
        "series": [
            {
                "type": "sankey",
                "left": 8,
                "right": 8,
                "top": 8,
                "bottom": 8,
                "nodeWidth": 14,
                "nodeGap": 10,
                # The order given: a member stays where it is while the numbers move.
                "layoutIterations": 0,
                "draggable": False,
                "emphasis": {"focus": "adjacency"},
                "lineStyle": {"color": "source", "opacity": 0.4, "curveness": 0.5},
                "label": {"color": colours.ink, "fontSize": 12, "textBorderWidth": 0},
                "data": [_end(labels, colours, slot, "gives") for slot in givers]
                + [_end(labels, colours, slot, "receives") for slot in takers],
                "links": [
                    {
                        "source": f"{labels[source]} gives",
                        "target": f"{labels[receiver]} receives",
                        "value": int(moved[receiver, source]),
                    }
                    for receiver, source in edges
                ],
            }
        ],
    }


def _end(labels: Sequence[str], colours: Inks, slot: int, side: str) -> Option:
    inside = "right" if side == "gives" else "left"
    return {
        "name": f"{labels[slot]} {side}",
        "depth": 0 if side == "gives" else 1,
        "itemStyle": {"color": member_colour(colours, slot)},
        "label": {"position": inside},
    }


def network(labels: Sequence[str], colours: Inks, moved: Counts, *, height: int) -> Option:
    """Members on a circle; an arrow's width is what was admitted along it, a node's size what it gave."""
    edges = strongest(moved)
    most = max((int(moved[pair]) for pair in edges), default=1)
    given = moved.sum(axis=0)
    radius, middle = 0.36 * height, 0.5 * height
    nodes = []
    for slot, label in enumerate(labels):
        angle = 2 * math.pi * slot / len(labels) - math.pi / 2
        nodes.append(
            {
                "id": str(slot),
                "name": label,
                "x": middle + radius * math.cos(angle),
                "y": middle + radius * math.sin(angle),
                "value": int(given[slot]),
                "symbolSize": 14 + 22 * math.sqrt(given[slot] / max(1, given.max())),
                "itemStyle": {"color": member_colour(colours, slot)},
                "label": {"position": _label_side(angle)},
            }
        )
    return {
        "animation": False,
        "tooltip": {"trigger": "item", **_tooltip(colours)},
        "series": [
            {
                "type": "graph",
                "layout": "none",
                "roam": False,
                "left": 90,
                "right": 90,
                "top": 34,
                "bottom": 34,
                "edgeSymbol": ["none", "arrow"],
                "edgeSymbolSize": 8,
                "emphasis": {"focus": "adjacency"},
                "label": {"show": True, "color": colours.ink, "fontSize": 12 if len(labels) <= 12 else 10},
                "data": nodes,
                "links": [
                    {
                        "source": str(source),
                        "target": str(receiver),
                        "value": int(moved[receiver, source]),
                        "lineStyle": {
                            "width": 1 + 6 * int(moved[receiver, source]) / most,
                            "color": member_colour(colours, source),
                            "opacity": 0.65,
                            "curveness": 0.18,
                        },
                    }
                    for receiver, source in edges
                ],
            }
        ],
    }


def _label_side(angle: float) -> str:
    """Outside the circle, where no arrow runs."""
    if abs(math.cos(angle)) < 0.35:
        return "bottom" if math.sin(angle) > 0 else "top"
    return "right" if math.cos(angle) > 0 else "left"


def _tooltip(colours: Inks) -> Option:
    return {
        "backgroundColor": colours.background,
        "borderColor": colours.faint,
        "textStyle": {"color": colours.ink, "fontSize": 12},
        "confine": True,
        "valueFormatter": "localized",
    }


def described(labels: Sequence[str], moved: Counts) -> str:
    """The same in words, for who cannot see the drawing."""
    edges = sorted(strongest(moved), key=lambda pair: -int(moved[pair]))[:10]
    said = ", ".join(
        f"{labels[source]} to {labels[receiver]} {formats.count(int(moved[receiver, source]))}"
        for receiver, source in edges
    )
    return f"Admitted responses: {said}" if said else "No response was admitted"
