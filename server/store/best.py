"""Which checkpoint of a member is the best one, by a named rule on named benchmarks: read from recorded evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from server.store.records import Role
from server.store.views import BestCheckpoint, EvaluationSummary

Rule = Literal["mean", "last"]
Split = Literal["auto", "validation", "test"]

# Two means over the same problems that differ by less were summed in another order.
_DIGITS = 12


def selecting(roles: Mapping[str, Role], on: Split) -> tuple[Role, tuple[str, ...]]:
    """(role, names) of the benchmarks that select; `auto` takes the validation ones where there are any."""
    chosen: Role = "validation" if on == "validation" or (on == "auto" and "validation" in roles.values()) else "test"
    return chosen, tuple(name for name, role in roles.items() if role == chosen)


def choose(scores: Mapping[int, Mapping[str, float]], benchmarks: Sequence[str], rule: Rule) -> int | None:
    """The step of a member's best checkpoint, None before the first.

    `scores` is {step: {benchmark: pass@1}}. Candidates are trained checkpoints (step 1 and later) measured on all of
    `benchmarks`. `mean`: the highest unweighted mean over them, the earliest of equals; `last`: the last candidate.
    """
    if not benchmarks:
        return None
    candidates = [step for step in sorted(scores) if step >= 1 and all(name in scores[step] for name in benchmarks)]
    if not candidates:
        return None
    if rule == "last":
        return candidates[-1]
    return max(candidates, key=lambda step: (round(mean_of(scores[step], benchmarks), _DIGITS), -step))


def mean_of(scores: Mapping[str, float], benchmarks: Sequence[str]) -> float:
    """The unweighted mean over benchmarks, the same whatever their order."""
    return math.fsum(scores[name] for name in benchmarks) / len(benchmarks)


def rule_of(config: Mapping[str, Any]) -> tuple[Rule, Role, tuple[str, ...]]:
    """(rule, role, names of the benchmarks that select) of a recorded configuration.

    A record from before there were rules is read by the default one.
    """
    settings = config.get("evaluation", {})
    roles: dict[str, Role] = {one["name"]: one.get("role", "test") for one in settings.get("benchmarks", ())}
    best = settings.get("best", {})
    rule: Rule = best.get("rule", "mean")
    return (rule, *selecting(roles, best.get("split", "auto")))


def best_checkpoints(
    config: Mapping[str, Any], members: Sequence[str], evaluations: Iterable[EvaluationSummary]
) -> list[BestCheckpoint]:
    """The best checkpoint of every member that has one, by the rule of a recorded configuration.

    `evaluations` are the run's, in the course of training.
    """
    rule, role, names = rule_of(config)
    scores: dict[str, dict[int, dict[str, float]]] = {}
    for one in evaluations:
        if one.benchmark in names:
            scores.setdefault(one.member, {}).setdefault(one.step, {})[one.benchmark] = one.mean
    found = []
    for member in members:
        own = scores.get(member, {})
        step = choose(own, names, rule)
        if step is not None:
            found.append(BestCheckpoint(member, step, mean_of(own[step], names), rule, role, names))
    return found
