"""A run goes on exactly where it is told to; one process writes it at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from server.store.commit import write_shards
from server.store.lease import Holder
from server.store.reader import open_reader
from server.store.records import EventRecord, LeaseError, StepRecord, StoreError
from server.store.run_state import HeldRun
from server.store.trajectories import Shard
from server.store.writer import Writer, open_writer
from tests.store.audit import audit
from tests.store.backends import raw, shards_of
from tests.store.synthetic import Scenario, write_run

SCENARIO = Scenario(steps=8, prompts=6, n=4, nan_loss_at=3)
ROOT = Path(__file__).parents[2]
# What differs between two runs of the same content: clocks, leases, places, remarks, and numbering by insertion.
VOLATILE = {
    "runs": {"created", "heartbeat", "revision", "lease_epoch", "lease_until", "writer", "trajectories"},
    "steps": {"committed", "lease_epoch"},
    "events": {"created", "id"},
}


def _tables(url: str) -> dict[str, list[str]]:
    content = {}
    with raw(url) as database:
        for name in database.tables():
            kept = [column for column in database.columns(name) if column not in VOLATILE.get(name, set())]
            rows = database.rows(f"SELECT * FROM {name}")
            content[name] = sorted(repr([row[column] for column in kept]) for row in rows)
    return content


def _files(url: str) -> set[str]:
    return {path.name for path in shards_of(url).rglob("*") if path.is_file()}


@pytest.mark.parametrize(("stopped_at", "resumed_from"), [(5, 5), (8, 3), (4, 0)])
def test_a_resumed_run_leaves_the_rows_and_files_of_an_uninterrupted_one(
    new_url: Callable[[str], str], stopped_at: int, resumed_from: int
) -> None:
    straight, broken = new_url("straight"), new_url("broken")
    with open_writer(straight) as writer:
        write_run(writer, SCENARIO, evaluate_every=2)
    with open_writer(broken) as writer:
        write_run(writer, SCENARIO, until=stopped_at, evaluate_every=2, status="running")
    with open_writer(broken) as writer:
        writer.resume_run("synthetic", resumed_from)
        assert writer.last_step == (resumed_from or None)
        for step in range(resumed_from + 1, SCENARIO.steps + 1):
            writer.commit(SCENARIO.step(step))
            if step % 2 == 0:
                for record in SCENARIO.evaluations(step):
                    writer.record_evaluation(record)
        writer.finish("finished")
    assert audit(broken) == []
    assert _tables(broken) == _tables(straight)
    assert _files(broken) == _files(straight)


def test_resuming_removes_what_came_later_and_keeps_what_belongs_to_no_step(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    writer.event(EventRecord("info", "started"))
    for step in range(1, 5):
        writer.commit(SCENARIO.step(step))
        writer.record_evaluation(SCENARIO.evaluations(step)[0])
        writer.event(EventRecord("warning", f"in step {step}", step=step))
    writer.finish("failed", "power")
    writer.resume_run("synthetic", 2)
    with open_reader(url) as reader:
        assert (reader.run("latest").status, reader.run("latest").message) == ("running", "")
        assert reader.run("latest").last_step == 2
        assert [event.message for event in reader.events("latest")] == ["in step 2", "in step 1", "started"]
        assert [one.step for one in reader.evaluations("latest")] == [1, 2]
        assert reader.metric_series("latest", "loss", 1, 9)[0].tolist() == [1, 2]
        assert reader.size()["groups"] == 2 * 3 * 6
    other = replace(SCENARIO.step(3), metrics=())
    assert writer.commit(other)


def test_resuming_after_the_end_of_the_record_is_refused(writer: Writer) -> None:
    writer.start_run(SCENARIO.run())
    writer.commit(SCENARIO.step(1))
    writer.finish("interrupted")
    with pytest.raises(StoreError, match="resume from a checkpoint of step 1 or before"):
        writer.resume_run("synthetic", 2)
    with pytest.raises(StoreError, match="no run other"):
        writer.resume_run("other", 0)


def test_a_run_may_be_resumed_to_go_on_longer(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    writer.commit(SCENARIO.step(1))
    with pytest.raises(StoreError, match="still holds run synthetic; finish it first"):
        writer.resume_run("synthetic", 1)
    writer.finish("finished")
    writer.resume_run("synthetic", 1, total_steps=50)
    with open_reader(url) as reader:
        assert reader.run("latest").total_steps == 50
        writer.finish("finished")
        writer.resume_run("synthetic", 1)
        assert reader.run("latest").total_steps == 50


def test_resuming_sweeps_the_files_no_step_names_and_only_in_its_own_folder(url: str) -> None:
    with open_writer(url) as writer:
        writer.start_run(SCENARIO.run())
        writer.commit(SCENARIO.step(1))
    folder = shards_of(url)
    kept = set((folder / "synthetic").iterdir())
    other = folder / "another-run"
    other.mkdir()
    for orphan in ("step_000002_x_00000000.arrow", "step_000002_x_00000000.arrow.tmp"):
        (folder / "synthetic" / orphan).touch()
        (other / orphan).touch()
    (folder / "synthetic" / "notes.txt").touch()
    with open_writer(url) as writer:
        writer.resume_run("synthetic", 1)
    assert set((folder / "synthetic").iterdir()) == kept | {folder / "synthetic" / "notes.txt"}
    assert len(list(other.iterdir())) == 2


def test_a_second_writer_of_a_run_is_refused_by_name_and_one_of_another_run_is_not(url: str) -> None:
    with open_writer(url) as first, open_writer(url) as second:
        first.start_run(SCENARIO.run())
        first.commit(SCENARIO.step(1))
        with pytest.raises(LeaseError, match=rf"process {Holder.this_process().pid} on .*; stop it, or wait"):
            second.resume_run("synthetic", 1)
        second.start_run(replace(SCENARIO.run(), uid="second"))
        second.commit(SCENARIO.step(1))
        assert first.commit(SCENARIO.step(2))
        assert second.commit(SCENARIO.step(2))
    assert audit(url) == []


def test_a_writer_whose_lease_ran_out_and_was_taken_can_write_nothing_more(url: str) -> None:
    first, second = open_writer(url, lease_seconds=0.0), open_writer(url)
    first.start_run(SCENARIO.run())
    first.commit(SCENARIO.step(1))
    second.resume_run("synthetic", 1)
    calls = (
        lambda: first.commit(SCENARIO.step(2)),
        first.heartbeat,
        lambda: first.event(EventRecord("info", "still here")),
        lambda: first.record_evaluation(SCENARIO.evaluations(1)[0]),
        lambda: first.finish("finished"),
    )
    for call in calls:
        with pytest.raises(LeaseError, match="was taken over by process"):
            call()
    first.close()
    assert second.commit(SCENARIO.step(2))
    with open_reader(url) as reader:
        assert reader.run("latest").status == "running"
        assert reader.events("latest") == []
    second.close()
    assert audit(url) == []


def test_a_writer_that_loses_its_lease_in_a_commit_leaves_the_files_of_its_successor(url: str, monkeypatch) -> None:
    first, second = open_writer(url, lease_seconds=0.0), open_writer(url)
    first.start_run(SCENARIO.run())
    first.commit(SCENARIO.step(1))

    def overtaken(root: Path, held: HeldRun, step: StepRecord) -> dict[int, Shard]:
        written = write_shards(root, held, step)
        if second._held is None:
            second.resume_run("synthetic", 1)
            write_shards(root, second._run(), step)
        return written

    monkeypatch.setattr("server.store.writer.write_shards", overtaken)
    with pytest.raises(LeaseError, match="was taken over by process"):
        first.commit(SCENARIO.step(2))
    names = {file.name for file in shards_of(url).rglob("step_000002_*.arrow")}
    assert len(names) == len(SCENARIO.run().members)
    assert second.commit(SCENARIO.step(2))
    second.close()
    first.close()
    assert audit(url) == []


def test_a_heartbeat_renews_the_lease(url: str) -> None:
    with open_writer(url, lease_seconds=60) as writer:
        writer.start_run(SCENARIO.run())
        with raw(url) as database:
            database.execute("UPDATE runs SET lease_until = 0, heartbeat = 0")
            assert writer.heartbeat()
            (run,) = database.rows("SELECT lease_until, heartbeat FROM runs")
    assert run["lease_until"] == pytest.approx(run["heartbeat"] + 60)
    assert run["heartbeat"] > 0


def test_a_heartbeat_that_finds_the_database_locked_says_so_and_harms_nothing(url: str, monkeypatch) -> None:
    monkeypatch.setattr("server.store.location.WRITER_WAIT_MS", 50)
    with open_writer(url) as writer:
        writer.start_run(SCENARIO.run())
        with raw(url) as other:
            other.execute("BEGIN IMMEDIATE" if url.startswith("sqlite") else "BEGIN")
            other.execute("UPDATE runs SET revision = revision")
            assert not writer.heartbeat()
            with pytest.raises(StoreError, match=r"locked; close what writes to it|is busy .*lock timeout"):
                writer.commit(SCENARIO.step(1))
            other.execute("ROLLBACK")
        assert writer.heartbeat()
        assert writer.commit(SCENARIO.step(1))


def test_a_run_whose_process_was_killed_is_resumed_at_once(url: str) -> None:
    program = (
        "import os, signal\n"
        "from server.store.writer import open_writer\n"
        "from tests.store.synthetic import Scenario\n"
        f"writer = open_writer({url!r})\n"
        f"scenario = Scenario(steps=8, prompts=6, n=4, nan_loss_at=3)\n"
        "writer.start_run(scenario.run())\n"
        "writer.commit(scenario.step(1))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    with open_reader(url) as reader:
        assert reader.run("latest").status == "running"
    with open_writer(url) as writer:
        writer.resume_run("synthetic", 1)
        assert writer.commit(SCENARIO.step(2))
    with open_reader(url) as reader:
        assert reader.run("latest").status == "interrupted"


def test_only_a_process_that_is_certainly_gone_counts_as_dead() -> None:
    here = Holder.this_process()
    assert Holder.parse(str(here)) == here
    assert Holder.parse("nonsense") is None
    assert not here.certainly_dead()
    # A process id that was given to another process since.
    assert replace(here, started="1").certainly_dead()
    # Another host or container, another machine of this name, or a host that does not tell: unknown, hence alive.
    assert not replace(here, boot="another boot", started="1").certainly_dead()
    assert not replace(here, host="elsewhere", started="1").certainly_dead()
    assert not replace(here, namespace="pid:[1]", started="1").certainly_dead()
    assert not replace(here, boot="", started="1").certainly_dead()


def test_sums_go_on_when_an_interrupt_hid_a_commit_from_the_writer(writer: Writer, url: str, monkeypatch) -> None:
    writer.start_run(SCENARIO.run())
    writer.commit(SCENARIO.step(1))
    insert = Writer._insert

    def interrupted(self, held, step, digest, shards) -> None:
        sums, last_step = held.sums, held.last_step
        insert(self, held, step, digest, shards)
        held.sums, held.last_step = sums, last_step
        raise KeyboardInterrupt

    monkeypatch.setattr(Writer, "_insert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.commit(SCENARIO.step(2))
    monkeypatch.undo()
    assert not writer.commit(SCENARIO.step(2))
    assert writer.commit(SCENARIO.step(3))
    assert audit(url) == []
    with open_reader(url) as reader:
        assert np.all(reader.member_counts("latest", 1, 3)["groups"] == 18)
