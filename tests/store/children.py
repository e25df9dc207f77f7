"""What child processes of the crash and concurrency tests do; importable, since they are not forked from pytest."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from sqlalchemy import select

from server.store import commit as commit_module
from server.store import trajectories
from server.store import writer as writer_module
from server.store.records import LeaseError, StoreError
from server.store.schema import runs
from server.store.writer import Writer, open_writer
from tests.store.synthetic import Scenario

SCENARIO = Scenario(steps=100_000, prompts=4, n=4, tokens=40)


def open_run(url: str, uid: str = "synthetic") -> Writer:
    """A writer of the run, resumed after its last step when it exists."""
    writer = open_writer(url)
    try:
        writer.start_run(Scenario(**{**_fields(), "uid": uid}).run())
    except StoreError:
        with writer._engine.connect() as connection:
            last = connection.scalar(select(runs.c.last_step).where(runs.c.uid == uid))
        writer.resume_run(uid, last or 0)
    return writer


def _fields() -> dict[str, Any]:
    return {name: getattr(SCENARIO, name) for name in SCENARIO.__dataclass_fields__}


def write_steps(url: str, ready: Connection, count: int, uid: str = "synthetic") -> None:
    """Commit a step, say "ready", commit `count` more as fast as possible, then say "done"."""
    writer = open_run(url, uid)
    first = (writer.last_step or 0) + 1
    # The first commit of a process is slow: statements are compiled.
    writer.commit(SCENARIO.step(first))
    ready.send("ready")
    for step in range(first + 1, first + count + 1):
        writer.commit(SCENARIO.step(step))
        writer.heartbeat()
    writer.finish("finished")
    writer.close()
    ready.send("done")


def write_until(url: str, enough: Event, most: int) -> None:
    """Commit steps as fast as possible until `enough` is set, at most `most` of them, then finish the run."""
    with open_run(url) as writer:
        first = (writer.last_step or 0) + 1
        for step in range(first, first + most):
            writer.commit(SCENARIO.step(step))
            writer.heartbeat()
            if enough.is_set():
                break
        writer.finish("finished")


def die_at(url: str, moment: str) -> None:
    """Kill this process while it commits the next step, at a named moment."""
    writer = open_run(url)
    step = SCENARIO.step((writer.last_step or 0) + 1)
    _arrange_death(moment)
    writer.commit(step)


def _arrange_death(moment: str) -> None:
    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    insert = commit_module.insert_step

    def insert_and_die(*args: Any) -> None:
        insert(*args)
        die()

    write = writer_module.Writer._insert

    def write_and_die(*args: Any) -> None:
        write(*args)
        die()

    patches: dict[str, tuple[Any, str, Any]] = {
        "a shard is written but not renamed": (trajectories.os, "replace", die),
        "every shard is there": (writer_module, "insert_step", die),
        "every row is inserted": (writer_module, "insert_step", insert_and_die),
        "the step is committed": (writer_module.Writer, "_insert", write_and_die),
    }
    setattr(*patches[moment])


def start_together(url: str, barrier: Any, number: int, result: Connection) -> None:
    """Open a new store at the same moment as others, and write a run of one's own."""
    barrier.wait(60)
    try:
        writer = open_run(url, f"run-{number}")
        for step in range(1, 4):
            writer.commit(SCENARIO.step(step))
        writer.close()
        result.send("")
    except BaseException as fault:
        result.send(repr(fault))


def take_run(url: str, barrier: Any, result: Connection) -> None:
    """Try to take the run over at the same moment as others, write two steps, and say how that went."""
    writer = open_writer(url)
    barrier.wait(60)
    try:
        writer.resume_run("synthetic", 1)
        barrier.wait(60)
        for step in (2, 3):
            writer.commit(SCENARIO.step(step))
        result.send("wrote")
    except LeaseError as fault:
        barrier.wait(60)
        result.send(str(fault))
    writer.abandon()


def write_slowly(url: str, go_on: Event, result: Connection) -> None:
    """Write a step under a lease of half a second, and the next one when told to; say how that went."""
    writer = open_writer(url, lease_seconds=0.5)
    writer.start_run(Scenario(**_fields()).run())
    writer.commit(SCENARIO.step(1))
    result.send("wrote")
    go_on.wait(60)
    for attempt in (lambda: writer.commit(SCENARIO.step(2)), writer.heartbeat):
        try:
            result.send(f"wrote {attempt()}")
        except LeaseError as fault:
            result.send(str(fault))
    writer.close()
