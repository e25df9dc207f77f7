"""What is recorded of a step, and what is warned of, are the step's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from graft.advantages import group_advantages
from graft.groups import Group, Response
from graft.selection import Transfer
from population import health, recording
from population.coordinator import StepReport
from population.exchange import Graft, GraftedResponse
from population.progress import count
from population.prompts import Problem
from population.rollouts import Rollout, StepRollouts
from population.router import Routing
from population.trainer import UpdateReport
from population.updates import MinibatchReport, Mismatch
from server.rewards import Verdict, VerdictCode
from server.store.records import MetricRecord

PROBLEMS = [Problem(1, "one?", "1", "d", "add", 1), Problem(2, "two?", "2", "d", None, None)]
RIGHT, WRONG, LATE = (VerdictCode.RIGHT, VerdictCode.WRONG, VerdictCode.TIMEOUT)


def rollout(member: str, prompt: int, codes: Sequence[VerdictCode], tokens: int = 3, finish: str = "stop") -> Rollout:
    response = Response(
        np.arange(tokens, dtype=np.int32), "text", np.full(tokens, -0.5, np.float32), finish == "stop", 4
    )
    verdicts = tuple(Verdict(code, "x") for code in codes)
    rewards = np.array([verdict.reward for verdict in verdicts])
    graded = np.array([verdict.graded for verdict in verdicts])
    return Rollout(Group(member, prompt, (response,) * len(codes), rewards, graded), verdicts, (finish,) * len(codes))


def minibatch(**values: float) -> MinibatchReport:
    zero = dict.fromkeys(MinibatchReport.__dataclass_fields__, 0)
    return MinibatchReport(**{**zero, **values})  # type: ignore[arg-type]


def report() -> StepReport:
    rollouts = {
        "a": {1: rollout("a", 1, [WRONG, WRONG]), 2: rollout("a", 2, [RIGHT, WRONG], tokens=5, finish="length")},
        "b": {1: rollout("b", 1, [RIGHT, WRONG]), 2: rollout("b", 2, [LATE, WRONG])},
    }
    transfer = Transfer("a", 1, "b", 0.5)
    held = Transfer("b", 2, "a", 0.25)
    own = np.full(4, -0.25, np.float32)
    responses = (
        GraftedResponse(np.arange(4, dtype=np.int32), own, 0.9, 0.9, 0.7, None, -1.5, 3),
        GraftedResponse(np.arange(4, dtype=np.int32), own, 0.6, 0.0, -0.7, "floor", -1.5, 3),
    )
    updates = {
        "a": UpdateReport(
            1e-3,
            (
                minibatch(loss=0.5, grad_norm=2.0, denominator=10, skipped_tokens=4, own_clipped=1, own_tokens=6),
                minibatch(loss=-0.1, grad_norm=1.0, denominator=4, peer_clipped=2, peer_tokens=4),
            ),
            Mismatch(tokens=6, gap=0.25),
        ),
        "b": UpdateReport(1e-3, (minibatch(loss=0.2, grad_norm=3.0, denominator=12, own_tokens=12),), Mismatch()),
    }
    routing = Routing((transfer, held), frozenset({("b", 2)}))
    grafts = {"a": [Graft(transfer, responses)], "b": []}
    seconds = {"sample": 2.0, "update": 1.0}
    measured = [MetricRecord(None, "solved_by_all", 1.0, 2.0)]
    return StepReport(
        7,
        StepRollouts(tuple(PROBLEMS), rollouts, {}, {}, {"a": 2.0, "b": 1.0}),
        routing,
        grafts,
        updates,
        seconds,
        2.5,
        health=measured,
    )


def metrics(step: StepReport) -> dict[tuple[str | None, str], tuple[float, float]]:
    record = recording.step_record(step, {("a", "b"): 0.8}, 1.25)
    return {(m.member, m.name): (m.numerator, m.denominator) for m in record.metrics}


@pytest.mark.parametrize(
    ("member", "name", "ratio"),
    [
        ("a", "response_tokens", (16, 4)),
        ("a", "truncated", (2, 4)),
        ("a", "entropy", (8.0, 16)),
        ("a", "tokens_per_second_rollout", (16, 2.0)),
        ("a", "loss", (0.4, 2)),
        ("a", "grad_norm", (3.0, 2)),
        ("a", "clip_own", (1, 6)),
        ("a", "clip_peer", (2, 4)),
        ("a", "clip_own_mb0", (1, 6)),
        ("a", "clip_peer_mb1", (2, 4)),
        ("a", "peer_token_share", (4, 14)),
        ("a", "skipped_token_share", (4, 14)),
        ("a", "engine_trainer_gap", (0.25, 6)),
        ("a", "edge_rate/b", (0.8, 1)),
        (None, "solved_by_all", (1, 2)),
        (None, "step_seconds", (3.0, 1)),
        (None, "seconds_cpu", (2.5, 1)),
        (None, "bytes_per_token", (1.25, 1)),
    ],
)
def test_every_metric_is_a_numerator_and_a_denominator(
    member: str | None, name: str, ratio: tuple[float, float]
) -> None:
    assert metrics(report())[member, name] == pytest.approx(ratio)


def test_what_has_no_denominator_is_missing_not_zero() -> None:
    found = metrics(report())
    for name in ("clip_peer", "engine_trainer_gap", "clip_peer_mb0"):
        assert ("b", name) not in found


def test_gpu_seconds_are_wall_seconds_times_gpus_and_missing_without_one() -> None:
    assert (None, "gpu_seconds") not in metrics(report())
    assert metrics(replace(report(), gpus=2))[None, "gpu_seconds"] == (6.0, 1)


def test_what_members_did_is_recorded_in_seconds_by_member_and_cause() -> None:
    found = metrics(replace(report(), member_seconds={"a": {"update": 2.5, "idle_turn": 0.0}}))
    assert found["a", "seconds_update"] == (2.5, 1)
    assert found["a", "idle_turn"] == (0.0, 1)
    assert ("b", "idle_turn") not in found


def test_a_member_that_was_dropped_in_its_update_has_rollouts_and_no_update() -> None:
    whole = report()
    found = metrics(replace(whole, updates={"b": whole.updates["b"]}))
    assert found["a", "tokens_per_second_rollout"] == (16, 2.0)
    assert not {("a", "loss"), ("a", "learning_rate"), ("a", "rewards_changed")} & set(found)


def test_groups_and_transfers_are_recorded_whole() -> None:
    record = recording.step_record(report(), {}, None)
    assert [(p.key, p.subject, p.level) for p in record.prompts] == [(1, "add", 1), (2, None, None)]
    group = next(g for g in record.groups if (g.member, g.prompt) == ("a", 2))
    assert [r.advantage for r in group.responses] == group_advantages([1, 0]).tolist()
    assert [(r.reward, r.verdict, r.finish, r.weight_version) for r in group.responses] == [
        (1.0, int(RIGHT), "length", 4),
        (0.0, int(WRONG), "length", 4),
    ]
    grafted, held = record.transfers
    assert (grafted.receiver, grafted.source, grafted.held_out) == ("a", "b", False)
    assert [(r.s, r.weight, r.refusal, r.receiver_tokens, r.source_tokens) for r in grafted.responses] == [
        (0.9, 0.9, None, 4, 3),
        (0.6, 0.0, "floor", 4, 3),
    ]
    assert grafted.responses[0].receiver_logprob == pytest.approx(-1.0)
    assert (held.held_out, held.responses) == (True, ())


def test_the_display_counts_the_same() -> None:
    counts = count(report())["a"]
    assert (counts.right, counts.rollouts, counts.all_fail, counts.groups) == (1, 4, 1, 2)
    assert (counts.rescued, counts.admitted, counts.transferred, counts.tokens) == (1, 1, 2, 16)


def test_truncation_constant_rewards_and_verifier_faults_are_warned_of_by_member() -> None:
    groups = {
        "long": {1: rollout("long", 1, [RIGHT, WRONG], finish="length")},
        "flat": {1: rollout("flat", 1, [WRONG, WRONG])},
        "late": {1: rollout("late", 1, [LATE, RIGHT])},
        "fine": {1: rollout("fine", 1, [RIGHT, WRONG])},
    }
    events = health.warnings(3, StepRollouts((), groups, {}, {}), 2)
    assert [(e.member, e.message.partition(":")[0], e.level, e.step) for e in events] == [
        ("long", "truncated", "warning", 3),
        ("flat", "constant reward", "warning", 3),
        ("late", "ungraded", "warning", 3),
    ]
