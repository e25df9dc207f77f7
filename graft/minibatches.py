"""The order in which a step's prompts reach the optimiser: in the paper, own groups first, grafted ones last."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np

P = TypeVar("P", bound=Hashable)

Position = Literal["last", "first", "uniform"]


def order_prompts(
    prompts: Sequence[P],
    grafted: Collection[P] | Mapping[P, float],
    size: int,
    *,
    position: Position | None = "last",
    seed: int = 0,
) -> list[list[P]]:
    """Cut a member's prompts into minibatches of `size` prompts; the last one may be smaller.

    `grafted` names the prompts whose group came from a peer. Own and grafted prompts are stably partitioned, so each
    part keeps the batch order; given as a mapping prompt -> mean weight of the group, grafted prompts are taken by
    descending weight instead (several sources). Names in `grafted` that are not in `prompts` are ignored: their prompt
    left the update. `position`: `last` (the paper), `first`, or `uniform`, which cuts as `last` does and then
    shuffles the minibatches with `seed`; None cuts the prompts in batch order, grafted or not.
    """
    if size < 1:
        raise ValueError(f"a minibatch needs at least one prompt, got size {size}")
    if position not in ("last", "first", "uniform", None):
        raise ValueError(f"position must be 'last', 'first', 'uniform' or None, got {position!r}")
    if len(set(prompts)) != len(prompts):
        raise ValueError("a step's prompts must be distinct: one prompt occurs twice")
    from_peers = set(grafted) if position is not None else set()
    own = [prompt for prompt in prompts if prompt not in from_peers]
    peers = [prompt for prompt in prompts if prompt in from_peers]
    if isinstance(grafted, Mapping):
        peers = sorted(peers, key=grafted.__getitem__, reverse=True)
    ordered = peers + own if position == "first" else own + peers
    batches = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    if position == "uniform":
        return [batches[index] for index in np.random.default_rng(seed).permutation(len(batches))]
    return batches
