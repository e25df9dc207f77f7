"""The success graph as networkx sees it: members and the newest prompts, who solved what. Pure; no Streamlit.

Member nodes are "member 0", "member 1", ... by slot, prompt nodes "prompt KEY". An edge says how often the member
visited the prompt in these steps, solved it (at least one rollout right) and failed it (all of them wrong).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from dashboard import formats
from server.store.reader import NewestPlaces

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Visits:
    """Prompts [P], the most recently visited first, and how often each member tried, solved and failed them [P, N]."""

    prompts: Ints
    last_step: Ints
    tried: Ints
    solved: Ints
    failed: Ints


def visits(places: NewestPlaces) -> Visits:
    """The places added up by prompt."""
    keys, first, inverse = np.unique(places.prompt, return_index=True, return_inverse=True)
    # Places are newest first, so a prompt's first place is its last visit.
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    shape = (len(keys), places.attempted.shape[1])
    counts = []
    for flags in (places.attempted, places.solved, places.all_fail):
        total = np.zeros(shape, np.int64)
        np.add.at(total, rank[inverse], flags.astype(np.int64))
        counts.append(total)
    return Visits(keys[order], places.step[first[order]], *counts)


def member_node(slot: int) -> str:
    return f"member {slot}"


def prompt_node(key: int) -> str:
    return f"prompt {key}"


def bipartite(names: Sequence[str], seen: Visits) -> nx.Graph:
    """Members and prompts with an edge wherever a member tried a prompt."""
    graph = nx.Graph()
    for slot, name in enumerate(names):
        graph.add_node(member_node(slot), kind="member", slot=slot, name=formats.clean(name))
    for key, step in zip(seen.prompts.tolist(), seen.last_step.tolist(), strict=True):
        graph.add_node(prompt_node(key), kind="prompt", last_step=step)
    keys, slots = np.nonzero(seen.tried)
    counts = (part[keys, slots].tolist() for part in (seen.tried, seen.solved, seen.failed))
    for key, slot, tried, solved, failed in zip(seen.prompts[keys].tolist(), slots.tolist(), *counts, strict=True):
        graph.add_edge(member_node(slot), prompt_node(key), visits=tried, solved=solved, failed=failed)
    return graph


def alone(seen: Visits, slot: int, solved: bool) -> Ints:
    """Places in `seen` of the prompts that only this member solved, or only this one failed; others must have tried."""
    others = np.arange(seen.tried.shape[1]) != slot
    tried = (seen.tried[:, slot] > 0) & (seen.tried[:, others] > 0).any(axis=1)
    own, rest = seen.solved[:, slot] > 0, seen.solved[:, others] > 0
    if solved:
        chosen = tried & own & ~rest.any(axis=1)
    else:
        chosen = tried & ~own & (seen.failed[:, slot] > 0) & (rest | (seen.tried[:, others] == 0)).all(axis=1)
    found: Ints = np.flatnonzero(chosen)
    return found


def nearest(seen: Visits, prompt: int, most: int) -> list[int]:
    """The prompt, then those whose solvers are most like its own (Jaccard), the newest first among equals.

    Prompts that share no solver are left out. [] where the prompt is not among the visits.
    """
    centre = np.flatnonzero(seen.prompts == prompt)
    if not len(centre):
        return []
    solved = seen.solved > 0
    own = solved[centre[0]]
    shared, sizes = (solved & own).sum(axis=1), solved.sum(axis=1)
    others = np.flatnonzero((shared > 0) & (seen.prompts != prompt))
    closeness = shared[others] / (own.sum() + sizes[others] - shared[others])
    keys = seen.prompts[others]
    ranked = np.lexsort((keys.astype(str), -seen.last_step[others], -closeness))
    return [prompt, *keys[ranked[: most - 1]].tolist()]


def projection(names: Sequence[str], phi: NDArray[np.float64], n: NDArray[np.float64], seen: Visits) -> nx.Graph:
    """Member to member: phi of their all-fail prompts with its n [N, N], and the prompts both solved among the newest.

    Each member carries its community: members of one fail the same prompts, help comes from another.
    """
    graph = nx.Graph()
    solved = (seen.solved > 0).astype(np.int64)
    both = solved.T @ solved
    for slot, name in enumerate(names):
        graph.add_node(member_node(slot), slot=slot, name=formats.clean(name), solved=int(both[slot, slot]))
    for i, j in combinations(range(len(names)), 2):
        if np.isfinite(phi[i, j]):
            graph.add_edge(
                member_node(i), member_node(j), phi=float(phi[i, j]), prompts=int(n[i, j]), solved_both=int(both[i, j])
            )
    for number, community in enumerate(communities(graph)):
        for node in community:
            graph.nodes[node]["community"] = number
    return graph


def communities(graph: nx.Graph) -> list[list[str]]:
    """Members grouped by modularity over the pairs that fail together more than by chance, the largest group first.

    A member without such a pair is a group of its own.
    """
    together = nx.Graph()
    together.add_nodes_from(graph.nodes)
    together.add_weighted_edges_from((u, v, edge["phi"]) for u, v, edge in graph.edges(data=True) if edge["phi"] > 0)
    if not together.size():
        return [[node] for node in graph.nodes]
    found = nx.community.greedy_modularity_communities(together, weight="weight")
    place = {node: slot for slot, node in enumerate(graph.nodes)}
    return sorted((sorted(group, key=place.__getitem__) for group in found), key=lambda g: (-len(g), place[g[0]]))


def graphml(graph: nx.Graph) -> bytes:
    """The graph as GraphML (UTF-8), for Gephi, Cytoscape, yEd or `networkx.read_graphml`."""
    out = io.BytesIO()
    nx.write_graphml(graph, out)
    return out.getvalue()
