"""The panel of the success graph: members together, one member's own prompts, or one prompt's neighbourhood."""

from __future__ import annotations

from urllib.parse import urlencode

import networkx as nx
import numpy as np
import pandas as pd
import streamlit as st

from dashboard import charts_graph, formats, frames_files, parts, safe_text, success_graph
from dashboard.controls import Window, integer_parameter, link_parameters, member_labels, pick
from dashboard.measures import MEASURES
from dashboard.source import Source
from dashboard.success_graph import Visits
from server.store.reader import NewestPlaces

MEMBERS, MEMBER, PROMPT = "members", "one member", "one prompt"
# Edges of the graph, whatever the number of members: so many places are read, the newest.
MOST_EDGES = 30_000
MOST_PLACES = 5_000
DRAWN_PROMPTS = 14
LISTED = 10
# Symbols of the drawing whose names are no words.
_SHAPES = {"rect": "square", "roundRect": "rounded square"}


def draw(source: Source, window: Window, pairs: dict[str, np.ndarray], cell: tuple[int, int]) -> None:
    """Who solved what, as a graph: of the members, of one member, of one prompt."""
    limit = min(MOST_PLACES, MOST_EDGES // len(source.info.members))
    places = source.ask("newest_places", window.first, window.last, limit=limit)
    seen = success_graph.visits(places)
    parts.title(
        "Success graph",
        "members and prompts, joined where a member solved one",
        "members: who fails on the same prompts. one member: what only it solves. one prompt: who solved it, and which "
        "prompts have the same solvers. GraphML opens in Gephi, Cytoscape, yEd and networkx.",
    )
    kind = pick("Of", [MEMBERS, MEMBER, PROMPT], key="graph", segments=True, hide_label=True)
    if kind == MEMBERS:
        _members(source, pairs, seen)
    elif kind == MEMBER:
        _member(source, seen, cell)
    else:
        _prompt(source, window, places, seen, cell)
    _about(source, window, places, seen)


def _about(source: Source, window: Window, places: NewestPlaces, seen: Visits) -> None:
    """What the graph holds, and the graph as a file."""
    names = [member.name for member in source.info.members]
    cut = "" if places.first_step <= window.first else ", the newest of these steps"
    prompts = formats.count(len(seen.prompts))
    with st.container(horizontal=True, vertical_alignment="center"):
        parts.file(
            "GraphML",
            key="success_graph",
            suffix="graphml",
            mime="application/graphml+xml",
            make=lambda: success_graph.graphml(success_graph.bipartite(names, seen)),
        )
        parts.caption(f"{prompts} prompts of {Window(min(places.first_step, window.last), window.last)}{cut}.")


def _members(source: Source, pairs: dict[str, np.ndarray], seen: Visits) -> None:
    """Members on a circle, joined where they fail together more than by chance; communities by shape and in words."""
    labels = parts.labels(source.info)
    failing = next(measure for measure in MEASURES if measure.key == "failing").read(pairs)
    names = [member.name for member in source.info.members]
    graph = success_graph.projection(names, failing.value, failing.n, seen)
    height = 340 if len(labels) <= 12 else 560
    left, right = st.columns([3, 2], vertical_alignment="center")
    with left:
        parts.diagram(
            charts_graph.members(labels, parts.colours(), graph, height=height),
            key="graph_members",
            height=height,
            alt=charts_graph.described(labels, graph),
            data=lambda: frames_files.graph(graph),
        )
    with right:
        groups = _groups(graph, labels)
        parts.text(
            f"**{formats.counted(len(groups), 'community', 'communities')}** :gray[members that fail the same prompts]"
        )
        for shape, members in groups:
            parts.text(f"- {safe_text.inline(', '.join(members))} :gray[({shape})]")
        pairs_known = graph.number_of_edges()
        drawn = len(charts_graph.strongest(graph))
        cut = f" The {drawn} strongest of {pairs_known} pairs." if drawn < pairs_known else ""
        parts.caption(
            "Whole lines: phi of the all-fail prompts above 0, they fail together. Broken lines: below 0, one fails "
            f"where the other does not, and can help.{cut} Communities: greedy modularity over the whole lines."
        )


def _groups(graph: nx.Graph, labels: list[str]) -> list[tuple[str, list[str]]]:
    """(shape, members) of every community, the largest first."""
    found: dict[int, list[str]] = {}
    for _, facts in graph.nodes(data=True):
        found.setdefault(facts["community"], []).append(labels[facts["slot"]])
    return [(_SHAPES.get(form := charts_graph.shape(number), form), found[number]) for number in sorted(found)]


def _member(source: Source, seen: Visits, cell: tuple[int, int]) -> None:
    """What one member solves and nobody else does, and what only it fails."""
    labels, options = parts.labels(source.info), member_labels(source.info)
    chosen = pick("Member", options, key="of", default=options[cell[0]], keep=False, width=320)
    slot = options.index(chosen)
    only, lost = success_graph.alone(seen, slot, True), success_graph.alone(seen, slot, False)
    tried = int((seen.tried[:, slot] > 0).sum())
    name = safe_text.inline(labels[slot])
    solved, failed = (
        f"{formats.of(len(part), tried, 'prompt')}: {formats.rate_interval(len(part), tried)}" for part in (only, lost)
    )
    parts.text(f"Of the prompts it tried, **{name}** alone solved {solved}; alone failed {failed}.")
    both = np.concatenate([only[: DRAWN_PROMPTS // 2], lost[: DRAWN_PROMPTS // 2]])
    if len(both):
        parts.text("**Its own prompts** :gray[lines: solved; broken: tried, not solved]")
        alt = f"The prompts that {labels[slot]} alone solved or failed"
        _neighbourhood(source, seen, both, "graph_own_prompts", alt)
    for verb, places in (("solved", only), ("failed", lost)):
        if len(places):
            more = f" :gray[the newest {LISTED} of {formats.count(len(places))}]" if len(places) > LISTED else ""
            parts.text(f"**Only {name} {verb}**{more}")
            _list(source, seen, places, labels, f"graph_only_{verb}")
    if not (len(only) or len(lost)):
        parts.nothing("Every prompt it solved was solved by another member too, and every one it failed failed by one.")


def _list(source: Source, seen: Visits, places: np.ndarray, labels: list[str], name: str) -> None:
    """The newest of these prompts with who solved them, and links."""
    shown = places[:LISTED]
    texts = source.prompts(tuple(seen.prompts[shown].tolist()))
    rows = []
    for place in shown.tolist():
        key = int(seen.prompts[place])
        record = texts.get(key)
        solved = [labels[slot] for slot in np.flatnonzero(seen.solved[place])]
        query = urlencode(link_parameters(run=source.info.uid, graph=PROMPT, prompt=key))
        rows.append(
            {
                "Last step": formats.count(int(seen.last_step[place])),
                "Prompt": safe_text.math_line(record.text, 140) if record else str(key),
                "Solved by": _who(solved, len(labels)),
                "Tried by": f"{int((seen.tried[place] > 0).sum())} members",
                "Graph": f"[who else ↗](complementarity?{query})",
            }
        )
    parts.table(
        pd.DataFrame(rows),
        key=name,
        data=lambda: frames_files.visits(
            parts.names(source.info), seen.prompts[places].tolist(), seen.tried[places], seen.solved[places]
        ),
        alt="Prompts and who solved them",
    )


def _who(solved: list[str], members: int) -> str:
    if not solved:
        return "nobody"
    if len(solved) == members:
        return "everybody"
    if len(solved) <= 4:
        return safe_text.inline(", ".join(solved))
    return f"{len(solved)} members"


def _prompt(source: Source, window: Window, places: NewestPlaces, seen: Visits, cell: tuple[int, int]) -> None:
    """One prompt: what every member made of it, and the prompts that the same members solved."""
    labels = parts.labels(source.info)
    key = integer_parameter("prompt")
    if key is None:
        key = _default_prompt(places, cell)
    record = source.prompts((key,)).get(key) if key is not None else None
    if key is None or record is None:
        parts.nothing("No such prompt in these steps; “who else” in a table of prompts chooses one.")
        return
    parts.text(safe_text.math_line(record.text, 300))
    _visits_table(source, window, key, labels)
    near = success_graph.nearest(seen, key, DRAWN_PROMPTS)
    if len(near) < 2:
        parts.nothing("Nobody solved it in these steps, or no other prompt has one of its solvers.")
        return
    parts.text("**Prompts with the same solvers** :gray[lines: solved; broken: tried, not solved]")
    place_of = {int(prompt): place for place, prompt in enumerate(seen.prompts)}
    places_near = np.array([place_of[prompt] for prompt in near])
    alt = "The prompts whose solvers are most like those of the chosen one"
    _neighbourhood(source, seen, places_near, "graph_prompts", alt)


def _neighbourhood(source: Source, seen: Visits, places: np.ndarray, key: str, alt: str) -> None:
    """Some prompts beside all members, joined where one solved the other."""
    labels = parts.labels(source.info)
    keys = seen.prompts[places].tolist()
    texts = source.prompts(tuple(keys))
    names = [f"{at + 1}. {formats.clean(texts[k].text, 60) if k in texts else k}" for at, k in enumerate(keys)]
    height = max(26 * len(keys), 22 * len(labels)) + 60
    option = charts_graph.neighbourhood(
        labels, parts.colours(), names, seen.tried[places] > 0, seen.solved[places] > 0, height=height
    )
    tried, solved = seen.tried[places], seen.solved[places]
    parts.diagram(
        option,
        key=key,
        height=height,
        alt=alt,
        data=lambda: frames_files.visits(parts.names(source.info), keys, tried, solved),
    )


def _default_prompt(places: NewestPlaces, cell: tuple[int, int]) -> int | None:
    """The newest prompt of the chosen cell, or the newest of all."""
    row, column = cell
    of_cell = np.flatnonzero(places.all_fail[:, row] & places.solved[:, column])
    if len(of_cell):
        return int(places.prompt[of_cell[0]])
    return int(places.prompt[0]) if len(places.prompt) else None


def _visits_table(source: Source, window: Window, key: int, labels: list[str]) -> None:
    """Every member's visits of the prompt: how many rollouts were right, and the newest visit."""
    visits = source.ask("prompt_visits", key, window.first, window.last)
    rows = []
    for slot, label in enumerate(labels):
        own = visits.member == slot
        if not own.any():
            continue
        right, n = int(visits.successes[own].sum()), int(visits.n[own].sum())
        step = int(visits.step[own][-1])
        query = urlencode(link_parameters(run=source.info.uid, step=step, prompt=key, receiver=slot))
        rows.append(
            {
                "Member": safe_text.inline(label),
                "Visits": formats.count(int(own.sum())),
                "Right": formats.of(right, n, "rollout"),
                "Share": formats.rate(right, n),
                "95 %": formats.interval(right, n),
                "Newest": f"step {formats.count(step)}: {visits.successes[own][-1]}/{visits.n[own][-1]}",
                "Responses": f"[open ↗](trajectories?{query})",
            }
        )
    if rows:
        parts.table(
            pd.DataFrame(rows),
            key="graph_visits",
            data=lambda: frames_files.prompt_visits(parts.names(source.info), key, visits),
            alt="What every member made of the prompt",
        )
    else:
        parts.nothing("No member was asked this prompt in these steps.")
