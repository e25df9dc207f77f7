"""The generator of the benchmarks' big store: what it puts in past the writer is what the writer would have put in."""

from __future__ import annotations

from pathlib import Path

from server.store.counts import group_facts
from server.store.reader import open_reader
from server.store.verify import verify
from tests.benchmarks.big_run import Benchmark, BigRun, Size
from tests.benchmarks.big_store import Live, make
from tests.benchmarks.page_questions import PAGES, refresh

SIZE = Size(
    steps=50,
    prompts=2_000,
    batch=48,
    n=4,
    kept=3,
    evaluate_every=10,
    benchmarks=(Benchmark("long", 20, "test"), Benchmark("validation", 10, "validation")),
    repeats=2,
)


def test_a_store_made_in_bulk_is_whole_and_can_be_written_on(tmp_path: Path) -> None:
    url = make(tmp_path / "big", SIZE, others=[("grpo", 0)])
    found = verify(url)
    assert (found.faults, found.orphans, found.notes) == ([], [], [])
    assert (found.runs, found.steps, found.pruned_steps) == (2, 55, 50)
    with Live(url, BigRun(SIZE)) as live:
        assert [live.commit() for _ in range(10)] == list(range(51, 61))
    assert verify(url).faults == []
    with open_reader(url) as reader:
        run = reader.run("latest")
        assert (run.uid, run.first_step, run.last_step) == ("big-graft-0", 1, 60)
        # Evaluated in bulk, by the writer and again.
        assert {one.step for one in reader.evaluations(run.uid)} == set(range(0, 61, 10))
        assert {one.repeat for one in reader.repeats(run.uid)} == {1, 2}
        # A second visit of every prompt has begun, so grafts can be followed.
        assert reader.uptake(run.uid, 1, 60)[1]["grafted_seen"] > 0
        assert reader.events(run.uid)
        for number in range(len(PAGES)):
            assert refresh(reader, number) > 0


def test_a_store_that_is_there_is_taken_as_it_is(tmp_path: Path) -> None:
    url = make(tmp_path / "big", Size(steps=4, prompts=64, members=2, batch=8, n=2, kept=2), others=[])
    before = (tmp_path / "big" / "store.db").stat().st_mtime_ns
    assert make(tmp_path / "big", SIZE) == url
    assert (tmp_path / "big" / "store.db").stat().st_mtime_ns == before


def test_a_step_is_the_same_told_as_counts_and_as_a_record_and_whenever_it_is_drawn() -> None:
    run = BigRun(SIZE)
    drawn = run.draw(7)
    told, short = run.step(drawn), BigRun(SIZE).step(BigRun(SIZE).draw(7), said=False)
    assert [group_facts(group) for group in told.groups] == run.facts(drawn)
    assert [(group.member, group.prompt) for group in told.groups] == [(g.member, g.prompt) for g in short.groups]
    assert told.transfers == short.transfers
    assert told.transfers
