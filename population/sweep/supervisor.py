"""The processes of a sweep: so many at a time, each in its turn, none left behind.

One thread watches them all. A run that fails is reported and does not stop the others; a run that needs it is not
started. Whatever ends the watch (a finished sweep, Ctrl-C, SIGTERM, a fault) ends the processes first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from population.config import as_dict
from population.sweep.spec import PlannedRun
from population.sweep.state import State, recorded
from server.store.records import StoreError

TICK_S = 0.2
LOOK_EVERY_S = 2.0
# A store that is being written, or whose server restarts, may not be readable at every look.
READABLE_WITHIN_S = 120.0
# An interrupted run notes its outcome in its store, which takes moments; a step may have to end first.
STOP_WITHIN_S = 60.0
TAIL_LINES = 5


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``reason`` is "" for a finished one, else one line or the tail of its log."""

    run: PlannedRun
    finished: bool
    reason: str = ""


class Observer(Protocol):
    """Whoever watches a sweep."""

    def started(self, run: PlannedRun, *, resumed: bool) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...

    def progress(self, steps: Mapping[str, tuple[int, int]]) -> None:
        """{uid of a running run: (steps recorded, steps in all)}; (0, 0) before it has a record."""


@dataclass
class _Process:
    run: PlannedRun
    popen: subprocess.Popen[bytes]
    deadline: float
    steps: tuple[int, int] = (0, 0)
    unreadable_since: float | None = None


def supervise(
    runs: Sequence[PlannedRun], states: Mapping[str, State], jobs: int, deadline_s: float, observer: Observer
) -> list[Outcome]:
    """Bring every run to its end, ``jobs`` processes at a time, and say how each ended. ``states`` is {uid: state};
    a finished run is not started.
    """
    outcomes = {run.uid: Outcome(run, finished=True) for run in runs if states[run.uid] == "finished"}
    waiting = [run for run in runs if run.uid not in outcomes]
    running: list[_Process] = []
    looked = 0.0
    try:
        while waiting or running:
            for process in [one for one in running if _ended(one)]:
                running.remove(process)
                _note(_outcome(process), outcomes, observer)
            for run in _ready(waiting, outcomes, observer)[: jobs - len(running)]:
                waiting.remove(run)
                running.append(_start(run, states[run.uid], deadline_s))
                observer.started(run, resumed=states[run.uid] == "begun")
            if time.monotonic() - looked > LOOK_EVERY_S:
                observer.progress({one.run.uid: _steps(one) for one in running})
                looked = time.monotonic()
            time.sleep(TICK_S)
    finally:
        _stop(running)
    return [outcomes[run.uid] for run in runs]


def _note(outcome: Outcome, outcomes: dict[str, Outcome], observer: Observer) -> None:
    outcomes[outcome.run.uid] = outcome
    observer.ended(outcome)


def _ready(waiting: list[PlannedRun], outcomes: dict[str, Outcome], observer: Observer) -> list[PlannedRun]:
    """The runs that may start now; those whose needed run failed are given up."""
    ready = []
    for run in list(waiting):
        needed = outcomes.get(run.needs) if run.needs else None
        if needed is not None and not needed.finished:
            waiting.remove(run)
            _note(Outcome(run, False, f"not started: it needs {run.needs}, which did not finish"), outcomes, observer)
        elif run.needs is None or needed is not None:
            ready.append(run)
    return ready


def _start(run: PlannedRun, state: State, deadline_s: float) -> _Process:
    """Start one run; its configuration and its log lie beside its store."""
    run.home.mkdir(parents=True, exist_ok=True)
    config = run.home / "config.yaml"
    config.write_text(yaml.safe_dump(as_dict(run.config), sort_keys=False, allow_unicode=True))
    command = [sys.executable, "-m", "population.sweep.child", str(os.getpid()), "train", str(config), "--quiet"]
    command += ["--run", run.uid, *(["--resume"] if state == "begun" else [])]
    with (run.home / "log.txt").open("ab") as log:
        # A session of its own: Ctrl-C in the terminal is the sweep's to handle.
        popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )  # fmt: skip
    return _Process(run, popen, time.monotonic() + deadline_s)


def _ended(process: _Process) -> bool:
    if process.popen.poll() is None and time.monotonic() > process.deadline:
        _stop([process])
    return process.popen.poll() is not None


def _outcome(process: _Process) -> Outcome:
    code = process.popen.returncode
    if code == 0:
        return Outcome(process.run, finished=True)
    late = time.monotonic() > process.deadline
    how = "ran past deadline_s" if late else f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    log = process.run.home / "log.txt"
    return Outcome(process.run, False, "\n".join([f"{how}; {log} ends with:", *tail(log)]))


def tail(log: Path) -> list[str]:
    """The last lines of a log that say something."""
    lines = [line.rstrip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-TAIL_LINES:] or ["(nothing)"]


def _steps(process: _Process) -> tuple[int, int]:
    """Steps recorded and in all; those of the last look while the store cannot be read, for so long."""
    try:
        info = recorded(process.run)
    except StoreError:
        now = time.monotonic()
        process.unreadable_since = process.unreadable_since or now
        if now - process.unreadable_since > READABLE_WITHIN_S:
            raise
        return process.steps
    process.unreadable_since = None
    process.steps = (0, 0) if info is None else (info.last_step or 0, info.total_steps)
    return process.steps


def _stop(processes: Sequence[_Process]) -> None:
    """End processes: asked first, so that they note where they stand, then killed."""
    for process in processes:
        if process.popen.poll() is None:
            process.popen.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_WITHIN_S
    try:
        for process in processes:
            process.popen.wait(timeout=max(deadline - time.monotonic(), 0))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C does not wait
        for process in processes:
            process.popen.kill()
            process.popen.wait()
