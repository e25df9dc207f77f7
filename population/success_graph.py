"""The success graph: for every prompt and member, how often it was tried and how often it was solved.

A bipartite graph prompts x members kept as dense arrays ([P, N]: every member sees every batch, so the graph is
dense), with networkx views for what people look at. A step costs the same whatever the number of prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import numpy as np

from graft.groups import Group

COUNT_LIMIT = np.iinfo(np.uint16).max
CHUNK_PROMPTS = 65536


@dataclass(frozen=True)
class StepCounts:
    """k_M(q) and n_M(q) of one step, only for groups whose every response was graded: {member: {prompt: count}}."""

    successes: dict[str, dict[int, int]]
    attempts: dict[str, dict[int, int]]

    @classmethod
    def of(cls, groups: Mapping[str, Mapping[int, Group]]) -> StepCounts:
        """The counts of {member: {prompt: group}}."""
        counts = cls({}, {})
        for member, own in groups.items():
            prompts, successes, attempts = _graded_counts(list(own.values()))
            counts.successes[member] = dict(zip(prompts.tolist(), successes.tolist(), strict=True))
            counts.attempts[member] = dict(zip(prompts.tolist(), attempts.tolist(), strict=True))
        return counts


class SuccessGraph:
    """Per-prompt record across members: attempts, successes, recent success rate, last step. 12 bytes per edge."""

    def __init__(self, members: Sequence[str], prompts: Sequence[int], *, rate_decay: float = 0.5) -> None:
        """``prompts`` are the keys of the run's data set; ``rate_decay`` is the weight of the past in the recent
        rate.
        """
        self.members = tuple(members)
        self._sorted = np.sort(np.asarray(prompts, dtype=np.int64))
        self._decay = rate_decay
        shape = (len(self._sorted), len(self.members))
        self.attempts = np.zeros(shape, np.uint16)
        self.successes = np.zeros(shape, np.uint16)
        self.rate = np.full(shape, np.nan, np.float32)
        self.last_step = np.zeros(shape, np.int32)

    def record(self, step: int, groups: Mapping[str, Mapping[int, Group]]) -> None:
        """Add the groups of one step, {member: {prompt: group}}; a member may have none.

        A group with an ungraded response (a verifier fault) is left out: it is neither all-fail nor a source.
        """
        for column, member in enumerate(self.members):
            self._add(column, step, *_graded_counts(list(groups.get(member, {}).values())))

    def _add(self, column: int, step: int, prompts: np.ndarray, successes: np.ndarray, attempts: np.ndarray) -> None:
        rows = self._rows(prompts)
        past = self.rate[rows, column]
        now = (successes / attempts).astype(np.float32)
        self.rate[rows, column] = np.where(np.isnan(past), now, self._decay * past + (1 - self._decay) * now)
        self.attempts[rows, column] = np.minimum(self.attempts[rows, column] + attempts, COUNT_LIMIT)
        self.successes[rows, column] = np.minimum(self.successes[rows, column] + successes, COUNT_LIMIT)
        self.last_step[rows, column] = step

    def _rows(self, prompts: np.ndarray) -> np.ndarray:
        rows = np.searchsorted(self._sorted, prompts)
        unknown = (rows >= len(self._sorted)) | (self._sorted[np.minimum(rows, len(self._sorted) - 1)] != prompts)
        if unknown.any():
            raise KeyError(f"success graph: prompt {int(prompts[unknown][0])} is not in the run's data set")
        return rows

    def complementarity(self) -> tuple[np.ndarray, np.ndarray]:
        """(C, support), each [N, N], over all attempts so far: C[i, j] = share of the prompts that i tried and never
        solved that j solved at least once, over those both tried; NaN where nothing supports it."""
        size = len(self.members)
        solved, support = np.zeros((size, size)), np.zeros((size, size))
        for start in range(0, len(self._sorted), CHUNK_PROMPTS):
            part = slice(start, start + CHUNK_PROMPTS)
            tried = self.attempts[part] > 0
            failed = (tried & (self.successes[part] == 0)).astype(np.float32)
            support += failed.T @ tried.astype(np.float32)
            solved += failed.T @ (self.successes[part] > 0).astype(np.float32)
        np.fill_diagonal(support, 0)
        with np.errstate(invalid="ignore"):
            return np.where(support > 0, solved / support, np.nan), support.astype(np.int64)

    def prompt_view(self, prompts: Sequence[int]) -> nx.Graph:
        """The bipartite subgraph of some prompts: an edge (prompt, member) for every pair tried, with its counts."""
        graph = nx.Graph()
        graph.add_nodes_from(self.members, bipartite="member")
        keys = np.asarray(prompts, dtype=np.int64)
        for key, row in zip(keys.tolist(), self._rows(keys).tolist(), strict=True):
            graph.add_node(key, bipartite="prompt")
            for column, member in enumerate(self.members):
                if self.attempts[row, column]:
                    graph.add_edge(
                        key,
                        member,
                        attempts=int(self.attempts[row, column]),
                        successes=int(self.successes[row, column]),
                        rate=float(self.rate[row, column]),
                        last_step=int(self.last_step[row, column]),
                    )
        return graph

    def member_view(self) -> nx.DiGraph:
        """Who can help whom: an edge source -> receiver with the complementarity of the pair and its support."""
        share, support = self.complementarity()
        graph = nx.DiGraph()
        graph.add_nodes_from(self.members)
        for i, receiver in enumerate(self.members):
            for j, source in enumerate(self.members):
                if i != j and support[i, j] > 0:
                    graph.add_edge(source, receiver, complementarity=float(share[i, j]), support=int(support[i, j]))
        return graph

    def save(self, path: Path) -> None:
        """Write the arrays to an ``.npz`` file."""
        with path.open("wb") as file:
            np.savez(
                file,
                prompts=self._sorted,
                attempts=self.attempts,
                successes=self.successes,
                rate=self.rate,
                last_step=self.last_step,
            )

    def load(self, path: Path) -> None:
        """Read what :meth:`save` wrote. ValueError when it belongs to another data set or population."""
        with np.load(path) as arrays:
            if not np.array_equal(arrays["prompts"], self._sorted) or arrays["attempts"].shape != self.attempts.shape:
                raise ValueError(
                    f"{path}: the success graph of another data set or population; resume with the run's own settings"
                )
            self.attempts, self.successes = arrays["attempts"], arrays["successes"]
            self.rate, self.last_step = arrays["rate"], arrays["last_step"]


def _graded_counts(groups: Sequence[Group]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(prompts, successes, attempts), each int64 [G], of the groups without an ungraded response."""
    if not groups:
        return (np.zeros(0, np.int64),) * 3
    # One reduction over all responses: a call per group would cost more than the graph itself.
    lengths = np.array([len(group.rewards) for group in groups], np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    successes = np.add.reduceat(np.concatenate([group.rewards for group in groups]) > 0, starts, dtype=np.int64)
    graded = np.logical_and.reduceat(np.concatenate([group.graded for group in groups]), starts)
    prompts = np.array([group.prompt for group in groups], np.int64)
    return prompts[graded], successes[graded], lengths[graded]
