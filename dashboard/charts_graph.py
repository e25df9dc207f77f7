"""ECharts options of the success graph: members on a circle, and members beside the prompts they solved.

Places depend on slots and order alone, so that nothing moves when the numbers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from dashboard import formats
from dashboard.charts_transfers import Option, circle, frame, room
from dashboard.palette import Inks, member_colour

# Communities are told apart by shape and number: colours are the members'.
SHAPES = ("circle", "rect", "triangle", "diamond", "roundRect", "pin")
# At least so many lines, and two for every member.
LEAST_EDGES = 24
_SIZE = 22


def shape(community: int) -> str:
    """The symbol of a community."""
    return SHAPES[community % len(SHAPES)]


def strongest(graph: nx.Graph, most: int | None = None) -> list[tuple[str, str, float]]:
    """The pairs whose failures hang together most, in either direction: (node, node, phi)."""
    most = max(LEAST_EDGES, 2 * graph.number_of_nodes()) if most is None else most
    found = [(u, v, float(phi)) for u, v, phi in graph.edges(data="phi")]
    return sorted(found, key=lambda pair: -abs(pair[2]))[:most]


def members(labels: Sequence[str], colours: Inks, graph: nx.Graph, *, height: int) -> Option:
    """Members on a circle; a line's width is how far two fail together (whole) or apart (broken), a node's shape its
    community."""
    nodes = []
    for (node, facts), place in zip(graph.nodes(data=True), circle(len(labels), height), strict=True):
        slot = facts["slot"]
        nodes.append(
            {
                "id": node,
                "name": labels[slot],
                "x": place.x,
                "y": place.y,
                "value": facts["solved"],
                "symbol": shape(facts["community"]),
                "symbolSize": _SIZE,
                "itemStyle": {"color": member_colour(colours, slot)},
                "label": place.label(len(labels), _SIZE),
            }
        )
    links = [
        {
            "source": u,
            "target": v,
            "value": round(phi, 3),
            "lineStyle": {
                "width": 0.6 + 8 * abs(phi),
                "color": colours.muted if phi > 0 else colours.accent,
                "type": "solid" if phi > 0 else "dashed",
                "opacity": min(0.9, 0.25 + abs(phi)),
                "curveness": 0,
            },
        }
        for u, v, phi in strongest(graph)
    ]
    return _drawn(colours, nodes, links, around=room(len(labels)), small=len(labels) > 12)


def neighbourhood(
    labels: Sequence[str],
    colours: Inks,
    prompts: Sequence[str],
    tried: NDArray[np.bool_],
    solved: NDArray[np.bool_],
    *,
    height: int,
) -> Option:
    """Members (left, in slot order) and prompts (right, as given): a line where the member solved the prompt, a faint
    broken one where it tried and did not. tried, solved [P, N]."""
    member_at = _column(len(labels), height)
    prompt_at = _column(len(prompts), height)
    nodes: list[Option] = [
        {
            "id": f"m{slot}",
            "name": label,
            "x": 0,
            "y": member_at[slot],
            "symbolSize": 16,
            "itemStyle": {"color": member_colour(colours, slot)},
            "label": {"position": "left"},
        }
        for slot, label in enumerate(labels)
    ]
    nodes += [
        {
            "id": f"p{place}",
            "name": name,
            "x": 1.5 * height,
            "y": prompt_at[place],
            "symbol": "rect",
            "symbolSize": 10,
            "itemStyle": {"color": colours.muted},
            "label": {"position": "right", "width": 330, "overflow": "truncate"},
        }
        for place, name in enumerate(prompts)
    ]
    width, opacity = (2.0, 0.75) if solved.sum() <= 60 else (1.0, 0.5)
    links = []
    for place, slot in np.argwhere(tried).tolist():
        right = bool(solved[place, slot])
        line = (
            {"color": member_colour(colours, slot), "width": width, "opacity": opacity, "type": "solid"}
            if right
            else {"color": colours.muted, "width": 1, "opacity": 0.35, "type": "dashed"}
        )
        links.append({"source": f"m{slot}", "target": f"p{place}", "lineStyle": {**line, "curveness": 0}})
    around: Option = {"left": 130, "right": 350, "top": 30, "bottom": 30}
    return _drawn(colours, nodes, links, around=around, small=len(labels) > 16)


def _column(count: int, height: int) -> list[float]:
    """Places of some nodes below one another, over the whole height."""
    return [height * (place + 0.5) / max(1, count) for place in range(count)]


def _drawn(colours: Inks, nodes: list[Option], links: list[Option], *, around: Option, small: bool) -> Option:
    series: dict[str, Any] = {
        "type": "graph",
        "layout": "none",
        "roam": False,
        "preserveAspect": "contain",
        **around,
        "emphasis": {"focus": "adjacency"},
        "label": {"show": True, "color": colours.ink, "fontSize": 10 if small else 12},
        "data": nodes,
        "links": links,
    }
    return {**frame(colours), "series": [series]}


def described(labels: Sequence[str], graph: nx.Graph) -> str:
    """The members' drawing in words."""
    slots = nx.get_node_attributes(graph, "slot")
    said = ", ".join(
        f"{labels[slots[u]]} and {labels[slots[v]]} {formats.number(phi, 2)}" for u, v, phi in strongest(graph, 10)
    )
    return f"Failing together (phi): {said}" if said else "No pair of members both failed some prompts"
