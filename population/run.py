"""One run from configuration to finished record: preparation, start or resume, training, and what is left behind."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from population.checkpoints import CheckpointError, Checkpoints
from population.config import RunConfig, as_dict, differences, digest
from population.coordinator import Coordinator, Observer
from population.evaluation import Benchmark, load_benchmarks
from population.member import Member, MemberError, Progress, describe, load_member, locate_models, warm_start_demos
from population.plan import Plan, make_plan, total_steps
from population.prompts import Problem, PromptBatches, load_problems
from population.recording import prompt_record
from server.rewards import RewardService
from server.store.reader import RunInfo, open_reader
from server.store.records import EventRecord, MemberRecord, RunRecord
from server.store.writer import Writer, open_writer

HEARTBEAT_S = 5.0


class ResumeError(ValueError):
    """A run that cannot be resumed as asked; one line with the reason and the remedy."""


@dataclass(frozen=True)
class Prepared:
    """All that is read and checked before a run writes anything."""

    config: RunConfig
    problems: tuple[Problem, ...]
    skipped: tuple[Problem, ...]
    prompts: PromptBatches
    benchmarks: tuple[Benchmark, ...]
    steps: int


def prepare(config: RunConfig, rewards: RewardService) -> Prepared:
    """Read the data sets and derive the length. Writes nothing; errors name file, row and remedy."""
    problems, skipped = load_problems(config.data, rewards.unparsable)
    prompts = PromptBatches(problems, config.data.prompts_per_step, config.seed, config.data.source)
    benchmarks = load_benchmarks(config, rewards)
    return Prepared(
        config, tuple(problems), tuple(skipped), prompts, tuple(benchmarks), total_steps(config, len(problems))
    )


def plan_of(prepared: Prepared, folders: dict[str, Path]) -> Plan:
    """The derived numbers of a prepared run."""
    sizes = {b.settings.name: len(b.problems) for b in prepared.benchmarks}
    return make_plan(prepared.config, len(prepared.problems), sizes, folders)


@dataclass(frozen=True)
class Watch:
    """Whoever watches a run: called with warm-start progress, when training begins, and after every step."""

    warm_start: Progress
    begin: Callable[[str, int, int], None]
    step: Observer


def train(config: RunConfig, watch: Watch, *, resume: bool = False, uid: str | None = None) -> str:
    """Run the configuration to its end (or go on where it stopped) and return the run's uid.

    Nothing is written before data, models and store are found usable. A fault leaves the run marked failed with its
    message.
    """
    with ExitStack() as stack:
        rewards = stack.enter_context(RewardService(workers=config.rewards.workers, timeout_s=config.rewards.timeout_s))
        prepared = prepare(config, rewards)
        folders = locate_models(config)
        previous = find_run(config, prepared.steps, uid) if resume else None
        store = stack.enter_context(_closing(open_writer(config.store_url)))
        folders |= warm_start_demos(config, watch.warm_start)
        members = {}
        for member in config.members:
            members[member.name] = load_member(config, member, folders[member.name])
            stack.callback(members[member.name].close)
        run_uid = previous.uid if previous else uid or new_uid(config)
        checkpoints = Checkpoints(
            config.folder / run_uid / "checkpoints",
            digest(config),
            config.checkpoint.keep_last,
            config.deadlines.checkpoint_s,
        )
        coordinator = Coordinator(config, members, prepared.prompts, prepared.benchmarks, rewards, store, checkpoints)
        first_step = begin(coordinator, prepared, run_uid, previous)
        watch.begin(run_uid, first_step, prepared.steps)
        with recorded_outcome(store), heartbeat(store):
            coordinator.run(first_step, prepared.steps, watch.step)
            export_members(members, config.folder / run_uid / "members", config.deadlines.checkpoint_s)
    return run_uid


def begin(coordinator: Coordinator, prepared: Prepared, uid: str, previous: RunInfo | None) -> int:
    """Open the run in the store, or bring members and store back to the newest checkpoint; returns the first step to
    do.
    """
    config, store = prepared.config, coordinator.store
    if previous is None:
        record = RunRecord(
            uid=uid,
            name=config.name,
            method=config.method,
            config=as_dict(config),
            members=tuple(MemberRecord(**describe(member)) for member in coordinator.members.values()),
            total_steps=prepared.steps,
            seed=config.seed,
        )
        store.start_run(record)
        store.record_prompts(prompt_record(p) for b in prepared.benchmarks for p in b.problems)
        for problem in prepared.skipped:
            store.event(
                EventRecord(
                    "warning",
                    f"data: skipped {problem.prompt[:80]!r}: its answer {problem.answer!r} cannot be verified",
                    None,
                    0,
                )
            )
        return 1
    coordinator.checkpoints.sweep()
    usable = [step for step in coordinator.checkpoints.steps() if step <= (previous.last_step or 0)]
    step = usable[-1] if usable else 0
    if step:
        coordinator.checkpoints.load(
            step, coordinator.members, coordinator.router, coordinator.exchange, coordinator.success_graph
        )
    store.resume_run(uid, step, total_steps=prepared.steps)
    return step + 1


def find_run(config: RunConfig, steps: int, uid: str | None) -> RunInfo:
    """The run to resume: the named one, or the newest of this configuration's name. Raises :class:`ResumeError`."""
    with open_reader(config.store_url) as reader:
        runs = [run for run in reader.runs() if (run.uid == uid if uid else run.name == config.name)]
    if not runs:
        wanted = f"run {uid!r}" if uid else f"a run named {config.name!r}"
        raise ResumeError(
            f"{config.store_url}: holds no {wanted.removeprefix('a ')} to resume; start it without --resume"
        )
    run = runs[0]
    changed = differences(_course(dict(run.config)), _course(as_dict(config)))
    if changed:
        raise ResumeError(
            f"run {run.uid}: its configuration differs in {', '.join(changed[:5])}; "
            "resume with the values it was started with, or start a new run"
        )
    if run.last_step is not None and run.last_step >= steps and run.status == "finished":
        raise ResumeError(
            f"run {run.uid}: already finished its {run.last_step} steps; raise steps to go on, or start a new run"
        )
    return run


def _course(tree: dict[str, object]) -> dict[str, object]:
    """The part of a configuration that a resumed run may not change."""
    free = ("steps", "epochs", "folder", "store", "checkpoint", "deadlines", "name")
    return {key: value for key, value in tree.items() if key not in free}


def new_uid(config: RunConfig) -> str:
    """Name, start time and four random characters."""
    tail = hashlib.sha256(os.urandom(16)).hexdigest()[:4]
    return f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}-{tail}"


def export_members(members: dict[str, Member], folder: Path, deadline_s: float) -> None:
    """Write every member as a model folder that ``from_pretrained`` reads, tokenizer included."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, member in members.items():
        member.trainer.call("export", folder / name).result(timeout=deadline_s)
        member.tokenizer.hf.save_pretrained(folder / name)


@contextmanager
def recorded_outcome(store: Writer) -> Iterator[None]:
    """Whatever happens inside becomes the run's status and message."""
    try:
        yield
    except KeyboardInterrupt:
        store.finish("interrupted", "stopped by a signal; go on with --resume")
        raise
    except BaseException as error:
        store.finish("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")
        raise
    store.finish("finished")


@contextmanager
def heartbeat(store: Writer) -> Iterator[None]:
    """Let readers see that the run is alive, and keep its lease, while a step takes long."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_S):
            store.heartbeat()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _closing(store: Writer) -> Iterator[Writer]:
    try:
        yield store
    finally:
        store.close()


USER_ERRORS = (CheckpointError, MemberError, ResumeError)
