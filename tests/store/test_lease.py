"""Two processes never write one run: of those that want it one gets it, and one that was overtaken writes no more."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

from server.store.reader import open_reader
from server.store.records import LeaseError
from server.store.writer import Writer, open_writer
from tests.store import children
from tests.store.audit import audit
from tests.store.children import SCENARIO
from tests.store.test_crash import CONTEXT, DEADLINE_S


def _heard(pipe: Connection) -> str:
    assert pipe.poll(DEADLINE_S)
    return str(pipe.recv())


def test_of_processes_that_want_a_run_at_once_exactly_one_gets_it(url: str) -> None:
    with children.open_run(url) as writer:
        writer.commit(SCENARIO.step(1))
    barrier = CONTEXT.Barrier(3)
    pipes = [CONTEXT.Pipe() for _ in range(3)]
    started = [CONTEXT.Process(target=children.take_run, args=(url, barrier, theirs)) for _, theirs in pipes]
    for child in started:
        child.start()
    said = sorted(_heard(ours) for ours, _ in pipes)
    for child in started:
        child.join(DEADLINE_S)
    assert said[-1] == "wrote"
    assert all("run synthetic is being written by process" in one for one in said[:-1])
    assert audit(url) == []
    with open_reader(url) as reader:
        assert reader.run("latest").last_step == 3


def test_a_process_that_slept_through_its_lease_writes_nothing_when_it_wakes(url: str) -> None:
    go_on, (ours, theirs) = CONTEXT.Event(), CONTEXT.Pipe()
    child = CONTEXT.Process(target=children.write_slowly, args=(url, go_on, theirs))
    child.start()
    assert _heard(ours) == "wrote"
    os.kill(child.pid, signal.SIGSTOP)
    with open_writer(url) as writer:
        _take(writer)
        os.kill(child.pid, signal.SIGCONT)
        go_on.set()
        for _ in range(2):
            assert f"was taken over by process {os.getpid()}" in _heard(ours)
        child.join(DEADLINE_S)
        assert child.exitcode == 0
        assert writer.commit(SCENARIO.step(2))
        with open_reader(url) as reader:
            assert (reader.run("latest").status, reader.run("latest").last_step) == ("running", 2)
    assert audit(url) == []


def _take(writer: Writer) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return writer.resume_run("synthetic", 1)
        except LeaseError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
