"""SQLite's write-ahead log stays bounded beside readers that are never all gone, and a stuck one holds nobody up."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from server.store import sqlite
from server.store.verify import verify
from server.store.writer import Writer, open_writer
from tests.store.synthetic import Scenario

DEADLINE_S = 60
SCENARIO = Scenario(steps=10_000, prompts=16, n=8, tokens=5)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Writer, Path]]:
    """A writer of a new run, and the log of its store, which may grow to 1 MiB."""
    monkeypatch.setattr(sqlite, "LOG_BYTES", 1 << 20)
    path = tmp_path / "store.db"
    with open_writer(str(path)) as writer:
        writer.start_run(SCENARIO.run())
        yield writer, path


@contextmanager
def transaction(path: Path) -> Iterator[None]:
    """A reader in one transaction."""
    with closing(sqlite3.connect(f"file:{path.with_suffix('.db')}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM runs").fetchone()
        yield


def relay(path: Path, stop: threading.Event) -> None:
    """Readers that hand over to each other: a next one begins before the one before ends."""
    while not stop.is_set():
        with transaction(path):
            begun, next_one = threading.Event(), threading.Event()

            def overlap(begun: threading.Event = begun, end: threading.Event = next_one) -> None:
                with transaction(path):
                    begun.set()
                    end.wait(DEADLINE_S)

            other = threading.Thread(target=overlap)
            other.start()
            begun.wait(DEADLINE_S)
        with transaction(path):
            next_one.set()
            other.join(DEADLINE_S)


def test_readers_that_are_never_all_gone_do_not_keep_the_log_growing(store: tuple[Writer, Path]) -> None:
    writer, path = store
    stop, sizes = threading.Event(), [0]
    reading = threading.Thread(target=relay, args=(path, stop))
    reading.start()
    try:
        for step in range(1, 81):
            writer.commit(SCENARIO.step(step))
            sizes.append(path.with_name("store.db-wal").stat().st_size)
    finally:
        stop.set()
        reading.join(DEADLINE_S)
    assert sum(max(0, later - earlier) for earlier, later in pairwise(sizes)) > 4 << 20
    assert max(sizes) < 3 << 20
    assert verify(str(path)).faults == []


def test_a_reader_that_never_ends_holds_up_few_commits_and_refuses_none(
    store: tuple[Writer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, path = store
    monkeypatch.setattr(sqlite, "LOG_WAIT_MS", 1)
    log = path.with_name("store.db-wal")
    with transaction(path):
        for step in range(1, 41):
            writer.commit(SCENARIO.step(step))
        assert log.stat().st_size > 3 << 20
    for step in range(41, 81):
        writer.commit(SCENARIO.step(step))
    assert log.stat().st_size < 3 << 20
    assert verify(str(path)).faults == []
