"""How able each member is of late: what HACPO (arXiv 2603.02604) weighs members against each other by."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from graft.advantages import capability_ratio
from graft.groups import Group


class Capability:
    """P_k: mean accuracy of each member over its last `batches` steps, the present one included."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._accuracy: dict[str, deque[float]] = {}

    def observe(self, groups: Mapping[str, Mapping[int, Group]]) -> None:
        """Add one step's groups, {member: {prompt: group}}; a member without a graded response keeps what it had."""
        for member, own in groups.items():
            graded = sum(int(group.graded.sum()) for group in own.values())
            if graded:
                solved = sum(int((group.rewards[group.graded] > 0).sum()) for group in own.values())
                self._accuracy.setdefault(member, deque(maxlen=self._batches)).append(solved / graded)

    def ratios(self, receiver: str, sources: Sequence[str]) -> list[float]:
        """omega(receiver, source) = P_receiver / P_source of every source, clamped to [0.1, 10]."""
        return [capability_ratio(self._mean(receiver), self._mean(source)) for source in sources]

    def _mean(self, member: str) -> float:
        accuracy = self._accuracy.get(member)
        return sum(accuracy) / len(accuracy) if accuracy else 0.0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {member: list(accuracy) for member, accuracy in self._accuracy.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self._accuracy = {member: deque(values, maxlen=self._batches) for member, values in state.items()}
