"""Make a store as it is after weeks: 1,000,000 prompts, 8 members, 20,000 steps, and five shorter runs to compare with.

    python -m tests.benchmarks.big_store FOLDER [--steps 20000] [--prompts 1000000] [--live SECONDS]

Old steps are put in as rows, past the writer: as if they had been pruned, so without what was said. The newest 40 steps
are committed by the writer. A store that is there already is taken as it is; one that was not finished is begun anew.
With --live it goes on, a step every so many seconds, until it is stopped. SQLite only.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, Table, update

from server.store import rows, schema
from server.store.commit import event_row, metric_ids
from server.store.connections import locate
from server.store.counts import count_step, transfer_facts, two_sum
from server.store.evaluations import insert_evaluation
from server.store.reader import open_reader
from server.store.records import EventRecord, StepRecord
from server.store.rows import Sums
from server.store.writer import open_writer
from tests.benchmarks.big_metrics import STEP_SECONDS
from tests.benchmarks.big_run import BigRun, Size
from tests.dashboard.showcase import prompt

# Steps of one transaction, prompts of one call.
CHUNK_STEPS, CHUNK_PROMPTS = 500, 50_000
CACHE_KIB = 400_000
# Runs to compare with: (method, seed), each a tenth as long and a quarter as wide.
OTHERS = (("grpo", 0), ("grpo", 1), ("graft", 1), ("graft", 2), ("graft", 3))

Rows = list[dict[str, Any]]


def url_of(folder: Path) -> str:
    """The store in this folder."""
    return f"sqlite:///{folder / 'store.db'}"


def runs_of(size: Size, others: Sequence[tuple[str, int]] = OTHERS) -> list[BigRun]:
    """The runs of a store of this size, the oldest first; the big one is the newest."""
    short = replace(size, steps=max(size.kept, size.steps // 10), batch=max(1, size.batch // 4), kept=min(2, size.kept))
    return [*(BigRun(short, seed, method) for method, seed in others), BigRun(size)]


def make(folder: Path, size: Size, others: Sequence[tuple[str, int]] = OTHERS) -> str:
    """The URL of a store of this size, made if it is not there."""
    if not (folder / "store.db").is_file():
        beside = folder.with_name(folder.name + ".part")
        shutil.rmtree(beside, ignore_errors=True)
        # A run is resumed only where the folder of its shards is.
        (beside / "store_trajectories").mkdir(parents=True)
        runs = runs_of(size, others)
        for place, run in enumerate(runs):
            # One run after the other.
            later = STEP_SECONDS * sum(other.size.steps + 1 for other in runs[place + 1 :])
            _make_run(url_of(beside), run, time.time() - later)
        beside.replace(folder)
    return url_of(folder)


def _make_run(url: str, run: BigRun, ends: float) -> None:
    """One run, left as interrupted after its last step at this time."""
    size, bulk = run.size, run.size.steps - run.size.kept
    with open_writer(url) as writer:
        writer.start_run(run.run())
        writer.event(EventRecord("info", f"run of {size.members} members started"))
        writer.record_prompts(run.evaluation_prompts())
        # By key, so that the table grows at its end.
        seen = np.unique(np.concatenate([run.numbers(step) for step in range(1, size.steps + 1)])).tolist()
        records = sorted((prompt(number) for number in seen), key=lambda record: record.key)
        for start in range(0, len(records), CHUNK_PROMPTS):
            writer.record_prompts(records[start : start + CHUNK_PROMPTS])
    engine = _bulk_engine(url)
    try:
        with engine.begin() as connection:
            key = int(connection.exec_driver_sql("SELECT MAX(id) FROM runs").scalar_one())
            for index in schema.groups.indexes:
                index.drop(connection)
        _insert_steps(engine, run, key, bulk, ends)
        with engine.begin() as connection:
            for step in range(0, bulk + 1, size.evaluate_every):
                for record in run.evaluations(step):
                    insert_evaluation(connection, key, run.names.index(record.member), record)
        with engine.begin() as connection:
            for index in schema.groups.indexes:
                index.create(connection)
            _date(connection, run, key, bulk, ends)
    finally:
        engine.dispose()
    with Live(url, run, bulk) as live:
        while live.step < size.steps:
            live.commit()
        live.repeats()


def _bulk_engine(url: str) -> Engine:
    """One connection that does not wait for the disk; a store that was not finished is thrown away."""
    engine = locate(url).writer_engine()
    raw = engine.raw_connection()
    assert raw.driver_connection is not None
    for pragma in ("synchronous = OFF", f"cache_size = -{CACHE_KIB}"):
        raw.driver_connection.execute(f"PRAGMA {pragma}")
    raw.close()
    return engine


def _date(connection: Connection, run: BigRun, key: int, last: int, ends: float) -> None:
    """The run began when its steps say, and ended with the last one."""
    runs, begun = schema.runs, ends - STEP_SECONDS * (run.size.steps + 1)
    steps = {"first_step": 1, "last_step": last} if last else {}
    connection.execute(update(runs).where(runs.c.id == key).values(created=begun, **steps))


def _insert_steps(engine: Engine, run: BigRun, key: int, last: int, ends: float) -> None:
    """Steps 1 .. last as rows."""
    metrics = _Series(run, last)
    slots = {name: slot for slot, name in enumerate(run.names)}
    sums = Sums.zero(len(slots))
    for low in range(1, last + 1, CHUNK_STEPS):
        with engine.begin() as connection:
            for step in range(low, min(low + CHUNK_STEPS, last + 1)):
                drawn = run.draw(step)
                metrics.add(step, drawn.numerator, drawn.denominator)
                record, facts = run.step(drawn, said=False), run.facts(drawn)
                gates = [transfer_facts(one) for one in record.transfers]
                counts = count_step(record, slots, facts, gates)
                sums = sums.add(counts, {})
                batches = list(range(len(drawn.numbers))) * len(slots)
                moved = rows.transfer_rows(key, record, slots, gates)
                found: Iterable[tuple[Table, Rows]] = (
                    (schema.groups, rows.group_rows(key, record, slots, facts, batches)[0]),
                    *zip((schema.outcomes, schema.patterns), rows.outcome_rows(key, step, counts), strict=True),
                    *zip((schema.transfers, schema.grafted), moved, strict=True),
                    *zip((schema.member_counts, schema.pair_counts), rows.count_rows(key, step, sums), strict=True),
                    (schema.events, [event_row(key, event, step) for event in run.events(step)]),
                    (schema.steps, [_step_row(run, key, step, ends)]),
                )
                for table, values in found:
                    _insert(connection, table, values)
    for name, values in metrics.rows(engine, key):
        with engine.begin() as connection:
            _insert(connection, name, values)


def _step_row(run: BigRun, key: int, step: int, ends: float) -> dict[str, Any]:
    committed = ends - STEP_SECONDS * (run.size.steps - step)
    digest = hashlib.sha256(f"{run.uid} {step}".encode()).digest()
    return {"run": key, "step": step, "digest": digest, "lease_epoch": 1, "committed": committed}


def _insert(connection: Connection, table: Table, values: Rows) -> None:
    """As the driver takes it: SQLAlchemy's own way costs more than the rows."""
    if values:
        names = list(values[0])
        columns = ", ".join(f'"{name}"' for name in names)
        places = ", ".join(f":{name}" for name in names)
        connection.exec_driver_sql(f"INSERT INTO {table.name} ({columns}) VALUES ({places})", values)


class _Series:
    """Every metric of a run with its running sums, kept until they can be written series by series, as the key goes."""

    def __init__(self, run: BigRun, last: int) -> None:
        self._names = run.series
        self._slots = {name: slot for slot, name in enumerate(run.names)}
        shape = last, len(self._names)
        self._parts = {name: np.full(shape, np.nan) for name in ("numerator", "denominator")}

    def add(self, step: int, numerator: np.ndarray, denominator: np.ndarray) -> None:
        self._parts["numerator"][step - 1], self._parts["denominator"][step - 1] = numerator, denominator

    def rows(self, engine: Engine, key: int) -> Iterator[tuple[Table, Rows]]:
        """(table, rows) of one series after the other."""
        with engine.begin() as connection:
            ids = metric_ids(connection, (name for name, _ in self._names), {})
        places = [
            (ids[name], schema.WHOLE_RUN if member is None else self._slots[member], at)
            for at, (name, member) in enumerate(self._names)
        ]
        for name, member, at in sorted(places):
            values = self._one(at)
            if values:
                yield schema.metrics, [{"run": key, "name": name, "member": member, **row} for row in values]

    def _one(self, at: int) -> Rows:
        numerator, denominator = (self._parts[name][:, at] for name in ("numerator", "denominator"))
        recorded = np.flatnonzero(~np.isnan(denominator))
        top, bottom = numerator[recorded], denominator[recorded]
        finite = np.isfinite(top)
        high = low = 0.0
        sums = []
        for value in np.where(finite, top, 0.0).tolist():
            high, low = two_sum(high, low, value)
            sums.append((high, low))
        columns: Mapping[str, list[Any]] = {
            "step": (recorded + 1).tolist(),
            "numerator": [value if known else None for value, known in zip(top.tolist(), finite.tolist(), strict=True)],
            "denominator": bottom.tolist(),
            "finite": finite.astype(int).tolist(),
            "sum_numerator": [one[0] for one in sums],
            "sum_numerator_low": [one[1] for one in sums],
            "sum_denominator": np.cumsum(np.where(finite, bottom, 0.0)).tolist(),
            "count_finite": np.cumsum(finite).tolist(),
            "count_not_finite": np.cumsum(~finite).tolist(),
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class Live:
    """The writer of a run goes on after the last step that is recorded. Close it, or leave its `with` block, to leave
    the run as interrupted."""

    def __init__(self, url: str, run: BigRun, after: int | None = None) -> None:
        self._url, self._run = url, run
        if after is None:
            with open_reader(url) as reader:
                after = reader.run(run.uid).last_step or 0
        self.step = after
        self._next: StepRecord | None = None
        self._writer = open_writer(url)
        self._writer.resume_run(run.uid, after)

    def prepare(self) -> StepRecord:
        """Make the next step, so that its commit takes no longer than the store's part."""
        if self._next is None:
            self._next = self._run.step(self._run.draw(self.step + 1))
        return self._next

    def commit(self) -> int:
        """Commit the next step, and its evaluations when it has any; its number."""
        self._writer.commit(self.prepare())
        self.step, self._next = self.step + 1, None
        if self.step % self._run.size.evaluate_every == 0:
            for record in self._run.evaluations(self.step):
                self._writer.record_evaluation(record)
        return self.step

    def repeats(self) -> None:
        """Evaluate the best checkpoint of every member again."""
        with open_reader(self._url) as reader:
            best = {one.member: one.step for one in reader.best(self._run.uid)}
        for repeat in range(1, self._run.size.repeats + 1):
            for step in sorted(set(best.values())):
                for record in self._run.evaluations(step, repeat):
                    if best[record.member] == step:
                        self._writer.record_evaluation(record)

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=Size.steps)
    parser.add_argument("--prompts", type=int, default=Size.prompts)
    parser.add_argument("--live", type=float, default=0.0, metavar="SECONDS")
    arguments = parser.parse_args()
    size = Size(steps=arguments.steps, prompts=arguments.prompts)
    begun = time.perf_counter(), time.process_time()
    url = make(arguments.folder, size)
    wall, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
    megabytes = (arguments.folder / "store.db").stat().st_size / 1e6
    print(f"{url}: {megabytes:,.0f} MB, made in {wall:.0f} s ({cpu:.0f} s of CPU)", flush=True)
    if arguments.live:
        with Live(url, BigRun(size)) as live:
            while True:
                live.prepare()
                time.sleep(arguments.live)
                print(f"step {live.commit()}", flush=True)


if __name__ == "__main__":
    main()
