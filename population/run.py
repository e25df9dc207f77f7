"""One run from configuration to finished record: preparation, start or resume, training, and what is left behind."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from population.best import BestCheckpoints
from population.calls import all_of
from population.calls import begin as begin_job
from population.checkpoints import Checkpoints
from population.config import DataConfig, RunConfig, as_recorded, course, differences, digest
from population.coordinator import Coordinator, Observer
from population.data.sources import published_problems
from population.devices import devices_of, placed, refuse_crowded
from population.encoding import encode_for_all
from population.errors import CheckpointError, DamagedCheckpoint, ResumeError
from population.evaluation import Benchmark, load_benchmarks
from population.grading import Rewards, require_reward, reward_service
from population.member import (
    Progress,
    describe,
    load_members,
    load_tokenizer,
    locate_models,
    named_fingerprint,
    on_gpu,
    positions_of,
    warm_start_demos,
)
from population.placement.site import decided, on_cluster, refuse_unplaced, verifiers
from population.plan import Plan, make_plan, total_steps
from population.prompts import Problem, PromptBatches, load_problems, problems_digest
from population.recorded import open_recordings
from population.recording import prompt_record
from population.trackers import followed
from server.store.connections import has_store, locate, without_password
from server.store.reader import RunInfo, open_reader
from server.store.records import EventRecord, LeaseError, MemberRecord, RunRecord, StoreError
from server.store.run_state import refuse_held
from server.store.writer import Writer, open_writer

HEARTBEAT_S = 5.0


@dataclass(frozen=True)
class Prepared:
    """All that is read and checked before a run writes anything."""

    config: RunConfig
    problems: tuple[Problem, ...]
    skipped: tuple[Problem, ...]
    prompts: PromptBatches
    benchmarks: tuple[Benchmark, ...]
    steps: int

    @property
    def recorded_config(self) -> dict[str, Any]:
        """The configuration as the store keeps it, with a hash of every set of problems: a file may change, a run may
        not.
        """
        hashes = {b.settings.name: problems_digest(b.problems) for b in self.benchmarks}
        return as_recorded(self.config) | {"problems": {"train": problems_digest(self.problems), "benchmarks": hashes}}


def prepare(config: RunConfig, rewards: Rewards) -> Prepared:
    """Read the data sets and derive the length. Writes nothing; errors name file, row and remedy."""
    require_reward(config.data, "data", rewards)
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


def forecast(config: RunConfig, rewards: Rewards, folders: dict[str, Path]) -> Plan:
    """The derived numbers of a run that may not be startable here yet.

    Data sets are read and checked; of a preset that is not on this machine the published count is taken.
    """
    sections = (config.data, *config.evaluation.benchmarks)
    published = {section.source: count for section in sections if (count := published_problems(section)) is not None}
    if not published:
        return plan_of(prepare(config, rewards), folders)

    def size(section: DataConfig) -> int:
        if section.source in published:
            return published[section.source]
        require_reward(section, section.source, rewards)
        return len(load_problems(section, rewards.unparsable)[0])

    sizes = {b.name: min(size(b) - b.skip, b.limit or 2**31) for b in config.evaluation.benchmarks}
    return make_plan(config, size(config.data), sizes, folders, list(published))


@dataclass(frozen=True)
class Watch:
    """Whoever watches a run: warm-start progress, a note, the beginning of training, and every step."""

    warm_start: Progress
    note: Callable[[str], None]
    begin: Callable[[str, int, int], None]
    step: Observer


def train(
    config: RunConfig, watch: Watch, *, resume: bool = False, uid: str | None = None, cluster: str | None = None
) -> str:
    """Run the configuration to its end (or go on where it stopped) and return the run's uid.

    Data, models, prompts and an existing store are checked before anything but the warm start of demo members is
    written. A fault leaves the run marked failed with its message. ``cluster``: `auto` or the address of a Ray cluster,
    in whose actors trainers, engines and verifiers then run; None: this process.
    """
    refuse_unplaced(config, clustered=cluster is not None)
    devices = devices_of(config, on_gpu=on_gpu(config), clustered=cluster is not None)
    refuse_crowded(config, devices)
    with ExitStack() as stack:
        rewards: Rewards = stack.enter_context(reward_service(config.rewards))
        prepared = prepare(config, rewards)
        folders = locate_models(config)
        recorded = open_recordings(config, prepared.prompts, prepared.steps, named_fingerprint)
        for recording in recorded.values():
            stack.callback(recording.close)
        if not resume:
            refuse_taken(config, uid)
        previous = find_run(prepared, uid) if resume else None
        config = config if cluster is None else decided(config)
        run_uid = previous.uid if previous else uid or new_uid(config)
        checkpoints = Checkpoints(
            config.folder / run_uid / "checkpoints",
            digest(prepared.recorded_config),
            config.checkpoint.keep_last,
            config.deadlines.checkpoint_s,
        )
        dropped = checkpoints.dropped(previous.last_step or 0) if previous else {}
        present = without_members(config, dropped)
        found = None if cluster is None else stack.enter_context(on_cluster(present, cluster))
        folders |= warm_start_demos(config, watch.warm_start)
        tokenizers = {name: load_tokenizer(name, folder) for name, folder in folders.items()}
        problems = [*prepared.problems, *(problem for b in prepared.benchmarks for problem in b.problems)]
        longest = {name: positions_of(folder) for name, folder in folders.items()}
        limits = config.rollouts.max_prompt_tokens, config.rollouts.max_response_tokens
        prompt_ids = encode_for_all(
            tokenizers, longest, problems, max_prompt_tokens=limits[0], max_response_tokens=limits[1]
        )
        if found is not None:
            rewards = stack.enter_context(verifiers(config, found))
        members = load_members(present, folders, tokenizers, config.folder / run_uid, found)
        for member in members.values():
            stack.callback(member.close)
        store = stack.enter_context(open_writer(config.store_url, trajectories=config.folder / "trajectories"))
        best = BestCheckpoints(config.folder / run_uid, config.evaluation, checkpoints, config.deadlines.checkpoint_s)
        coordinator = Coordinator(
            config,
            members,
            recorded,
            prepared.prompts,
            prompt_ids,
            prepared.benchmarks,
            rewards,
            store,
            checkpoints,
            best,
            devices if found is None else placed(members),
            dropped,
        )
        stack.callback(coordinator.failures.close)
        first_step = begin(coordinator, prepared, run_uid, previous)
        shown = followed(config.trackers, config.folder / "trackers", config.store_url, store, first_step - 1)
        with recorded_outcome(store), heartbeat(store), shown:
            remark(coordinator, prepared, first_step, watch.note)
            watch.begin(run_uid, first_step, prepared.steps)
            coordinator.run(first_step, prepared.steps, watch.step)
            coordinator.surviving(prepared.steps + 1, partial(export_members, coordinator, config.folder / run_uid))
            coordinator.evaluate_best(prepared.steps)
    return run_uid


def begin(coordinator: Coordinator, prepared: Prepared, uid: str, previous: RunInfo | None) -> int:
    """Open the run in the store, or bring members and store back to the newest checkpoint; returns the first step to
    do.
    """
    store = coordinator.store
    if previous is None:
        record = RunRecord(
            uid=uid,
            name=prepared.config.name,
            method=prepared.config.method,
            config=prepared.recorded_config,
            members=tuple(member_record(coordinator, member.name) for member in prepared.config.members),
            total_steps=prepared.steps,
            seed=prepared.config.seed,
        )
        store.start_run(record)
        return 1
    step = restore(coordinator, previous)
    with open_reader(prepared.config.store_url) as reader:
        coordinator.best.restore([e for e in reader.evaluations(uid) if e.step <= step], coordinator.members)
    store.resume_run(uid, step, total_steps=prepared.steps)
    return step + 1


def member_record(coordinator: Coordinator, name: str) -> MemberRecord:
    """A trained or recorded member as the store keeps it."""
    if name in coordinator.recorded:
        return coordinator.recorded[name].described
    return MemberRecord(**describe(coordinator.members[name]))


def restore(coordinator: Coordinator, previous: RunInfo) -> int:
    """Load the newest whole checkpoint that the record reaches, and return its step; 0 when the run never had one.

    Raises CheckpointError when checkpoints must have been there and none can be used: the record is not given up.
    """
    checkpoints, last = coordinator.checkpoints, previous.last_step or 0
    damaged: list[str] = []
    for step in reversed([step for step in checkpoints.steps() if step <= last]):
        try:
            checkpoints.load(
                step, coordinator.members, coordinator.router, coordinator.exchange, coordinator.success_graph
            )
        except DamagedCheckpoint as error:
            damaged.append(str(error))
        else:
            folder = checkpoints.place(step)
            coordinator.failures.saved(step, {name: folder / name for name in coordinator.members})
            return step
    every = int(previous.config["checkpoint"]["every_steps"])
    if damaged or last > every or previous.status == "finished":
        reason = damaged[0] if damaged else f"{checkpoints.folder} holds no checkpoint"
        raise CheckpointError(
            f"run {previous.uid} is recorded to step {last}, but {reason}; give the folder it was started with"
        )
    return 0


def remark(coordinator: Coordinator, prepared: Prepared, first_step: int, note: Callable[[str], None]) -> None:
    """Say and record what a reader of the run should know: slower paths of a model, problems left out."""
    store = coordinator.store
    for name, member in coordinator.members.items():
        for text in member.notes:
            note(f"member {name}: {text}")
            store.event(EventRecord("info", text, name, first_step - 1))
    if first_step > 1:
        return
    for name, recorded in coordinator.recorded.items():
        text = recorded.remark(prepared.problems)
        note(f"member {name}: {text}")
        store.event(EventRecord("info", text, name, 0))
    store.record_prompts(prompt_record(problem) for b in prepared.benchmarks for problem in b.problems)
    skipped = [("data", prepared.skipped), *((b.settings.name, b.skipped) for b in prepared.benchmarks)]
    for place, problems in skipped:
        for problem in problems:
            text = f"{place}: skipped {problem.prompt[:80]!r}: its answer {problem.answer!r} cannot be verified"
            store.event(EventRecord("warning", text, None, 0))


def refuse_taken(config: RunConfig, uid: str | None) -> None:
    """Refuse a URL that cannot hold a run, an existing store of another schema, and a uid that it already holds."""
    if not has_store(locate(config.store_url)):
        return
    with open_reader(config.store_url) as reader:
        if uid is not None and any(run.uid == uid for run in reader.runs()):
            raise ResumeError(
                f"{without_password(config.store_url)}: holds run {uid!r} already; add --resume or choose another"
            )


def find_run(prepared: Prepared, uid: str | None) -> RunInfo:
    """The run to resume: the named one, or the newest of this configuration's name. Raises :class:`ResumeError`."""
    config = prepared.config
    with open_reader(config.store_url) as reader:
        runs = [run for run in reader.runs() if (run.uid == uid if uid else run.name == config.name)]
    if not runs:
        wanted = f"run {uid!r}" if uid else f"run named {config.name!r}"
        place = without_password(config.store_url)
        raise ResumeError(f"{place}: holds no {wanted} to resume; start it without --resume")
    run = runs[0]
    refuse_held(config.store_url, run.uid)
    changed = differences(course(run.config), course(prepared.recorded_config))
    if changed:
        raise ResumeError(
            f"run {run.uid}: its configuration differs in {', '.join(changed[:5])}; "
            "resume with the values it was started with, or start a new run"
        )
    last = run.last_step or 0
    if last > prepared.steps:
        raise ResumeError(
            f"run {run.uid}: is recorded to step {last}; steps = {prepared.steps} would cut it, raise steps"
        )
    if last == prepared.steps and run.status == "finished":
        raise ResumeError(f"run {run.uid}: already finished its {last} steps; raise steps to go on, or start a new run")
    return run


def without_members(config: RunConfig, dropped: Collection[str]) -> RunConfig:
    """The configuration of what is left of a run after members were dropped."""
    return config.model_copy(update={"members": tuple(m for m in config.members if m.name not in dropped)})


def new_uid(config: RunConfig) -> str:
    """Name, start time and four random characters."""
    tail = hashlib.sha256(os.urandom(16)).hexdigest()[:4]
    return f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}-{tail}"


def export_members(coordinator: Coordinator, run_folder: Path) -> None:
    """Write every member as a model folder that ``from_pretrained`` reads, tokenizer included, into ``members`` of the
    run's folder; all of them or none.
    """
    folder, temporary = run_folder / "members", run_folder / "tmp_members"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    members, deadline_s = coordinator.members, coordinator.config.deadlines.checkpoint_s
    export = partial(coordinator.failures.ask, deadline_s=deadline_s, phase="export", step=None)
    all_of({name: begin_job(partial(export, m, "trainer", "export", temporary / name)) for name, m in members.items()})
    for name, member in members.items():
        member.tokenizer.hf.save_pretrained(temporary / name)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


@contextmanager
def recorded_outcome(store: Writer) -> Iterator[None]:
    """Whatever happens inside becomes the run's status and message."""
    try:
        yield
    except KeyboardInterrupt:
        store.finish("interrupted", "stopped by a signal; go on with --resume")
        raise
    except BaseException as error:
        # A store that cannot take the outcome either must not hide why the run ended.
        with suppress(StoreError):
            store.finish("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")
        raise
    store.finish("finished")


@contextmanager
def heartbeat(store: Writer) -> Iterator[None]:
    """Let readers see that the run is alive, and keep its lease, while a step takes long."""
    ended = threading.Event()

    def beat() -> None:
        # A lost lease is met, and said, by the next commit.
        with suppress(LeaseError):
            while not ended.wait(HEARTBEAT_S):
                store.heartbeat()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
