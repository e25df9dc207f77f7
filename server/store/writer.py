"""Write the record of a run: every step wholly or not at all, one process a run.

A step's shards are written and synced first, then one transaction inserts every row. A kill between the two leaves
files no row names, which the next resume sweeps. Committing a step again is free when its content is the same, and
refused when it is not.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

from sqlalchemy import Connection, Engine, func, insert, select, text, update

from server.store import schema
from server.store.checks import check_evaluation, check_run, check_step
from server.store.commit import (
    already_committed,
    event_row,
    insert_prompts,
    insert_step,
    metric_ids,
    storable,
    write_shards,
)
from server.store.connections import Location, check_version, locate, readable_errors, schema_version
from server.store.digest import content_digest
from server.store.evaluations import insert_evaluation
from server.store.lease import LEASE_SECONDS, Holder
from server.store.records import (
    EvaluationRecord,
    EventRecord,
    LeaseError,
    PromptRecord,
    RunRecord,
    StepConflict,
    StepRecord,
    StoreError,
    UnreachableError,
)
from server.store.rows import Sums
from server.store.run_state import (
    HeldRun,
    check_lease,
    clock,
    load_members,
    load_sums,
    refuse_living_writer,
    touch,
    truncate,
)
from server.store.trajectories import Shard, remove_shards, require_folder, sweep

__all__ = ["FinalStatus", "LeaseError", "StepConflict", "StoreError", "Writer", "open_writer"]

FinalStatus = Literal["finished", "failed", "interrupted"]
# How long a run waits for a database server that does not answer, before it ends.
PATIENCE_S = 90.0
Result = TypeVar("Result")


def open_writer(
    url: str, *, create: bool = True, lease_seconds: float = LEASE_SECONDS, trajectories: Path | None = None
) -> Writer:
    """Open a store for writing; made when absent, if `create`.

    `url` is as in `locate`. `trajectories` takes the shards of new runs where the database is no file with a folder
    beside it and the URL names none. A store of another schema version is refused with a SchemaError that names the
    remedy; it is never changed here. Any other fault of disk or database is a StoreError.
    """
    location = locate(url)
    with readable_errors("opening", location):
        engine = location.writer_engine(create=create)
        with engine.begin() as connection:
            location.take_turns(connection)
            version = schema_version(connection)
            if version is None and create:
                _create_schema(connection)
            else:
                check_version(version, location)
    return Writer(engine, location, lease_seconds, trajectories)


def _create_schema(connection: Connection) -> None:
    schema.metadata.create_all(connection)
    connection.execute(text(f"CREATE TABLE {schema.VERSION_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    connection.execute(text(f"INSERT INTO {schema.VERSION_TABLE} VALUES (:version)"), {"version": schema.VERSIONS[-1]})


class Writer:
    """Writes one run. Safe to use from several threads (a heartbeat beside the loop); one call runs at a time."""

    def __init__(self, engine: Engine, location: Location, lease_seconds: float, trajectories: Path | None) -> None:
        self._engine = engine
        self._location = location
        self._lease_seconds = lease_seconds
        self._trajectories = trajectories
        self._lock = threading.Lock()
        self._held: HeldRun | None = None
        self._metric_ids: dict[str, int] = {}
        self._known_prompts: set[int] = set()

    @property
    def uid(self) -> str:
        """The run this writer holds."""
        return self._run().uid

    @property
    def last_step(self) -> int | None:
        """The last committed step of the run, None before the first."""
        return self._run().last_step or None

    def start_run(self, run: RunRecord) -> None:
        """Begin a new run and take its lease. StoreError when its uid is taken."""
        self._refuse_while_holding()
        check_run(run)
        folder = self._location.new_folder(self._trajectories)
        with self._transaction(f"starting run {run.uid}") as connection:
            self._location.take_turns(connection)
            runs, now = schema.runs, clock(connection)
            if connection.scalar(select(runs.c.id).where(runs.c.uid == run.uid)) is not None:
                raise StoreError(
                    f"store: {self._location.shown} already has run {run.uid}; resume it or choose another"
                )
            identity = (connection.scalar(select(func.max(runs.c.id))) or 0) + 1
            if identity >= 1 << schema.RUN_BITS:
                raise StoreError(
                    f"store: {self._location.shown} holds {identity - 1} runs, no more fit; start a new store"
                )
            connection.execute(
                insert(runs).values(
                    id=identity, uid=run.uid, name=run.name, method=run.method, status="running", message="",
                    created=now, heartbeat=now, total_steps=run.total_steps, seed=run.seed,
                    config=json.dumps(dict(run.config)), revision=1, writer=str(Holder.this_process()), lease_epoch=1,
                    lease_until=now + self._lease_seconds, trajectories=folder,
                )
            )  # fmt: skip
            for slot, member in enumerate(run.members):
                connection.execute(
                    insert(schema.members).values(
                        run=identity, slot=slot, name=member.name, model=member.model, family=member.family,
                        tokenizer_sha=member.tokenizer_sha, parameters=member.parameters,
                    )
                )  # fmt: skip
        root = self._location.folder(folder)
        self._held = HeldRun(identity, run.uid, tuple(run.members), 1, 0, Sums.zero(len(run.members)), root)

    def resume_run(self, uid: str, step: int, *, total_steps: int | None = None) -> None:
        """Take a run's lease and make its record end at `step` (0: before the first): everything later is removed.

        `total_steps` replaces the number planned at the start. LeaseError while another process holds the run; a holder
        that certainly died is succeeded at once. StoreError when the run is unknown or ends before `step`.
        """
        self._refuse_while_holding()
        runs = schema.runs
        with self._transaction(f"resuming run {uid}") as connection:
            run = connection.execute(select(runs).where(runs.c.uid == uid).with_for_update()).one_or_none()
            if run is None:
                raise StoreError(f"store: {self._location.shown} has no run {uid}; check the name")
            now = clock(connection)
            refuse_living_writer(uid, run.writer, run.lease_until, now)
            root = self._location.folder(run.trajectories)
            if step:
                require_folder(root, uid)
            last = run.last_step or 0
            if not 0 <= step <= last:
                raise StoreError(
                    f"store: run {uid} is recorded up to step {last} and cannot go on after step {step}; "
                    f"resume from a checkpoint of step {last} or before"
                )
            truncate(connection, run.id, step)
            connection.execute(
                update(runs).where(runs.c.id == run.id).values(
                    status="running", message="", heartbeat=now, revision=run.revision + 1,
                    first_step=run.first_step if step else None, last_step=step or None,
                    writer=str(Holder.this_process()), lease_epoch=run.lease_epoch + 1,
                    lease_until=now + self._lease_seconds,
                    total_steps=run.total_steps if total_steps is None else total_steps,
                    trajectories=run.trajectories and str(root),
                )
            )  # fmt: skip
            members = load_members(connection, run.id)
            sums = load_sums(connection, run.id, step, len(members))
            shards = schema.shards
            named = set(connection.scalars(select(shards.c.path).where(shards.c.run == run.id)))
        self._held = HeldRun(run.id, uid, members, run.lease_epoch + 1, step, sums, root)
        with readable_errors(f"sweeping the shards of run {uid}", self._location):
            sweep(root, uid, named)

    def commit(self, step: StepRecord) -> bool:
        """Record a step; True when written, False when it was already there with the same content.

        StepConflict when it is there with other content, LeaseError when the run was taken over. After any StoreError
        nothing of the step is stored, and it can be committed again. A database server that is away is waited for.
        """
        held = self._run()
        check_step(step, held.slots)
        digest = content_digest(step)
        return self._patiently(lambda: self._commit(held, step, digest))

    def _commit(self, held: HeldRun, step: StepRecord, digest: bytes) -> bool:
        with self._transaction(f"step {step.step}") as connection:
            last_step = check_lease(connection, held)
            if already_committed(connection, held, last_step, step.step, digest):
                return False
            if last_step != held.last_step:
                # An interrupt right after an earlier commit kept its sums from us.
                held.sums = load_sums(connection, held.id, last_step, len(held.members))
                held.last_step = last_step
        with self._lock, readable_errors(f"step {step.step}", self._location):
            shards = write_shards(held.root, held, step)
            try:
                self._insert(held, step, digest, shards)
            except LeaseError:
                # The run is another's by now, and so may files of these names be; its next resume sweeps the rest.
                raise
            except BaseException:
                self._discard(held, step.step, shards)
                raise
        return True

    def _insert(self, held: HeldRun, step: StepRecord, digest: bytes, shards: dict[int, Shard]) -> None:
        slots: dict[str | None, int] = {None: schema.WHOLE_RUN}
        slots.update(held.slots)
        with self._engine.begin() as connection:
            touch(connection, held, self._lease_seconds, changed=True)
            ids = metric_ids(connection, (metric.name for metric in step.metrics), self._metric_ids)
            metrics = {(ids[metric.name], slots[metric.member]): metric for metric in step.metrics}
            insert_prompts(connection, step.prompts, self._known_prompts)
            sums = insert_step(connection, self._location, held, step, digest, shards, metrics)
        held.sums, held.last_step = sums, step.step
        self._metric_ids.update(ids)
        self._known_prompts.update(prompt.key for prompt in step.prompts)

    def _discard(self, held: HeldRun, step: int, shards: dict[int, Shard]) -> None:
        """Remove the shards of a step that failed; an interrupt can come after its commit, so ask the database.

        The run's row is locked first: a commit whose answer was lost holds it until it is done or undone.
        """
        table = schema.shards
        with self._engine.begin() as connection:
            check_lease(connection, held)
            named = set(connection.scalars(select(table.c.path).where(table.c.run == held.id, table.c.step == step)))
        remove_shards(held.root, (shard.path for shard in shards.values() if shard.path not in named))

    def record_prompts(self, prompts: Iterable[PromptRecord]) -> None:
        """Make prompts known outside a step, such as a benchmark's; those already stored are left as they are."""
        prompts = tuple(prompts)
        with self._transaction("prompts") as connection:
            touch(connection, self._run(), self._lease_seconds, changed=False)
            insert_prompts(connection, prompts, self._known_prompts)
        self._known_prompts.update(prompt.key for prompt in prompts)

    def record_evaluation(self, record: EvaluationRecord) -> None:
        """Record one member's evaluation; the same (benchmark, step, member, seed) again replaces the earlier one."""
        held = self._run()
        check_evaluation(record, held.slots)

        def work() -> None:
            with self._transaction(f"evaluation of {record.member} on {record.benchmark}") as connection:
                touch(connection, held, self._lease_seconds, changed=True)
                insert_evaluation(connection, held.id, held.slots[record.member], record)

        self._patiently(work)

    def event(self, event: EventRecord) -> None:
        """Record an event at once; one without a step survives every resume."""
        held = self._run()

        def work() -> None:
            with self._transaction("event") as connection:
                touch(connection, held, self._lease_seconds, changed=True)
                connection.execute(insert(schema.events).values(event_row(held.id, event, None)))

        self._patiently(work)

    def heartbeat(self) -> bool:
        """Renew the lease and say that the run lives. False when the database did not answer, which harms nothing yet.

        LeaseError when another process took the run over.
        """
        held = self._run()
        try:
            with self._transaction("heartbeat") as connection:
                touch(connection, held, self._lease_seconds, changed=False)
        except LeaseError:
            raise
        except StoreError:
            return False
        return True

    def finish(self, status: FinalStatus, message: str = "") -> None:
        """Close the run's record with its outcome and release the lease; this writer can then take another run."""
        held, runs = self._run(), schema.runs
        with self._transaction(f"finishing run {held.uid}") as connection:
            touch(connection, held, self._lease_seconds, changed=True)
            connection.execute(
                update(runs)
                .where(runs.c.id == held.id)
                .values(status=status, message=storable(message), lease_until=0.0)
            )
        self._held = None

    def close(self) -> None:
        """Release everything. A run that was not finished is left as interrupted, ready to be resumed at once."""
        try:
            if self._held is not None:
                self.finish("interrupted", "the program ended before the run did")
        except StoreError:
            # Taken over by another process, or the disk takes nothing more: it keeps its status and can be resumed.
            return
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the connection and nothing else, as a killed process would: the lease runs on until it expires."""
        self._held = None
        self._engine.dispose()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refuse_while_holding(self) -> None:
        if self._held is not None:
            raise StoreError(f"store: this writer still holds run {self._held.uid}; finish it first")

    def _run(self) -> HeldRun:
        if self._held is None:
            raise StoreError("store: this writer holds no run; call start_run or resume_run first")
        return self._held

    def _patiently(self, work: Callable[[], Result]) -> Result:
        """Do it again while the database server is away, for `PATIENCE_S` at most: a restart must not end a run."""
        deadline, pause = time.monotonic() + PATIENCE_S, 0.25
        while True:
            try:
                return work()
            except UnreachableError:
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, 5.0)

    @contextmanager
    def _transaction(self, action: str) -> Iterator[Connection]:
        with self._lock, readable_errors(action, self._location), self._engine.begin() as connection:
            yield connection
