"""From what a step did to what the store keeps of it. Every ratio is a numerator and a denominator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from graft.advantages import group_advantages
from population.exchange import Graft, log_likelihood
from population.prompts import Problem
from population.rollouts import Rollout
from population.trainer import UpdateReport
from server.store.records import (
    GraftedRecord,
    GroupRecord,
    MetricRecord,
    PromptRecord,
    ResponseRecord,
    StepRecord,
    TransferRecord,
)

if TYPE_CHECKING:
    from population.coordinator import StepReport


def step_record(
    report: StepReport,
    edge_rates: Mapping[tuple[str, str], float],
    bytes_per_token: float | None,
) -> StepRecord:
    """The whole step as one record. ``bytes_per_token`` is the frozen scale of the reference normaliser."""
    grafts = {graft.transfer: graft for own in report.grafts.values() for graft in own}
    beside = {(t.receiver, t.prompt): g.own_advantages for t, g in grafts.items() if g.own_advantages is not None}
    return StepRecord(
        step=report.step,
        prompts=tuple(prompt_record(problem) for problem in report.rollouts.problems),
        groups=tuple(
            _group(name, rollout, beside.get((name, prompt)))
            for name, own in report.rollouts.rollouts.items()
            for prompt, rollout in own.items()
        ),
        transfers=tuple(
            TransferRecord(
                t.receiver,
                t.source,
                t.prompt,
                t.value,
                t.tie,
                (t.receiver, t.prompt) in report.routing.held_out,
                _grafted(grafts.get(t)),
            )
            for t in report.routing.transfers
        ),
        metrics=tuple(_metrics(report, edge_rates, bytes_per_token)),
        events=tuple(report.events),
    )


def prompt_record(problem: Problem) -> PromptRecord:
    """A problem as the store keeps it."""
    return PromptRecord(problem.key, problem.prompt, problem.answer, problem.dataset, problem.subject, problem.level)


def _group(name: str, rollout: Rollout, beside: NDArray[np.floating] | None) -> GroupRecord:
    """``beside``: the group's advantages where a source's group was pooled with it."""
    group = rollout.group
    advantages = group_advantages(group.rewards) if beside is None else beside
    rows = zip(group.responses, group.rewards, advantages, rollout.verdicts, rollout.finishes, strict=True)
    responses = tuple(
        ResponseRecord(r.text, r.ids, r.logprobs, float(reward), float(a), int(verdict.code), finish, r.weight_version)
        for r, reward, a, verdict, finish in rows
    )
    return GroupRecord(name, group.prompt, responses)


def _grafted(graft: Graft | None) -> tuple[GraftedRecord, ...]:
    if graft is None:
        return ()
    return tuple(
        GraftedRecord(
            index=i,
            s=r.s,
            weight=r.weight,
            refusal=r.refusal,
            receiver_tokens=len(r.ids),
            receiver_logprob=log_likelihood(r.old_logprobs) if len(r.ids) else None,
            source_tokens=r.source_tokens,
            source_logprob=r.source_logprob,
        )
        for i, r in enumerate(graft.responses)
    )


def _metrics(
    report: StepReport, edge_rates: Mapping[tuple[str, str], float], bytes_per_token: float | None
) -> list[MetricRecord]:
    records = [MetricRecord(None, f"seconds_{phase}", seconds, 1) for phase, seconds in report.seconds.items()]
    records.append(MetricRecord(None, "step_seconds", sum(report.seconds.values()), 1))
    records.append(MetricRecord(None, "seconds_cpu", report.cpu_seconds, 1))
    if report.gpus:
        records.append(MetricRecord(None, "gpu_seconds", report.gpus * sum(report.seconds.values()), 1))
    if bytes_per_token is not None:
        records.append(MetricRecord(None, "bytes_per_token", bytes_per_token, 1))
    if report.scored_groups:
        chosen = sum(len(grafts) for grafts in report.grafts.values())
        records.append(MetricRecord(None, "grafted_per_scored", chosen, report.scored_groups))
    records += report.health
    for name, own in report.rollouts.rollouts.items():
        sampling_s = report.rollouts.sampling_s.get(name)
        records += _member_metrics(name, list(own.values()), sampling_s, report.updates.get(name))
    for name, spent in report.member_seconds.items():
        records += [
            MetricRecord(name, what if what.startswith("idle_") else f"seconds_{what}", seconds, 1)
            for what, seconds in spent.items()
        ]
    records += [
        MetricRecord(receiver, f"edge_rate/{source}", rate, 1)
        for (receiver, source), rate in sorted(edge_rates.items())
    ]
    return records


def _member_metrics(
    name: str, own: Sequence[Rollout], sampling_s: float | None, update: UpdateReport | None
) -> list[MetricRecord]:
    """A recorded member has no ``sampling_s`` and no ``update``, one that was dropped in its update has no ``update``:
    what only sampling and training tell is missing then, not 0.
    """
    responses = [response for rollout in own for response in rollout.group.responses]
    tokens = sum(len(response.ids) for response in responses)
    values: dict[str, tuple[float, float]] = {
        "response_tokens": (tokens, len(responses)),
        "truncated": (sum(not response.finished for response in responses), len(responses)),
        "entropy": (-sum(float(response.logprobs.sum()) for response in responses), tokens),
    }
    if sampling_s is None:
        values["rewards_changed"] = (sum(rollout.changed for rollout in own), len(responses))
    else:
        values["tokens_per_second_rollout"] = (tokens, sampling_s)
    if update is not None:
        values |= _update_metrics(update)
    return [MetricRecord(name, key, float(k), float(n)) for key, (k, n) in values.items() if n > 0]


def _update_metrics(update: UpdateReport) -> dict[str, tuple[float, float]]:
    batches = update.minibatches
    values: dict[str, tuple[float, float]] = {
        "loss": (sum(b.loss for b in batches), len(batches)),
        "grad_norm": (sum(b.grad_norm for b in batches), len(batches)),
        "learning_rate": (update.learning_rate, 1),
        "clip_own": (sum(b.own_clipped for b in batches), sum(b.own_tokens for b in batches)),
        "clip_peer": (sum(b.peer_clipped for b in batches), sum(b.peer_tokens for b in batches)),
        "peer_token_share": (sum(b.peer_tokens for b in batches), sum(b.denominator for b in batches)),
        "skipped_token_share": (sum(b.skipped_tokens for b in batches), sum(b.denominator for b in batches)),
        "engine_trainer_gap": (update.mismatch.gap, update.mismatch.tokens),
        "mismatch_kl": (update.mismatch.kl, update.mismatch.tokens),
        "mismatch_far": (update.mismatch.far, update.mismatch.tokens),
        "mismatch_capped": (update.mismatch.capped, update.mismatch.weighted),
    }
    for position, b in enumerate(batches):
        values[f"clip_own_mb{position}"] = (b.own_clipped, b.own_tokens)
        values[f"clip_peer_mb{position}"] = (b.peer_clipped, b.peer_tokens)
    return values
