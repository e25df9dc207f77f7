"""One step as table rows. What is not a finite number becomes a missing value here, never 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from server.store import schema
from server.store.counts import (
    MEMBER_COUNTS,
    PAIR_COUNTS,
    PAIR_SUMS,
    Floats,
    GroupFacts,
    Ints,
    StepCounts,
    TransferFacts,
    masks,
    two_sum,
)
from server.store.records import GroupRecord, MetricRecord, StepRecord
from server.store.trajectories import FORMAT, Shard

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MetricSums:
    """Running sums of one metric of one member over its finite values; the numerator in two doubles."""

    numerator: float = 0.0
    numerator_low: float = 0.0
    denominator: float = 0.0
    finite: int = 0
    not_finite: int = 0

    def add(self, metric: MetricRecord) -> MetricSums:
        if not is_finite(metric):
            return MetricSums(self.numerator, self.numerator_low, self.denominator, self.finite, self.not_finite + 1)
        high, low = two_sum(self.numerator, self.numerator_low, float(metric.numerator))
        return MetricSums(high, low, self.denominator + float(metric.denominator), self.finite + 1, self.not_finite)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """All that is cumulative: member [N, names], pair and pair_sums [N, N, names], metrics by (name id, slot)."""

    member: Ints
    pair: Ints
    pair_sums: Floats
    metrics: Mapping[tuple[int, int], MetricSums] = field(default_factory=dict)

    @classmethod
    def zero(cls, members: int) -> Sums:
        return cls(
            np.zeros((members, len(MEMBER_COUNTS)), np.int64),
            np.zeros((members, members, len(PAIR_COUNTS)), np.int64),
            np.zeros((members, members, len(PAIR_SUMS)), np.float64),
        )

    def add(self, counts: StepCounts, metrics: Mapping[tuple[int, int], MetricRecord]) -> Sums:
        changed = {key: self.metrics.get(key, MetricSums()).add(metric) for key, metric in metrics.items()}
        return Sums(
            self.member + counts.member,
            self.pair + counts.pair,
            self.pair_sums + counts.pair_sums,
            {**self.metrics, **changed},
        )


def is_finite(metric: MetricRecord) -> bool:
    return math.isfinite(metric.numerator) and math.isfinite(metric.denominator)


def finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def group_rows(
    run: int, step: StepRecord, slots: Mapping[str, int], facts: Sequence[GroupFacts], places: Sequence[int]
) -> tuple[Rows, Rows]:
    """(groups, responses); `places[g]` is the record batch of group g in its member's shard."""
    groups: Rows = []
    responses: Rows = []
    for ordinal, (group, fact, place) in enumerate(zip(step.groups, facts, places, strict=True)):
        identity = schema.group_id(run, step.step, ordinal)
        groups.append(
            {
                "id": identity, "run": run, "step": step.step, "prompt": group.prompt, "member": slots[group.member],
                "n": fact.n, "successes": fact.successes, "errors": fact.errors, "tokens": fact.tokens,
                "truncated": fact.truncated, "shard_row": place,
            }
        )  # fmt: skip
        responses.extend(_response_rows(identity, group))
    return groups, responses


def _response_rows(identity: int, group: GroupRecord) -> Rows:
    return [
        {
            "group_id": identity, "index": index, "reward": finite(response.reward),
            "advantage": finite(response.advantage), "tokens": response.token_ids.size,
            "verdict": int(response.verdict), "finish": response.finish,
            "weight_version": int(response.weight_version),
        }
        for index, response in enumerate(group.responses)
    ]  # fmt: skip


def shard_rows(run: int, step: int, shards: Mapping[int, Shard]) -> Rows:
    return [
        {
            "run": run, "step": step, "member": member, "path": shard.path, "sha256": shard.sha256,
            "bytes": shard.bytes, "groups": shard.groups, "responses": shard.responses, "format": FORMAT,
        }
        for member, shard in shards.items()
    ]  # fmt: skip


def outcome_rows(run: int, step: int, counts: StepCounts) -> tuple[Rows, Rows]:
    """(outcomes, patterns) of a step's prompts."""
    solved = masks(counts.solved)
    outcomes = [
        {"run": run, "step": step, "prompt": prompt, "attempted": attempted, "all_fail": all_fail, "solved": mask}
        for prompt, attempted, all_fail, mask in zip(
            counts.prompts, masks(counts.attempted), masks(counts.all_fail), solved, strict=True
        )
    ]
    occurrences: dict[int, int] = {}
    for mask in solved:
        occurrences[mask] = occurrences.get(mask, 0) + 1
    return outcomes, [{"run": run, "step": step, "solved": mask, "prompts": n} for mask, n in occurrences.items()]


def transfer_rows(
    run: int, step: StepRecord, slots: Mapping[str, int], facts: Sequence[TransferFacts]
) -> tuple[Rows, Rows]:
    """(transfers, grafted responses)."""
    transfers: Rows = []
    grafted: Rows = []
    for transfer, gate in zip(step.transfers, facts, strict=True):
        key = {
            "run": run, "step": step.step, "receiver": slots[transfer.receiver], "prompt": transfer.prompt,
            "source": slots[transfer.source],
        }  # fmt: skip
        transfers.append(
            {
                **key, "value": finite(transfer.value), "tie": bool(transfer.tie), "held_out": bool(transfer.held_out),
                "responses": gate.responses, "admitted": gate.admitted, "refused_floor": gate.refused_floor,
                "refused_other": gate.refused_other, "n_s": gate.n_s, "sum_s": gate.sum_s, "sum_w": gate.sum_w,
            }
        )  # fmt: skip
        grafted.extend(
            {
                **key, "index": int(one.index), "s": finite(one.s), "weight": finite(one.weight),
                "refusal": one.refusal, "receiver_tokens": int(one.receiver_tokens),
                "receiver_logprob": finite(one.receiver_logprob), "source_tokens": int(one.source_tokens),
                "source_logprob": finite(one.source_logprob),
            }
            for one in transfer.responses
        )  # fmt: skip
    return transfers, grafted


def count_rows(run: int, step: int, sums: Sums) -> tuple[Rows, Rows]:
    """(member_counts, pair_counts) of the run up to and including the step."""
    member = [
        {"run": run, "step": step, "member": slot, **dict(zip(MEMBER_COUNTS, row, strict=True))}
        for slot, row in enumerate(sums.member.tolist())
    ]
    counts, totals = sums.pair.tolist(), sums.pair_sums.tolist()
    pair = [
        {
            "run": run, "step": step, "receiver": receiver, "source": source,
            **dict(zip(PAIR_COUNTS, counts[receiver][source], strict=True)),
            **dict(zip(PAIR_SUMS, totals[receiver][source], strict=True)),
        }
        for receiver in range(len(member))
        for source in range(len(member))
        if receiver != source
    ]  # fmt: skip
    return member, pair


def metric_rows(run: int, step: int, metrics: Mapping[tuple[int, int], MetricRecord], sums: Sums) -> Rows:
    """One row a metric; `metrics` and `sums.metrics` are keyed by (name id, member slot or WHOLE_RUN)."""
    rows: Rows = []
    for key, metric in metrics.items():
        total = sums.metrics[key]
        rows.append(
            {
                "run": run, "name": key[0], "member": key[1], "step": step, "numerator": finite(metric.numerator),
                "denominator": finite(metric.denominator), "finite": is_finite(metric),
                "sum_numerator": total.numerator, "sum_numerator_low": total.numerator_low,
                "sum_denominator": total.denominator, "count_finite": total.finite,
                "count_not_finite": total.not_finite,
            }
        )  # fmt: skip
    return rows
