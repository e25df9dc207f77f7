"""A dashboard that is killed in mid-run, in the midst of reading, leaves the run that was never watched."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from server.store.connections import has_store, locate
from server.store.reader import open_reader
from server.store.verify import verify
from tests.commands import ROOT, run
from tests.faults.test_kill_and_resume import STEPS, arguments, everything, recorded, weights

DEADLINE_S = 300
# As sessions of a dashboard: page after page without a pause.
READING = """
import itertools, sys
from server.store.connections import has_store, locate
from server.store.reader import open_reader
from tests.benchmarks.page_questions import refresh
with open_reader(sys.argv[1]) as reader:
    for number in itertools.count():
        refresh(reader, number)
        print(number, flush=True)
"""


def servers_of(process: int) -> list[psutil.Process]:
    """The dashboard's processes below a run's."""
    return [one for one in psutil.Process(process).children(recursive=True) if "dashboard" in " ".join(one.cmdline())]


def begun(store: str) -> bool:
    """Whether the run has a step."""
    if not has_store(locate(store)):
        return False
    with open_reader(store) as reader:
        return any(one.last_step for one in reader.runs())


@pytest.mark.slow
def test_a_dashboard_killed_in_mid_run_leaves_the_run_untouched(warm_folder: Path) -> None:
    alone = run([sys.executable, "-m", "population", *arguments(warm_folder, "unwatched")], deadline_s=DEADLINE_S)
    assert alone.returncode == 0, alone.stderr
    command = [sys.executable, "-m", "population", *arguments(warm_folder, "watched"), "--dashboard", "--port", "0"]
    store, log = f"sqlite:///{warm_folder / 'watched.db'}", warm_folder / "watched.log"
    with log.open("w") as errors:
        training = subprocess.Popen(command, cwd=ROOT, stdout=errors, stderr=errors)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not begun(store):
            assert training.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        reading = subprocess.Popen([sys.executable, "-c", READING, store], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert reading.stdout is not None
        assert reading.stdout.readline() == "0\n"
        servers = servers_of(training.pid)
        assert servers
        before = recorded(warm_folder, "watched")
        reading.kill()
        for server in servers:
            server.kill()
        reading.communicate(timeout=DEADLINE_S)
        assert psutil.wait_procs(servers, timeout=DEADLINE_S)[1] == []
        assert training.wait(DEADLINE_S) == 0, log.read_text()
    finally:
        training.kill()
    status, last = before
    assert status == "running"
    assert last is not None
    assert 1 <= last < STEPS
    with open_reader(f"sqlite:///{warm_folder / 'unwatched.db'}") as a, open_reader(store) as b:
        assert b.run("watched").status == "finished"
        expected, found = everything(a, "unwatched"), everything(b, "watched")
    for key in expected:
        assert found[key] == expected[key], key
    for of in ("members", "best"):
        assert weights(warm_folder, "watched", of) == weights(warm_folder, "unwatched", of)
        assert len(weights(warm_folder, "watched", of)) == 3
    assert verify(store).faults == []
