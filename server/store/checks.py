"""Refuse a record the store could not hold faithfully, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping

from server.store.records import EvaluationRecord, GroupRecord, RunRecord, StepRecord, StoreError, TransferRecord
from server.store.schema import MAX_MEMBERS, ORDINAL_BITS, STEP_BITS

_PROMPT_LIMIT = 1 << 53


def check_run(run: RunRecord) -> None:
    """StoreError unless the run's uid can name a folder and its members are distinct and not too many."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run.uid):
        raise StoreError(f"store: run uid {run.uid!r} must be 1 to 100 letters, digits, '.', '_' or '-'")
    if not 1 <= len(run.members) <= MAX_MEMBERS:
        raise StoreError(f"store: run {run.uid} has {len(run.members)} members; a store holds 1 to {MAX_MEMBERS}")
    _distinct((member.name for member in run.members), f"run {run.uid}: member")


def check_step(step: StepRecord, slots: Mapping[str, int]) -> None:
    """StoreError naming the first thing in a step that is out of range, unknown, doubled or contradictory."""
    where = f"step {step.step}"
    if not 1 <= step.step < 1 << STEP_BITS:
        raise StoreError(f"store: {where}: steps are 1 to {(1 << STEP_BITS) - 1}")
    if len(step.groups) >= 1 << ORDINAL_BITS:
        raise StoreError(f"store: {where}: {len(step.groups)} groups, more than {(1 << ORDINAL_BITS) - 1}")
    _distinct((prompt.key for prompt in step.prompts), f"{where}: prompt")
    _distinct(((group.member, group.prompt) for group in step.groups), f"{where}: group")
    _distinct(((one.receiver, one.prompt, one.source) for one in step.transfers), f"{where}: transfer")
    _check_controls(step.transfers, where)
    _distinct(((metric.member, metric.name) for metric in step.metrics), f"{where}: metric")
    known = {prompt.key for prompt in step.prompts}
    for group in step.groups:
        _check_group(group, known, slots, where)
    for transfer in step.transfers:
        _check_transfer(transfer, known, slots, where)
    for metric in step.metrics:
        if metric.member is not None:
            _known(metric.member, slots, f"{where}: metric {metric.name}")


def _check_group(group: GroupRecord, prompts: set[int], slots: Mapping[str, int], where: str) -> None:
    what = f"{where}: group of {group.member} on prompt {group.prompt}"
    _known(group.member, slots, what)
    if group.prompt not in prompts or not 0 <= group.prompt < _PROMPT_LIMIT:
        raise StoreError(f"store: {what}: the step's prompts lack this key, or it is no 53-bit number")
    if not group.responses:
        raise StoreError(f"store: {what}: no responses")
    for place, response in enumerate(group.responses):
        if response.token_ids.size != response.logprobs.size:
            raise StoreError(
                f"store: {what}: response {place} has {response.token_ids.size} token ids "
                f"and {response.logprobs.size} log-probabilities"
            )


def _check_transfer(transfer: TransferRecord, prompts: set[int], slots: Mapping[str, int], where: str) -> None:
    what = f"{where}: transfer {transfer.source} -> {transfer.receiver} on prompt {transfer.prompt}"
    _known(transfer.receiver, slots, what)
    _known(transfer.source, slots, what)
    if transfer.receiver == transfer.source:
        raise StoreError(f"store: {what}: a member receives from itself")
    if transfer.prompt not in prompts:
        raise StoreError(f"store: {what}: the step's prompts lack this key")
    if transfer.held_out and transfer.responses:
        raise StoreError(f"store: {what}: held out, yet it has {len(transfer.responses)} responses")
    _distinct((response.index for response in transfer.responses), f"{what}: response")


def _check_controls(transfers: Iterable[TransferRecord], where: str) -> None:
    """StoreError where one source's group is withheld from a place that another's is grafted into: no control."""
    withheld: dict[tuple[str, int], bool] = {}
    for one in transfers:
        if withheld.setdefault((one.receiver, one.prompt), one.held_out) != one.held_out:
            raise StoreError(
                f"store: {where}: {one.receiver} on prompt {one.prompt} is held out for one source and not for another"
            )


def check_evaluation(record: EvaluationRecord, slots: Mapping[str, int]) -> None:
    """StoreError unless the member is known and every problem has 0 <= correct <= responses, responses > 0."""
    what = f"evaluation of {record.member} on {record.benchmark} at step {record.step}"
    _known(record.member, slots, what)
    _distinct((key for key, _, _ in record.problems), f"{what}: problem")
    for key, correct, responses in record.problems:
        if not (0 <= correct <= responses and responses > 0 and 0 <= key < _PROMPT_LIMIT):
            raise StoreError(f"store: {what}: problem {key} has {correct} right of {responses} responses")
        votes = record.votes.get(key, ())
        if any(size < 1 for size in votes) or correct + sum(votes) > responses:
            raise StoreError(
                f"store: {what}: problem {key} has {correct} right and {sum(votes)} wrong answers of "
                f"{responses} responses"
            )
    if record.repeat < 0:
        raise StoreError(f"store: {what}: repeat {record.repeat} is less than 0")


def _known(member: str, slots: Mapping[str, int], what: str) -> None:
    if member not in slots:
        raise StoreError(f"store: {what}: no member {member!r} in this run, which has {', '.join(slots)}")


def _distinct(keys: Iterable[Hashable], what: str) -> None:
    seen: set[Hashable] = set()
    for key in keys:
        if key in seen:
            raise StoreError(f"store: {what} {key} is there twice")
        seen.add(key)
