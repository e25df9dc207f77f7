"""A member of a recorded run as a source of groups (paper section 6.2): it gives what it said then and never receives.

Its model is not needed. Everything that could make the record unfit is found when it is opened, before any training.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from population.config import MemberConfig, RecordedSource, RolloutConfig, RunConfig
from population.errors import MemberError
from population.prompts import Problem, PromptBatches, problems_digest
from server.store.connections import without_password
from server.store.reader import GroupRecord, MemberRecord, Reader, RunInfo, open_reader

PREFIX = "recorded:"
"""What the model of a recorded member begins with in the record of the run it gives to."""


@dataclass(frozen=True)
class Visits:
    """Where a problem of this run lies in the record: its key there, and the steps that asked it, ascending."""

    key: int
    steps: tuple[int, ...]

    def at(self, step: int, match: str) -> int | None:
        """The recorded step to take at ``step`` of this run, None when there is none.

        ``step``: the same one. ``prompt``: the newest at or before it, else the oldest.
        """
        if match == "step":
            return step if step in self.steps else None
        return self.steps[max(bisect_right(self.steps, step) - 1, 0)]


@dataclass(frozen=True)
class RecordedMember:
    """A recorded member under its name in this run. ``visits`` {prompt key of this run: where it lies}."""

    name: str
    source: RecordedSource
    record: MemberRecord
    visits: Mapping[int, Visits]
    reader: Reader

    @property
    def described(self) -> MemberRecord:
        """The member as this run records it."""
        model = f"{PREFIX}{without_password(self.source.store)}#{self.source.run}/{self.source.member}"
        return replace(self.record, name=self.name, model=model)

    @property
    def fingerprint(self) -> str:
        """Of the tokenizer that the token ids were sampled with."""
        return self.record.tokenizer_sha

    def remark(self, problems: Sequence[Problem]) -> str:
        """What a reader of the run should know of the record."""
        found = sum(problem.key in self.visits for problem in problems)
        return (
            f"recorded as {self.source.member!r} of run {self.source.run} ({self.record.model}), matched by "
            f"{self.source.match}: {found:,} of {len(problems):,} problems have a record; it is verified anew and "
            "never receives"
        )

    def groups(self, step: int, prompts: Sequence[int]) -> dict[int, GroupRecord]:
        """{prompt: recorded group} for those of ``prompts`` that have one, in their order, under this run's keys."""
        wanted: dict[int, dict[int, int]] = {}
        for prompt in prompts:
            visits = self.visits.get(prompt)
            there = visits.at(step, self.source.match) if visits else None
            if visits and there is not None:
                wanted.setdefault(there, {})[visits.key] = prompt
        found = {}
        for there, keys in wanted.items():
            for group in self.reader.groups(self.source.run, there, self.source.member, keys):
                found[keys[group.prompt]] = replace(group, member=self.name, prompt=keys[group.prompt])
        return {prompt: found[prompt] for prompt in prompts if prompt in found}

    def close(self) -> None:
        """Close the store it is read from."""
        self.reader.close()


def open_recorded(
    name: str, source: RecordedSource, batches: PromptBatches, steps: int, rollouts: RolloutConfig
) -> RecordedMember:
    """Open a recorded run as the member ``name`` of a run of ``steps`` steps over ``batches``.

    StoreError when there is no such store or run, or a trajectory shard is missing; MemberError when the record does
    not fit: no such member, too few steps, other problems or another order of them (unless matched by prompt), another
    number of responses per prompt, another sampling temperature.
    """
    reader = open_reader(source.store)
    try:
        run = reader.run(source.run)
        record = next((member for member in run.members if member.name == source.member), None)
        if record is None:
            names = ", ".join(member.name for member in run.members)
            raise _unfit(name, run, f"has no member {source.member!r}; it has {names}")
        asked = reader.visits(run.uid, source.member)
        _check_sampling(name, run, asked, rollouts)
        visits = _visits(reader, asked, batches.problems)
        if source.match == "step":
            _check_order(name, run, visits, batches, steps)
            used = set(range(1, steps + 1))
        else:
            if not visits:
                raise _unfit(name, run, f"met none of the {len(batches.problems)} problems of this run; use its data")
            used = {step for found in visits.values() for step in found.steps}
        reader.check_shards(run.uid, source.member, used)
    except BaseException:
        reader.close()
        raise
    return RecordedMember(name, source, record, visits, reader)


def open_recordings(
    config: RunConfig, batches: PromptBatches, steps: int, fingerprint_of: Callable[[MemberConfig], str]
) -> dict[str, RecordedMember]:
    """{name: recorded member} of a configuration; all are closed again when one does not fit.

    ``fingerprint_of`` gives the tokenizer's fingerprint of a member that names a model.
    """
    with ExitStack() as stack:
        found = {}
        for member in config.members:
            if member.source is not None:
                opened = open_recorded(member.name, member.source, batches, steps, config.rollouts)
                stack.callback(opened.close)
                if member.model:
                    check_tokenizer(opened, member.model, fingerprint_of(member))
                found[member.name] = opened
        stack.pop_all()
    return found


def check_tokenizer(member: RecordedMember, model: str, fingerprint: str) -> None:
    """MemberError unless the record was sampled with the tokenizer of the model that the configuration names."""
    if member.fingerprint != fingerprint:
        raise MemberError(
            f"member {member.name!r}: run {member.source.run} recorded {member.source.member!r} "
            f"({member.record.model}) with another tokenizer than that of {model}; "
            "name the model that was recorded, or leave model out"
        )


def _check_sampling(name: str, run: RunInfo, asked: Mapping[int, Mapping[int, int]], rollouts: RolloutConfig) -> None:
    """n and the temperature of the record are those of this run: advantages and log-ratios depend on them."""
    counts = {n for prompts in asked.values() for n in prompts.values()}
    n = rollouts.rollouts_per_prompt
    if counts - {n}:
        raise _unfit(
            name, run, f"recorded {min(counts - {n})} responses per prompt, here they are {n}; "
            "set rollouts.rollouts_per_prompt to the recorded number"
        )  # fmt: skip
    recorded = run.config.get("rollouts", {}).get("temperature", rollouts.temperature)
    if recorded != rollouts.temperature:
        raise _unfit(
            name, run, f"was sampled at temperature {recorded:g}, here it is {rollouts.temperature:g}; "
            "set rollouts.temperature to the recorded one"
        )  # fmt: skip


def _visits(reader: Reader, asked: Mapping[int, Mapping[int, int]], problems: Sequence[Problem]) -> dict[int, Visits]:
    """{prompt of this run: where it lies}. A problem is the same when its text and answer are, whatever its file."""
    steps: dict[int, list[int]] = {}
    for step in sorted(asked):
        for key in asked[step]:
            steps.setdefault(key, []).append(step)
    ours = {(problem.prompt, problem.answer): problem.key for problem in problems}
    known = {problem.key for problem in problems}
    place = {key: key for key in steps if key in known}
    for key, prompt in reader.prompts([key for key in steps if key not in known]).items():
        here = ours.get((prompt.text, prompt.answer))
        if here is not None:
            place.setdefault(here, key)
    return {here: Visits(key, tuple(steps[key])) for here, key in place.items()}


def _check_order(name: str, run: RunInfo, visits: Mapping[int, Visits], batches: PromptBatches, steps: int) -> None:
    """Every step of this run asked the same prompts in the record."""
    last, remedy = run.last_step or 0, f"or set members.{name}.source.match: prompt"
    same_data = run.config.get("problems", {}).get("train") == problems_digest(batches.problems)
    if last < steps:
        raise _unfit(name, run, f"is recorded to step {last}, here {steps} are needed; lower steps, {remedy}")
    for step in range(1, steps + 1):
        batch = batches.batch(step)
        unknown = [problem for problem in batch if problem.key not in visits]
        if unknown and not same_data:
            raise _unfit(
                name, run, f"never asked {unknown[0].prompt[:40]!r} of step {step}: it had other problems; "
                f"use its data, {remedy}"
            )  # fmt: skip
        if unknown or any(step not in visits[problem.key].steps for problem in batch):
            raise _unfit(
                name, run, f"asked other prompts in step {step}: its seed was {run.seed} and it took "
                f"{run.config.get('data', {}).get('prompts_per_step', '?')} a step; use its seed and batch, {remedy}"
            )  # fmt: skip


def _unfit(name: str, run: RunInfo, what: str) -> MemberError:
    return MemberError(f"member {name!r}: run {run.uid} {what}")
