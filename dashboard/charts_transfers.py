"""ECharts options of the Transfers page: who gave admitted responses to whom, as a flow and as a network.

Both take `moved` [N, N] (row receives, column gives) and draw every member in its own colour. Places in the network are
a circle in slot order, so that nothing moves when the numbers do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dashboard import formats
from dashboard.charts import FONT
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
        **frame(colours),
        "series": [
            {
                "type": "sankey",
                "left": 130,
                "right": 130,
                "top": 8,
                "bottom": 8,
                "nodeWidth": 14,
                "nodeGap": 14,
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
    outside = "left" if side == "gives" else "right"
    return {
        "name": f"{labels[slot]} {side}",
        "depth": 0 if side == "gives" else 1,
        "itemStyle": {"color": member_colour(colours, slot)},
        # A constant text: the name in a template would be read as one.
        "label": {"position": outside, "formatter": labels[slot].replace("{", "(").replace("}", ")")},
    }


def network(labels: Sequence[str], colours: Inks, moved: Counts, *, height: int) -> Option:
    """Members on a circle; an arrow's width is what was admitted along it, a node's size what it gave."""
    edges = strongest(moved)
    most = max((int(moved[pair]) for pair in edges), default=1)
    given = moved.sum(axis=0)
    nodes = []
    for (slot, label), place in zip(enumerate(labels), circle(len(labels), height), strict=True):
        size = 14 + 22 * math.sqrt(given[slot] / max(1, given.max()))
        nodes.append(
            {
                "id": str(slot),
                "name": label,
                "x": place.x,
                "y": place.y,
                "value": int(given[slot]),
                "symbolSize": size,
                "itemStyle": {"color": member_colour(colours, slot)},
                "label": place.label(len(labels), size),
            }
        )
    return {
        **frame(colours),
        "series": [
            {
                "type": "graph",
                "layout": "none",
                "roam": False,
                "preserveAspect": "contain",
                **room(len(labels)),
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


# With more members than this, labels on a circle lie along its rays, or they would cover each other.
MOST_LEVEL_LABELS = 12


class Point(NamedTuple):
    """A place on the circle, and its angle in radians, clockwise from the right."""

    x: float
    y: float
    angle: float

    def label(self, count: int, size: float) -> Option:
        """Where the label of a symbol of this size stands: outside the circle, where no line runs."""
        if count > MOST_LEVEL_LABELS:
            return _along_ray(self.angle, size)
        if abs(math.cos(self.angle)) < 0.35:
            return {"position": "bottom" if math.sin(self.angle) > 0 else "top"}
        return {"position": "right" if math.cos(self.angle) > 0 else "left"}


def _along_ray(angle: float, size: float) -> Option:
    """A label that goes on in the direction of the ray, never upside down."""
    degrees = -math.degrees(math.atan2(math.sin(angle), math.cos(angle)))
    outward = abs(degrees) <= 90.0
    reach = 0.5 * size + 5
    return {
        "position": [0.5 * size + reach * math.cos(angle), 0.5 * size + reach * math.sin(angle)],
        "rotate": degrees if outward else degrees - math.copysign(180.0, degrees),
        "align": "left" if outward else "right",
        "verticalAlign": "middle",
    }


def room(count: int) -> Option:
    """Space for the labels around a circle."""
    above = 96 if count > MOST_LEVEL_LABELS else 34
    return {"left": 96, "right": 96, "top": above, "bottom": above}


def circle(count: int, height: int) -> list[Point]:
    """Places of so many members on a circle, in slot order from the top."""
    radius, middle = 0.36 * height, 0.5 * height
    angles = [2 * math.pi * slot / count - math.pi / 2 for slot in range(count)]
    return [Point(middle + radius * math.cos(at), middle + radius * math.sin(at), at) for at in angles]


def frame(colours: Inks) -> Option:
    """What every drawing shares: no motion, our font, a tooltip in the theme's colours."""
    tooltip = {
        "trigger": "item",
        "backgroundColor": colours.background,
        "borderColor": colours.faint,
        "textStyle": {"color": colours.ink, "fontSize": 12},
        "confine": True,
        "valueFormatter": "localized",
    }
    return {"animation": False, "textStyle": {"fontFamily": FONT}, "tooltip": tooltip}


def described(labels: Sequence[str], moved: Counts) -> str:
    """The same in words, for who cannot see the drawing."""
    edges = sorted(strongest(moved), key=lambda pair: -int(moved[pair]))[:10]
    said = ", ".join(
        f"{labels[source]} to {labels[receiver]} {formats.count(int(moved[receiver, source]))}"
        for receiver, source in edges
    )
    return f"Admitted responses: {said}" if said else "No response was admitted"
