"""The counts of one step, by member and by pair, from its record. Pure numpy.

Every count is additive over steps: the writer keeps running sums of them, and any window is a difference of two rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.store.records import REFUSED_BY_FLOOR, TRUNCATED, GroupRecord, StepRecord, TransferRecord

MEMBER_COUNTS = (
    "groups", "all_fail", "mixed", "all_solved", "errors", "rollouts", "successes", "response_tokens", "truncated",
    "received", "held_out", "rescuable", "any_peer",
)  # fmt: skip
PAIR_COUNTS = (
    "both_attempted_fail", "solved", "both_graded", "failed_beside", "failed_together", "routed", "grafted", "held_out",
    "responses", "admitted", "refused_floor", "refused_other", "n_s",
)  # fmt: skip
PAIR_SUMS = ("sum_s", "sum_w")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What the index keeps of one group."""

    n: int
    successes: int
    errors: int
    tokens: int
    truncated: int


@dataclass(frozen=True, slots=True)
class TransferFacts:
    """What the gate did with one transfer. Sums are over scored (s) and admitted (w) responses."""

    responses: int
    admitted: int
    refused_floor: int
    refused_other: int
    n_s: int
    sum_s: float
    sum_w: float


# (member's slot, prompt, what the group holds), (receiver, source, prompt, held out, what the gate did).
GroupPlace = tuple[int, int, GroupFacts]
TransferPlace = tuple[int, int, int, bool, TransferFacts]


@dataclass(frozen=True, slots=True, eq=False)
class StepCounts:
    """One step: flags [N, P] over members and the step's prompts, `member` [N, names], `pair` and
    `pair_sums` [N, N, names]."""

    prompts: list[int]
    attempted: Bools
    all_fail: Bools
    solved: Bools
    member: Ints
    pair: Ints
    pair_sums: Floats


def group_facts(group: GroupRecord) -> GroupFacts:
    """Count a group in one pass over its responses."""
    successes = errors = tokens = truncated = 0
    for response in group.responses:
        successes += response.reward > 0
        errors += response.ungraded
        tokens += response.token_ids.size
        truncated += response.finish == TRUNCATED
    return GroupFacts(len(group.responses), successes, errors, tokens, truncated)


def transfer_facts(transfer: TransferRecord) -> TransferFacts:
    """Count a transfer's responses; an s or weight that is not finite counts as not scored."""
    admitted = [response for response in transfer.responses if response.refusal is None]
    by_floor = sum(response.refusal == REFUSED_BY_FLOOR for response in transfer.responses)
    scored = [response.s for response in transfer.responses if response.s is not None and np.isfinite(response.s)]
    return TransferFacts(
        responses=len(transfer.responses),
        admitted=len(admitted),
        refused_floor=by_floor,
        refused_other=len(transfer.responses) - len(admitted) - by_floor,
        n_s=len(scored),
        sum_s=float(sum(scored)),
        sum_w=float(sum(response.weight for response in admitted if np.isfinite(response.weight))),
    )


def count_step(
    step: StepRecord,
    slots: Mapping[str, int],
    groups: list[GroupFacts],
    transfers: list[TransferFacts],
) -> StepCounts:
    """All counts of a step. `groups` and `transfers` are the facts of `step.groups` and `step.transfers`, in order."""
    return count_places(
        len(slots),
        [(slots[group.member], group.prompt, facts) for group, facts in zip(step.groups, groups, strict=True)],
        [
            (slots[one.receiver], slots[one.source], one.prompt, one.held_out, facts)
            for one, facts in zip(step.transfers, transfers, strict=True)
        ],
    )


def count_places(members: int, groups: Sequence[GroupPlace], transfers: Sequence[TransferPlace]) -> StepCounts:
    """All counts of a step of so many members, from where its groups and transfers are and what they hold."""
    column = {key: place for place, key in enumerate(dict.fromkeys(prompt for _, prompt, _ in groups))}
    shape = (members, len(column))
    n, k, errors = (np.zeros(shape, np.int64) for _ in range(3))
    member = np.zeros((members, len(MEMBER_COUNTS)), np.int64)
    name = {label: place for place, label in enumerate(MEMBER_COUNTS)}
    for slot, prompt, facts in groups:
        cell = slot, column[prompt]
        n[cell], k[cell], errors[cell] = facts.n, facts.successes, facts.errors
        member[cell[0], name["response_tokens"]] += facts.tokens
        member[cell[0], name["truncated"]] += facts.truncated

    attempted, solved, graded = n > 0, k > 0, errors == 0
    all_fail, mixed = attempted & ~solved & graded, solved & (k < n) & graded
    for label, values in (
        ("groups", attempted), ("all_fail", all_fail), ("mixed", mixed), ("all_solved", attempted & (k == n)),
        ("errors", errors), ("rollouts", n), ("successes", k),
        ("rescuable", all_fail & mixed.any(axis=0)), ("any_peer", all_fail & solved.any(axis=0)),
    ):  # fmt: skip
        member[:, name[label]] = values.sum(axis=1)

    pair, pair_sums = _count_pairs(members, transfers)
    seen = attempted & graded
    for label, own, peers in (
        ("both_attempted_fail", all_fail, attempted), ("solved", all_fail, solved),
        ("both_graded", seen, seen), ("failed_beside", all_fail, seen), ("failed_together", all_fail, all_fail),
    ):  # fmt: skip
        pair[..., PAIR_COUNTS.index(label)] = _off_diagonal(own, peers)
    # A place that several sources give to is one place to its receiver, and one transfer to each pair. A group that was
    # not failed whole (methods that pool rollouts) cannot be rescued.
    for label, places in (
        ("held_out", {(receiver, prompt) for receiver, _, prompt, held_out, _ in transfers if held_out}),
        ("received", {(receiver, prompt) for receiver, _, prompt, _, gate in transfers if gate.admitted}),
    ):
        for receiver, prompt in places:
            member[receiver, name[label]] += all_fail[receiver, column[prompt]]
    return StepCounts(list(column), attempted, all_fail, solved, member, pair, pair_sums)


def _off_diagonal(receivers: Bools, sources: Bools) -> Ints:
    """[N, N] prompts on which both hold, row i receives and column j is the source; 0 on the diagonal."""
    product = receivers.astype(np.int64) @ sources.astype(np.int64).T
    np.fill_diagonal(product, 0)
    return product


def _count_pairs(size: int, transfers: Sequence[TransferPlace]) -> tuple[Ints, Floats]:
    pair = np.zeros((size, size, len(PAIR_COUNTS)), np.int64)
    sums = np.zeros((size, size, len(PAIR_SUMS)), np.float64)
    place = PAIR_COUNTS.index("routed")
    for receiver, source, _, held_out, gate in transfers:
        cell = receiver, source
        pair[cell][place:] += (
            not held_out, gate.admitted > 0, held_out, gate.responses, gate.admitted,
            gate.refused_floor, gate.refused_other, gate.n_s,
        )  # fmt: skip
        sums[cell] += gate.sum_s, gate.sum_w
    return pair, sums


def masks(flags: Bools) -> list[int]:
    """One bit mask per column of [N, P] flags: bit i is member i."""
    weights = np.int64(1) << np.arange(flags.shape[0], dtype=np.int64)
    return [int(mask) for mask in weights @ flags.astype(np.int64)]


def two_sum(high: float, low: float, value: float) -> tuple[float, float]:
    """Add `value` to a sum kept as high + low without losing what a double rounds away (Knuth's two-sum)."""
    total = high + value
    shifted = total - high
    error = (high - (total - shifted)) + (value - shifted)
    return total, low + error
