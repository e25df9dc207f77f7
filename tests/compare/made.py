"""Run results made by hand, for tests of comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.store.comparison import Arm, Comparison
from server.store.results import Protocol, RunResult, Selection

Curve = Mapping[int, Sequence[float]]


def run(
    seed: int,
    curves: Mapping[str, Curve],
    *,
    members: str = "abc",
    cpu_per_step: float = 1.0,
    rollouts_per_step: float = 8.0,
    method: str = "grpo",
    repeats: Mapping[str, Curve] | None = None,
    selection: Selection | None = None,
) -> RunResult:
    """`curves` is {benchmark: {step: share right by member}}; costs grow by the same every step, per member."""
    steps = sorted({step for curve in curves.values() for step in curve})
    per_step = {
        "rollouts": rollouts_per_step,
        "rollout_tokens": 20 * rollouts_per_step,
        "cpu_seconds": cpu_per_step / len(members),
    }
    return RunResult(
        uid=f"{method}-{seed}",
        store="runs/graft.db",
        method=method,
        seed=seed,
        status="finished",
        last_step=steps[-1],
        total_steps=steps[-1],
        members=tuple(members),
        accuracy={name: table(curve, members) for name, curve in curves.items()},
        repeats={name: table(curve, members) for name, curve in (repeats or {}).items()},
        cost={kind: {s: dict.fromkeys(members, s * each) for s in steps} for kind, each in per_step.items()},
        protocol={name: Protocol(10, 40, 1.0) for name in curves},
        selection=selection or Selection("mean", "test", tuple(curves)),
    )


def table(curve: Curve, members: str) -> dict[int, dict[str, float]]:
    return {step: dict(zip(members, row, strict=True)) for step, row in curve.items()}


def arm(name: str, *runs: RunResult, description: str = "") -> Arm:
    return Arm(name, {one.seed: one for one in runs}, description)


def comparison(*arms: Arm, baseline: str = "grpo", cost: str = "cpu_seconds") -> Comparison:
    return Comparison(arms, (baseline,), cost)


# Three members and two seeds of a baseline; means at the end 0.7 and 0.7, before 0.2.
GRPO = arm(
    "grpo",
    run(0, {"heldout": {0: [0.2, 0.2, 0.2], 36: [0.4, 0.5, 0.6], 72: [0.6, 0.6, 0.9]}}),
    run(1, {"heldout": {0: [0.2, 0.2, 0.2], 36: [0.4, 0.5, 0.6], 72: [0.5, 0.7, 0.9]}}),
    description="independent GRPO",
)
GRAFT = arm(
    "graft",
    *(
        run(
            seed,
            {"heldout": {0: [0.2] * 3, 36: [0.7] * 3, 54: [0.8] * 3, 72: [0.9 + 0.05 * seed] * 3}},
            cpu_per_step=1.25,
            method="graft",
        )
        for seed in (0, 1)
    ),
)
