"""One worker process, with stand-ins that do what a real one should never do."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import pytest

from server.rewards import RewardService, RewardServiceError, VerdictCode, process
from server.rewards.process import Cancelled, ItemTimedOut, Request, WorkerDied, WorkerProcess, WorkerStartFailed
from server.rewards.service import MAX_IDLE_DEATHS
from server.rewards.verdicts import Outcome

READY = "import sys, time, os; print('ready', flush=True); sys.stdin.readline(); "
BEGUN = READY + "print('begun', flush=True); "
PATIENCE_S = 60.0
REQUEST = Request("grade", "x", "y", timeout_s=PATIENCE_S)
BRIEF = Request("grade", "x", "y", timeout_s=0.2)

StandIn = Callable[..., WorkerProcess]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    def start(code: str, cancelled: threading.Event | None = None) -> WorkerProcess:
        monkeypatch.setattr(process, "worker_command", lambda _memory, _reward: [sys.executable, "-c", code])
        return WorkerProcess(memory_bytes=1 << 30, start_timeout_s=PATIENCE_S, cancelled=cancelled or threading.Event())

    return start


def test_code_that_ignores_the_alarm_is_killed_by_its_processor_time(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "WALL_FACTOR", 1000.0)  # a loaded machine must not ring first
    worker = stand_in(BEGUN + "\nwhile True: pass")
    with pytest.raises(ItemTimedOut, match="processor time; killed"):
        worker.ask(BRIEF)


def test_code_that_sleeps_is_killed_by_the_clock(stand_in: StandIn) -> None:
    worker = stand_in(BEGUN + "time.sleep(1000)")
    with pytest.raises(ItemTimedOut, match="on the clock; killed"):
        worker.ask(BRIEF)


@pytest.mark.parametrize(("code", "busy"), [(READY + "os._exit(9)", False), (BEGUN + "os._exit(9)", True)])
def test_a_death_is_told_apart_by_whether_the_item_had_begun(stand_in: StandIn, code: str, busy: bool) -> None:
    worker = stand_in(code)
    with pytest.raises(WorkerDied, match=r"status 9|idle") as caught:
        worker.ask(REQUEST)
    assert caught.value.busy is busy


@pytest.mark.parametrize("noise", ["print('nonsense')", "print('42 fine')", "print('x' * 100000)"])
def test_a_garbled_reply_is_a_dead_worker(stand_in: StandIn, noise: str) -> None:
    worker = stand_in(BEGUN + noise)
    with pytest.raises(WorkerDied):
        worker.ask(REQUEST)


def test_a_reply_is_read_to_its_line_end(stand_in: StandIn) -> None:
    worker = stand_in(
        BEGUN + "sys.stdout.write('1 al'); sys.stdout.flush(); time.sleep(.2); print('l well', flush=True)"
    )
    assert worker.ask(REQUEST) == Outcome(VerdictCode.RIGHT, "all well")
    worker.kill()


def test_closing_ends_the_wait(stand_in: StandIn) -> None:
    cancelled = threading.Event()
    worker = stand_in(BEGUN + "time.sleep(1000)", cancelled)
    cancelled.set()
    with pytest.raises(Cancelled):
        worker.ask(REQUEST)


def test_a_worker_that_cannot_start_says_why(stand_in: StandIn) -> None:
    with pytest.raises(WorkerStartFailed, match=r"(?s)exited with status 1.*no module of that name"):
        stand_in("raise ImportError('no module of that name')")


def test_no_worker_is_an_error_not_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        process, "worker_command", lambda _memory, _reward: [sys.executable, "-c", "raise SystemExit('broken')"]
    )
    with RewardService() as service:
        with pytest.raises(RewardServiceError, match="broken"):
            service.grade([("x+1", r"\boxed{1+x}")])
        assert service.grade([("1", r"\boxed{1}")])[0].reward == 1.0


def test_crashing_twice_over_one_item_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        process, "worker_command", lambda _memory, _reward: [sys.executable, "-c", BEGUN + "os.abort()"]
    )
    with RewardService() as service:
        (verdict,) = service.grade([("x+1", r"\boxed{1+x}")])
        assert verdict.code is VerdictCode.CRASH
        assert service.counters()["died_busy"] == 2


def test_a_worker_that_never_begins_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        process, "worker_command", lambda _memory, _reward: [sys.executable, "-c", READY + "os._exit(0)"]
    )
    with RewardService() as service:
        assert service.grade([("x+1", r"\boxed{1+x}")])[0].code is VerdictCode.CRASH
        assert service.counters()["died_idle"] == MAX_IDLE_DEATHS


def test_processor_time_is_the_same_with_and_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    here, gone = process.processor_seconds(os.getpid()), process.processor_seconds(2**22 + 1)
    monkeypatch.setattr(process, "HAS_PROC", False)
    assert process.processor_seconds(os.getpid()) == pytest.approx(here, abs=0.5)
    assert here > 0.0
    assert gone == process.processor_seconds(2**22 + 1) == 0.0
