"""What a receiver trains on in one step: its own groups, with the grafted ones in the place of those they rescue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graft.advantages import group_advantages
from graft.groups import Group
from graft.minibatches import Position, order_prompts
from population.exchange import Graft
from population.trainer import TrainingResponse


def training_batch(
    groups: Mapping[int, Group],
    grafts: Sequence[Graft],
    prompt_ids: Mapping[int, Sequence[int]],
    *,
    prompts_per_minibatch: int,
    position: Position | None,
    seed: int,
    engine_logprobs: bool,
) -> list[list[TrainingResponse]]:
    """The minibatches of one member's update, each a list of retained responses.

    A grafted prompt carries the admitted responses of the source's group, with the source's advantages and the gate's
    weights; its failed group is gone. A prompt whose graft was refused whole leaves the update. ``engine_logprobs``:
    take theta_old of own tokens from sampling; otherwise the trainer computes it.
    """
    arrivals = {graft.transfer.prompt: graft for graft in grafts}
    staying = [prompt for prompt in groups if prompt not in arrivals or arrivals[prompt].admitted]
    weights = {prompt: graft.mean_weight for prompt, graft in arrivals.items()}
    one_source = len({graft.transfer.source for graft in grafts}) <= 1  # then batch order, as in the paper
    minibatches = order_prompts(
        staying, set(weights) if one_source else weights, prompts_per_minibatch, position=position, seed=seed
    )
    return [
        [
            response
            for prompt in minibatch
            for response in (
                _grafted(arrivals[prompt], prompt_ids[prompt])
                if prompt in arrivals
                else _own(groups[prompt], prompt_ids[prompt], engine_logprobs)
            )
        ]
        for minibatch in minibatches
    ]


def _own(group: Group, prompt_ids: Sequence[int], engine_logprobs: bool) -> list[TrainingResponse]:
    advantages = group_advantages(group.rewards)
    prompt = np.asarray(prompt_ids, dtype=np.int32)
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


def _grafted(graft: Graft, prompt_ids: Sequence[int]) -> list[TrainingResponse]:
    prompt = np.asarray(prompt_ids, dtype=np.int32)
    return [
        TrainingResponse(prompt, r.ids, r.old_logprobs, r.advantage, r.weight, grafted=True) for r in graft.admitted
    ]
