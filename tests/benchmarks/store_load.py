"""Put a store under load and kill its writer: is anything ever wrong, refused or held up?

    python tests/benchmarks/store_load.py [--backend sqlite|postgresql|both] [--minutes 10] [--readers 5] [--kills 25]

Load: one writer commits steps as fast as it can, in turns alone, beside readers of another store (who take the same
share of the machine and no lock) and beside readers of its own. Kills: `kill -9` of a writer at random moments, each
followed by `graft store verify`. PostgreSQL is a server of its own, from installed binaries, that syncs to the disk.
The exit code is 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from server.store.reader import Reader, open_reader
from server.store.verify import verify
from server.store.writer import open_writer
from tests import postgres
from tests.store import children
from tests.store.audit import audit
from tests.store.synthetic import Scenario, make_store

CONTEXT = multiprocessing.get_context("spawn")
TURN_S = 10.0
PHASES = ("alone", "readers of another store", "readers of this store")
DURABLE = {"fsync", "synchronous_commit", "full_page_writes", "autovacuum"}


@contextmanager
def place(backend: str, folder: Path) -> Iterator[list[str]]:
    """URLs of three stores that are not there yet."""
    if backend == "sqlite":
        yield [f"sqlite:///{folder / name}.db" for name in ("load", "other", "kills")]
        return
    for name in DURABLE & postgres.SETTINGS.keys():
        del postgres.SETTINGS[name]
    with postgres.running_server() as server:
        yield [server.url(server.new_database(), trajectories=folder / name) for name in ("load", "other", "kills")]


def read(
    urls: list[str], phase: Synchronized[int], stop: Any, pause: float, results: Queue[tuple[int, float, str]]
) -> None:
    """Ask what the dashboard asks, again and again, of the store that the phase names."""
    asked, slowest, fault = 0, 0.0, ""
    readers: dict[int, Reader] = {}
    try:
        while not stop.is_set():
            number = phase.value
            if number == 0:
                time.sleep(0.05)
                continue
            reader = readers.setdefault(number, open_reader(urls[number - 1]))
            started = time.perf_counter()
            asked += _page(reader)
            slowest = max(slowest, time.perf_counter() - started)
            time.sleep(pause)
    except BaseException as error:
        fault = repr(error)
    results.put((asked, slowest, fault))


def _page(reader: Reader) -> int:
    """About what one page asks; the number of questions."""
    last = reader.run("latest").last_step or 0
    edges = sorted({round(i * last / 60) for i in range(61)} | {0, last})
    low = max(1, last - 99)
    counts = reader.member_counts("latest", 1, last)
    assert len(set(counts["groups"].tolist())) == 1, "a step was seen in part"
    reader.pair_counts("latest", low, last)
    reader.complementarity("latest", low, last)
    reader.patterns("latest", low, last)
    reader.events("latest")
    if last:
        for name in ("loss", "entropy", "grad_norm"):
            reader.metric_history("latest", name, edges)
        reader.member_history("latest", edges)
        rows, total = reader.transfers("latest", low, last, limit=20)
        assert len(rows) == min(20, total), "transfers were seen in part"
        for row in rows[:2]:
            reader.trajectory("latest", row.step, row.prompt, row.receiver)
    return 12


def load(urls: list[str], scenario: Scenario, arguments: argparse.Namespace) -> list[str]:
    """Commit at full rate in turns of every phase; what was wrong."""
    make_store(urls[1], steps=100, prompts=scenario.prompts, n=scenario.n)
    phase, stop, results = CONTEXT.Value("i", 0), CONTEXT.Event(), CONTEXT.Queue()
    # The phase says which store is read: the other one, or this.
    places = ([urls[1], urls[0]], phase, stop, arguments.pause, results)
    readers = [CONTEXT.Process(target=read, args=places) for _ in range(arguments.readers)]
    pool = [scenario.step(step) for step in range(1, 13)]
    took: dict[int, list[float]] = {number: [] for number in range(len(PHASES))}
    with open_writer(urls[0]) as writer:
        writer.start_run(scenario.run())
        # A run's first commits compile statements and make files.
        for step in range(1, 11):
            writer.commit(replace(pool[step % len(pool)], step=step))
        for reader in readers:
            reader.start()
        step, begun = 10, time.monotonic()
        while time.monotonic() - begun < 60 * arguments.minutes:
            number = int((time.monotonic() - begun) / TURN_S) % len(PHASES)
            if number != phase.value:
                phase.value = number
                time.sleep(1.0)
            step += 1
            record = replace(pool[step % len(pool)], step=step)
            started = time.perf_counter()
            writer.commit(record)
            took[number].append(1e3 * (time.perf_counter() - started))
        stop.set()
        answers = [results.get(timeout=60) for _ in readers]
        writer.finish("finished")
    for reader in readers:
        reader.join(60)
    for number, name in enumerate(PHASES):
        cuts = statistics.quantiles(took[number], n=20)
        print(
            f"  {name}: {len(took[number])} commits, median {statistics.median(took[number]):.0f}, p95 {cuts[18]:.0f}, "
            f"slowest {max(took[number]):.0f} ms"
        )
    held_up, low, high = _difference(took[2], took[1])
    stall = f"{held_up:+.0f} [{low:+.0f}, {high:+.0f}] ms"
    print(f"  held up by readers of this store, over those of another: {stall} (medians)")
    slowest = max(answer[1] for answer in answers)
    print(f"  readers: {sum(answer[0] for answer in answers):,} questions, the slowest page of them {slowest:.2f} s")
    faults = [fault for _, _, fault in answers if fault]
    return faults + verify(urls[0]).faults


def _difference(first: list[float], second: list[float]) -> tuple[float, float, float]:
    """The difference of two medians with its 95 % bootstrap interval."""
    rng = np.random.default_rng(0)
    drawn = [np.median(rng.choice(part, (2000, len(part))), axis=1) for part in (first, second)]
    low, high = np.percentile(drawn[0] - drawn[1], [2.5, 97.5])
    return float(np.median(first) - np.median(second)), float(low), float(high)


def kills(url: str, number: int, seed: int) -> list[str]:
    """Kill the writer at random moments; every inconsistency that was found after one."""
    moments, faults, context = random.Random(seed), [], multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.store.children"])
    committed, orphans = 0, 0
    for kill in range(number):
        ours, theirs = context.Pipe()
        child = context.Process(target=children.write_steps, args=(url, theirs, 100_000))
        child.start()
        assert ours.poll(120), "the writer did not start"
        ours.recv()
        time.sleep(moments.uniform(0.0, 0.6))
        child.kill()
        child.join(60)
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
    parser.add_argument("--minutes", type=float, default=10.0, help="of load, on each backend")
    parser.add_argument("--readers", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two pages of a reader")
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the stores lie; default: a temporary folder")
    arguments = parser.parse_args()
    scenario, faults = Scenario(members=3, steps=1000, prompts=arguments.prompts, n=8, tokens=200), []
    for backend in ("sqlite", "postgresql") if arguments.backend == "both" else (arguments.backend,):
        what = f"steps of 3 members x {arguments.prompts} prompts x 8 responses of 200 tokens"
        print(f"{backend}: {what}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", flush=True)
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, place(backend, Path(folder)) as urls:
            if arguments.minutes:
                faults += load(urls, scenario, arguments)
            if arguments.kills:
                faults += kills(urls[2], arguments.kills, arguments.seed)
    for fault in faults:
        print(f"fault: {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
