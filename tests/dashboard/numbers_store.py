"""A store with something of everything that the pages count: transfers, refusals, withheld groups, repeated visits,
responses nobody could grade, numbers that are none, two benchmarks with repeats, and a baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from server.store.records import EvaluationRecord, GroupRecord, MetricRecord, RunRecord, StepRecord
from server.store.writer import open_writer
from tests.dashboard.showcase import Showcase, write

STEPS, EVERY = 12, 4
BROKEN_STEP = 5
RUNS = ("counted-0", "counted-1", "counted-2", "baseline-0", "baseline-1", "baseline-2")
ACTIVITIES = ("seconds_sample", "seconds_update", "idle_turn", "idle_barrier")


@dataclass(frozen=True)
class Recorded(Showcase):
    """A showcase whose every step has each kind of row."""

    lift: int = 0

    def run(self) -> RunRecord:
        benchmarks = [{"name": "held-out", "role": "test"}, {"name": "choose", "role": "validation"}]
        config = {**super().run().config, "evaluation": {"benchmarks": benchmarks}, "lift": self.lift}
        return replace(super().run(), config=config)

    def _group(self, rng: np.random.Generator, step: int, slot: int, number: int) -> GroupRecord:
        group = super()._group(rng, step, slot, number)
        if rng.random() > 0.1 or group.successes:
            return group
        # Its grading timed out: neither right nor wrong, so the group has not failed.
        first, *others = group.responses
        return replace(group, responses=(replace(first, verdict=-2), *others))

    def _metrics(self, rng: np.random.Generator, step: int, groups: tuple[GroupRecord, ...]) -> Iterator[MetricRecord]:
        yield from super()._metrics(rng, step, groups)
        for slot, name in enumerate(self.members):
            own = [response for group in groups if group.member == name for response in group.responses]
            tokens = float(sum(response.token_ids.size for response in own))
            cut = float(sum(response.finish == "length" for response in own))
            broken = step == BROKEN_STEP and slot == 1
            yield MetricRecord(name, "response_tokens", tokens, float(len(own)))
            yield MetricRecord(name, "truncated", cut, float(len(own)))
            yield MetricRecord(name, "grad_norm", math.inf if broken else float(rng.gamma(2.0)), 1.0 + slot)
            yield MetricRecord(name, "learning_rate", 1e-6, 1.0)
            yield MetricRecord(name, "peer_token_share", float(rng.integers(0, 40)), tokens)
            for place in range(2):
                yield MetricRecord(name, f"clip_own_mb{place}", float(place * rng.integers(0, 9)), 4000.0 + slot)
                yield MetricRecord(name, f"clip_peer_mb{place}", float(rng.integers(0, 3)), 900.0 * place)
            yield MetricRecord(name, "engine_trainer_gap", float(rng.random()), 1234.0)
            for activity in ACTIVITIES:
                yield MetricRecord(name, activity, 1.0 + float(rng.random()), 1.0)
        yield MetricRecord(None, "seconds_cpu", 36.0, 1.0)

    def step(self, step: int) -> StepRecord:
        record = super().step(step)
        return replace(record, metrics=(*record.metrics, MetricRecord(None, "gpu_seconds", 60.0 + step, 1.0)))

    def evaluations(self, step: int) -> Iterator[EvaluationRecord]:
        shifted = super(Recorded, replace(self, seed=self.seed + 50 * self.lift)).evaluations(step)
        for record in shifted:
            few = {key: (4 - right,) for key, right, _ in record.problems if right < 4}
            yield replace(record, votes={key: few.get(key, ()) for key, _, _ in record.problems})
            yield replace(record, benchmark="choose", role="validation", problems=record.problems[:40], votes={})
            if step == STEPS:
                yield replace(record, repeat=1)
                again = tuple(
                    (key, max(0, right - place % 2), n) for place, (key, right, n) in enumerate(record.problems)
                )
                yield replace(record, repeat=2, problems=again)


def fill(folder: Path) -> str:
    """The URL of a store with three seeds of a run and of its baseline; `counted-0` is the newest."""
    url = f"sqlite:///{folder / 'numbers.db'}"
    for seed in (2, 1, 0):
        for kind, method, lift in (("baseline", "grpo", 3), ("counted", "graft", 0)):
            whole = seed == 0 and kind == "counted"
            made = Recorded(
                steps=STEPS, prompts=18 if whole else 3, n=4, tokens=8, seed=seed, uid=f"{kind}-{seed}", method=method,
                name=f"{kind}-{seed}", pool=22, sources=2, held_out=0.5, nan_loss_at=STEPS - 1, lift=lift,
            )  # fmt: skip
            with open_writer(url) as writer:
                write(writer, made, STEPS, EVERY)
                writer.finish("finished")
    return url
