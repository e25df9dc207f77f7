"""Put a store under load and kill its writer: is anything ever wrong, refused or held up?

    python tests/benchmarks/store_load.py [--backend sqlite|postgresql|both] [--minutes 10] [--readers 5] [--kills 25]

Load: one writer commits steps as fast as it can, in periods alone and in periods beside readers that ask what the
dashboard's pages ask: every two seconds, as live pages do ("live"), and without a pause ("flat out"). Periods
alternate, and what readers cost is the difference between neighbouring ones. The minutes are those beside readers;
the periods alone come on top, half as long.

A commit's milliseconds are told three times: by the clock, on the processor, and waiting for neither: for a disk or a
lock. Readers take their share of the processor like any other program; only the last is what a store can be blamed for,
and it does not depend on what else the machine does.

Kills: `kill -9` of a writer at random moments, each followed by what `graft store verify` does. PostgreSQL is a server
of its own, from installed binaries, that syncs to the disk.

The exit code is 1 when anything was wrong: an error, a wait for a lock, a write-ahead log that grows, a median wait
above --stall-ms that is due to readers, a store that `verify` finds fault with.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from server.store.connections import locate
from server.store.reader import StoreError, open_reader
from server.store.sqlite import SqliteLocation
from server.store.verify import verify
from server.store.writer import Writer, open_writer
from tests import postgres
from tests.benchmarks.page_questions import PAGES, refresh
from tests.store import children
from tests.store.audit import audit
from tests.store.synthetic import Scenario

CONTEXT = multiprocessing.get_context("spawn")
DEADLINE_S = 120.0
LIVE_S = 2.0
ALONE, LIVE, FLAT = range(3)
PERIODS = {ALONE: "alone", LIVE: f"live readers, a page every {LIVE_S:g} s", FLAT: "flat-out readers"}
# Four of the log's own checkpoints; a log that readers keep from being begun anew grows with every commit.
MOST_WAL_MIB = 64
# Says in its log who waits for a lock for more than 10 ms.
SERVER = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "128MB",
    "log_lock_waits": "on",
    "deadlock_timeout": "10ms",
}


@dataclass
class Place:
    """The URLs of two stores that are not there yet, and the log of their server, if they have one."""

    load: str
    kills: str
    server_log: Path | None = None

    def lock_waits(self) -> int:
        """How often the server said that somebody waits for a lock or is in a deadlock."""
        if self.server_log is None:
            return 0
        lines = self.server_log.read_text(errors="replace").splitlines()
        return sum("still waiting for" in line or "deadlock detected" in line for line in lines)


@contextmanager
def place(backend: str, folder: Path) -> Iterator[Place]:
    """Where the stores of one backend are to be."""
    if backend == "sqlite":
        yield Place(*(f"sqlite:///{folder / name}.db" for name in ("load", "kills")))
        return
    with postgres.running_server(SERVER) as server:
        urls = [server.url(server.new_database(), trajectories=folder / name) for name in ("load", "kills")]
        yield Place(*urls, server.log)


@dataclass
class Answer:
    """What one reader did: pages drawn and questions asked of the written store, and every error by its text."""

    pages: Counter[int] = field(default_factory=Counter)
    questions: int = 0
    slowest_s: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)


def read(number: int, url: str, period: Any, seen: Any, results: Queue[Answer]) -> None:
    """Draw one page after the other at the rate of the period, until that is negative."""
    reader, answer, page, due = open_reader(url), Answer(), number, 0.0
    while (now := period.value) >= 0:
        if now != seen[number]:
            # Sessions of a dashboard are not in step with each other.
            seen[number], due = now, time.monotonic() + random.Random(number).uniform(0, LIVE_S) * (now == LIVE)
        if now == ALONE or time.monotonic() < due:
            time.sleep(0.02)
            continue
        due = time.monotonic() + LIVE_S * (now == LIVE)
        started = time.perf_counter()
        try:
            asked = refresh(reader, page)
        except (StoreError, AssertionError) as error:
            answer.errors[f"{type(error).__name__}: {error}"] += 1
        else:
            answer.questions += asked
        page += 1
        answer.pages[now] += 1
        answer.slowest_s = max(answer.slowest_s, time.perf_counter() - started)
    results.put(answer)


class Commit(NamedTuple):
    """Milliseconds of one commit: by the clock, on a processor (client and server), and waiting for disk or lock."""

    wall: float
    cpu: float
    blocked: float


class Stopwatch:
    """Times commits of a writer: what this thread, and its server's process, run and wait for a processor is Linux's
    count (/proc/PID/schedstat, nanoseconds); the rest of the time they wait for something else.
    """

    def __init__(self, writer: Writer) -> None:
        self._processes = [os.getpid()]
        with writer._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                self._processes.append(int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()))

    def _scheduled(self) -> tuple[float, float]:
        """Milliseconds (on a processor, waiting for one) until now."""
        lines = [Path(f"/proc/{process}/schedstat").read_text().split() for process in self._processes]
        return sum(int(line[0]) for line in lines) / 1e6, sum(int(line[1]) for line in lines) / 1e6

    def time(self, work: Callable[[], object]) -> Commit:
        """How long the work took."""
        began, (ran, queued) = time.perf_counter(), self._scheduled()
        work()
        wall, (now_ran, now_queued) = 1e3 * (time.perf_counter() - began), self._scheduled()
        return Commit(wall, now_ran - ran, max(0.0, wall - (now_ran - ran) - (now_queued - queued)))


Round = dict[int, list[Commit]]
"""The commits of one period of each kind, beside each other in time."""


class Load:
    """The writer and its measurements."""

    def __init__(self, url: str, scenario: Scenario) -> None:
        self.url, self._scenario = url, scenario
        location = locate(url)
        self._wal = location.wal if isinstance(location, SqliteLocation) else None
        self._pool = [scenario.step(step) for step in range(1, 13)]
        self._step = 0
        self.rounds: list[Round] = []
        self.wal_mib = dict.fromkeys(PERIODS, 0.0)
        self.beside_s = 0.0

    def commit(self, writer: Writer) -> None:
        """One more step."""
        self._step += 1
        writer.commit(replace(self._pool[self._step % len(self._pool)], step=self._step))

    def period(self, writer: Writer, watch: Stopwatch, kind: int, seconds: float) -> None:
        """Commit for some seconds."""
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            self.rounds[-1][kind].append(watch.time(partial(self.commit, writer)))
            if self._wal is not None:
                self.wal_mib[kind] = max(self.wal_mib[kind], self._wal.stat().st_size / 2**20)
        self.beside_s += (time.monotonic() - begun) * (kind != ALONE)

    def run(self, arguments: argparse.Namespace) -> list[Answer]:
        """All rounds; what the readers have to say."""
        period, results = CONTEXT.Value("i", ALONE, lock=False), CONTEXT.Queue()
        seen = CONTEXT.Array("i", [-1] * arguments.readers, lock=False)
        places = [(number, self.url, period, seen, results) for number in range(arguments.readers)]
        readers = [CONTEXT.Process(target=read, args=one, daemon=True) for one in places]
        with open_writer(self.url) as writer:
            writer.start_run(self._scenario.run())
            # A run's first commits compile statements and make files; the readers find a run under way.
            for _ in range(100):
                self.commit(writer)
            watch = Stopwatch(writer)
            for reader in readers:
                reader.start()
            while self.beside_s < 60 * arguments.minutes:
                self.rounds.append({kind: [] for kind in PERIODS})
                # Forwards and backwards, so that what drifts with time is in no difference.
                for kind in list(PERIODS)[:: 1 if len(self.rounds) % 2 else -1]:
                    period.value = kind
                    _await(seen, kind)
                    self.period(writer, watch, kind, arguments.period * (0.5 if kind == ALONE else 1.0))
            period.value = -1
            answers = [results.get(timeout=DEADLINE_S) for _ in readers]
            writer.finish("finished")
        for reader in readers:
            reader.join(DEADLINE_S)
        return answers


def _await(seen: Sequence[int], kind: int) -> None:
    """Until every reader has ended its page of the period before."""
    deadline = time.monotonic() + DEADLINE_S
    while any(one != kind for one in seen):
        assert time.monotonic() < deadline, f"a reader did not end its page within {DEADLINE_S:g} s"
        time.sleep(0.01)


def load(where: Place, scenario: Scenario, arguments: argparse.Namespace) -> list[str]:
    """Print what was measured; what was wrong."""
    work, faults = Load(where.load, scenario), []
    answers = work.run(arguments)
    for kind, name in PERIODS.items():
        times = np.array([commit for one in work.rounds for commit in one[kind]])
        (wall, cpu, blocked), (most_wall, _, most_blocked) = np.quantile(times, [0.5, 0.95], axis=0)
        print(
            f"  {name}: {len(times)} commits, median / p95 ms: clock {wall:.0f} / {most_wall:.0f}, processor "
            f"{cpu:.0f}, disk and locks {blocked:.0f} / {most_blocked:.0f}; log up to {work.wal_mib[kind]:.1f} MiB"
        )
    for kind in (LIVE, FLAT):
        clock, blocked, upper = (
            stall(work.rounds, kind, *what) for what in (("wall", 0.5), ("blocked", 0.5), ("blocked", 0.95))
        )
        print(
            f"  held up by {PERIODS[kind]}, {len(work.rounds)} rounds, ms [95 %]: clock {_span(clock)}, "
            f"disk and locks {_span(blocked)}, p95 {_span(upper)}"
        )
        faults += [f"{PERIODS[kind]} hold the writer up"] if blocked[0] > arguments.stall_ms else []
    errors: Counter[str] = sum((answer.errors for answer in answers), Counter())
    pages = {kind: sum(answer.pages[kind] for answer in answers) for kind in (LIVE, FLAT)}
    print(
        f"  {len(answers)} readers: {pages[LIVE]:,} live and {pages[FLAT]:,} flat-out pages of {len(PAGES)} kinds, "
        f"{sum(answer.questions for answer in answers):,} questions, the slowest page "
        f"{max(answer.slowest_s for answer in answers):.2f} s, {errors.total()} errors"
    )
    waits, found = where.lock_waits(), verify(where.load)
    print(f"  waits for locks: {waits}; verify: {found.steps:,} steps, {len(found.faults)} faults")
    faults += [f"{times} x {text}" for text, times in errors.items()] + found.faults
    faults += [f"{waits} waits for a lock"] if waits else []
    most = max(work.wal_mib.values())
    return faults + ([f"the write-ahead log grew to {most:.0f} MiB"] if most > MOST_WAL_MIB else [])


def stall(rounds: Sequence[Round], kind: int, what: str, q: float) -> tuple[float, float, float]:
    """The median over rounds of what the q-quantile is more in a period of this kind than in the one alone beside it,
    with its 95 % bootstrap interval.
    """
    both = [[[getattr(one, what) for one in part[of]] for of in (kind, ALONE)] for part in rounds]
    differences = np.array([np.quantile(beside, q) - np.quantile(alone, q) for beside, alone in both])
    drawn = np.random.default_rng(0).choice(differences, (2000, len(differences)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(differences)), float(low), float(high)


def _span(found: tuple[float, float, float]) -> str:
    return "{:+.0f} [{:+.0f}, {:+.0f}]".format(*found)


def kills(url: str, number: int, seed: int) -> list[str]:
    """Kill the writer at random moments; every inconsistency that was found after one."""
    moments, faults, context = random.Random(seed), [], multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.store.children"])
    committed, orphans = 0, 0
    for kill in range(number):
        ours, theirs = context.Pipe()
        child = context.Process(target=children.write_steps, args=(url, theirs, 100_000))
        child.start()
        assert ours.poll(DEADLINE_S), "the writer did not start"
        ours.recv()
        time.sleep(moments.uniform(0.0, 0.6))
        child.kill()
        child.join(DEADLINE_S)
        found = verify(url)
        faults += [f"kill {kill + 1}: {fault}" for fault in found.faults]
        orphans += len(found.orphans)
        assert found.steps > committed, "no step was committed"
        committed = found.steps
    children.open_run(url).close()
    left = verify(url)
    faults += audit(url) + [f"left behind: {path}" for path in left.orphans]
    print(
        f"  {number} kills: {committed} steps committed, {orphans} orphaned files swept, {len(faults)} inconsistencies"
    )
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument("--minutes", type=float, default=10.0, help="beside readers of the store, on each backend")
    parser.add_argument("--period", type=float, default=6.0, help="seconds of one period beside readers")
    parser.add_argument("--readers", type=int, default=5)
    parser.add_argument("--stall-ms", type=float, default=50.0, help="median stall by readers that is a fault")
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the stores lie; default: a temporary folder")
    arguments = parser.parse_args()
    scenario, faults = Scenario(members=3, steps=1000, prompts=arguments.prompts, n=8, tokens=200), []
    for backend in ("sqlite", "postgresql") if arguments.backend == "both" else (arguments.backend,):
        what = f"steps of 3 members x {arguments.prompts} prompts x 8 responses of 200 tokens"
        print(f"{backend}: {what}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", flush=True)
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, place(backend, Path(folder)) as where:
            if arguments.minutes:
                faults += load(where, scenario, arguments)
            if arguments.kills:
                faults += kills(where.kills, arguments.kills, arguments.seed)
        print(f"  load {os.getloadavg()[0]:.1f} at the end", flush=True)
    for fault in faults:
        print(f"fault: {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
