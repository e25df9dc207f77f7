"""Killed writers leave a sound store; readers and writers do not get into each other's way."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time

import pytest

from server.store.reader import open_reader
from server.store.verify import verify
from tests.store import children
from tests.store.audit import audit
from tests.store.backends import shards_of
from tests.store.children import SCENARIO

# Not forked from pytest: a fork of a process with threads may hang.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.store.children"])
DEADLINE_S = 60


def _shards(url: str) -> set[str]:
    return {path.name for path in (shards_of(url) / "synthetic").iterdir()}


def _resume_and_sweep(url: str) -> None:
    with open_reader(url) as reader:
        committed = reader.run("latest").last_step or 0
    writer = children.open_run(url)
    assert (writer.last_step or 0) == committed
    assert len(_shards(url)) == 3 * committed
    writer.commit(SCENARIO.step(committed + 1))
    writer.close()
    assert audit(url) == []


def test_a_writer_killed_at_random_moments_leaves_a_sound_store(url: str) -> None:
    moments = random.Random(20)
    committed = 0
    for _ in range(3):
        ours, theirs = CONTEXT.Pipe()
        child = CONTEXT.Process(target=children.write_steps, args=(url, theirs, 10_000))
        child.start()
        assert ours.poll(DEADLINE_S)
        assert ours.recv() == "ready"
        time.sleep(moments.uniform(0.02, 0.6))
        child.kill()
        child.join(DEADLINE_S)
        assert child.exitcode == -9
        assert audit(url) == []
        assert verify(url).faults == []
        with open_reader(url) as reader:
            last = reader.run("latest").last_step or 0
        assert last > committed
        committed = last
    _resume_and_sweep(url)


@pytest.mark.parametrize(
    ("moment", "stored"),
    [
        ("a shard is written but not renamed", False),
        ("every shard is there", False),
        ("every row is inserted", False),
        ("the step is committed", True),
    ],
)
def test_a_writer_killed_at_the_worst_moments_leaves_a_sound_store(url: str, moment: str, stored: bool) -> None:
    with children.open_run(url) as writer:
        writer.commit(SCENARIO.step(1))
    child = CONTEXT.Process(target=children.die_at, args=(url, moment))
    child.start()
    child.join(DEADLINE_S)
    assert child.exitcode == -9
    assert audit(url) == []
    assert len(_shards(url)) > 3
    with open_reader(url) as reader:
        assert reader.run("latest").last_step == 1 + stored
    _resume_and_sweep(url)


def test_readers_of_a_run_being_written_meet_no_error_and_no_half_step(url: str) -> None:
    children.open_run(url).close()
    enough = CONTEXT.Event()
    child = CONTEXT.Process(target=children.write_until, args=(url, enough, 50_000))
    faults: list[BaseException] = []
    reads: list[int] = []
    stop = threading.Event()

    def read() -> None:
        try:
            with open_reader(url) as reader:
                while not stop.is_set():
                    last = reader.run("latest").last_step or 0
                    counts = reader.member_counts("latest", 1, last)
                    assert counts["groups"].tolist() == [4 * last] * 3
                    assert reader.metric("latest", "loss", 1, last)[1].tolist() == [4.0 * last] * 3
                    assert reader.patterns("latest", 1, last)[1] == 4 * last
                    rows, total = reader.transfers("latest", max(1, last - 9), last, limit=1000)
                    assert len(rows) == total
                    for row in rows[:2]:
                        reader.trajectory("latest", row.step, row.prompt, row.receiver)
                    reads.append(last)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=read) for _ in range(2)]
    child.start()
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + DEADLINE_S
    while len(set(reads)) <= 3 and not faults and time.monotonic() < deadline:
        time.sleep(0.05)
    enough.set()
    child.join(DEADLINE_S)
    stop.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert (faults, child.exitcode) == ([], 0)
    assert len(set(reads)) > 3


def test_processes_that_start_together_on_a_new_store_all_get_in(url: str) -> None:
    barrier = CONTEXT.Barrier(4)
    ours, theirs = CONTEXT.Pipe()
    started = [
        CONTEXT.Process(target=children.start_together, args=(url, barrier, number, theirs)) for number in range(4)
    ]
    for child in started:
        child.start()
    results = [ours.recv() if ours.poll(DEADLINE_S) else "nothing" for _ in started]
    for child in started:
        child.join(DEADLINE_S)
    assert results == [""] * 4
    assert audit(url) == []
    with open_reader(url) as reader:
        assert {run.last_step for run in reader.runs()} == {3}
