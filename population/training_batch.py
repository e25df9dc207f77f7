"""What a receiver trains on in one step: its own groups and the grafted ones, in the place of those they rescue or
beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graft.advantages import group_advantages
from graft.groups import Group
from graft.methods import How
from graft.minibatches import order_prompts
from population.exchange import Graft
from population.trainer import TrainingResponse


def training_batch(
    groups: Mapping[int, Group],
    grafts: Sequence[Graft],
    prompt_ids: Mapping[int, Sequence[int]],
    how: How,
    *,
    prompts_per_minibatch: int,
    seed: int,
    engine_logprobs: bool,
) -> list[list[TrainingResponse]]:
    """The minibatches of one member's update, each a list of retained responses.

    A grafted prompt carries the admitted responses of its sources with their advantages and weights. Where the method
    replaces groups, the receiver's failed one is gone, and a prompt whose graft was refused whole leaves the update.
    ``engine_logprobs``: take theta_old of own tokens from sampling; otherwise the trainer computes it.
    """
    arrivals: dict[int, list[Graft]] = {}
    for graft in grafts:
        arrivals.setdefault(graft.transfer.prompt, []).append(graft)
    batch: dict[int, list[TrainingResponse]] = {}
    for prompt, group in groups.items():
        arrived, ids = arrivals.get(prompt, []), np.asarray(prompt_ids[prompt], dtype=np.int32)
        responses = [] if arrived and how.replaces else _own(group, arrived, ids, engine_logprobs)
        responses += [response for graft in arrived for response in _grafted(graft, ids)]
        if responses:
            batch[prompt] = responses
    order = _order(list(batch), grafts, how, prompts_per_minibatch, seed)
    return [[response for prompt in minibatch for response in batch[prompt]] for minibatch in order]


def _order(prompts: Sequence[int], grafts: Sequence[Graft], how: How, size: int, seed: int) -> list[list[int]]:
    """Prompts by minibatch: in batch order where the method has no place of its own for grafted ones."""
    if how.position is None:
        return order_prompts(prompts, (), size)
    weights: dict[int, list[float]] = {}
    for graft in grafts:
        weights.setdefault(graft.transfer.prompt, []).append(graft.mean_weight)
    means = {prompt: float(np.mean(values)) for prompt, values in weights.items()}
    one_source = len({graft.transfer.source for graft in grafts}) <= 1  # then batch order, as in the paper
    return order_prompts(prompts, set(means) if one_source else means, size, position=how.position, seed=seed)


def _own(group: Group, arrived: Sequence[Graft], prompt: np.ndarray, engine_logprobs: bool) -> list[TrainingResponse]:
    beside = arrived[0].own_advantages if arrived else None
    advantages = group_advantages(group.rewards) if beside is None else beside
    return [
        TrainingResponse(
            prompt,
            r.ids,
            r.logprobs if engine_logprobs else None,
            float(a),
            weight=1.0,
            grafted=False,
            engine_logprobs=r.logprobs,
        )
        for r, a in zip(group.responses, advantages, strict=True)
    ]


def _grafted(graft: Graft, prompt: np.ndarray) -> list[TrainingResponse]:
    return [
        TrainingResponse(prompt, r.ids, r.old_logprobs, r.advantage, r.weight, grafted=True, source_mean=r.source_mean)
        for r in graft.admitted
    ]
