"""Warnings about a step that users of RLVR meet most: truncation, constant rewards, a verifier in trouble."""

from __future__ import annotations

from population.rollouts import StepRollouts
from server.store.records import EventRecord

TRUNCATED_SHARE = 0.5
UNGRADED_SHARE = 0.01


def warnings(step: int, rollouts: StepRollouts) -> list[EventRecord]:
    """Named warnings of a step, one per member and cause."""
    events = []
    for name, own in rollouts.rollouts.items():
        rewards = [float(reward) for rollout in own.values() for reward in rollout.group.rewards]
        finishes = [finish for rollout in own.values() for finish in rollout.finishes]
        ungraded = sum(rollout.group.errors for rollout in own.values())
        truncated = finishes.count("length")
        if truncated > TRUNCATED_SHARE * len(finishes):
            text = f"truncated: {truncated} of {len(finishes)} responses reached rollouts.max_response_tokens; raise it"
            events.append(EventRecord("warning", text, name, step))
        if len(set(rewards)) == 1:
            text = (
                f"constant reward: all {len(rewards)} responses got {rewards[0]:g}; own groups teach nothing this step"
            )
            events.append(EventRecord("warning", text, name, step))
        if ungraded > UNGRADED_SHARE * len(rewards):
            text = f"ungraded: the verifier failed on {ungraded} of {len(rewards)} responses; see their verdicts"
            events.append(EventRecord("warning", text, name, step))
    return events
