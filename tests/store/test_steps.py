"""Whole steps read back: what was judged, what moved, what was said; and replays kept beside their run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from server.store.reader import GroupCounts, Reader, ReplayRecord, open_reader
from server.store.records import SchemaError, StoreError, TransferRecord
from server.store.replays import record_replay
from server.store.writer import open_writer
from tests.store.backends import shards_of
from tests.store.conftest import SHARED_STEPS
from tests.store.synthetic import Scenario, make_store

RUN = "synthetic"


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario(3, SHARED_STEPS, 16, nan_loss_at=5)


def test_counts_and_words_of_a_step_come_back_in_recorded_order(reader: Reader, scenario: Scenario) -> None:
    step = scenario.step(7)
    for name in scenario.names:
        written = [group for group in step.groups if group.member == name]
        counts = reader.group_counts(RUN, 7)[name]
        assert list(counts.items()) == [(g.prompt, GroupCounts(g.n, g.successes, g.errors)) for g in written]
        read = reader.groups(RUN, 7, name)
        assert [group.prompt for group in read] == [group.prompt for group in written]
        for one, other in zip(read[3].responses, written[3].responses, strict=True):
            assert (one.text, one.reward, one.finish) == (other.text, other.reward, other.finish)
            np.testing.assert_array_equal(one.logprobs, other.logprobs)
        assert [group.prompt for group in reader.groups(RUN, 7, name, {written[4].prompt, written[9].prompt, 1})] == [
            written[4].prompt,
            written[9].prompt,
        ]


def test_transfers_of_a_step_come_back_whole(reader: Reader, scenario: Scenario) -> None:
    def place(transfer: TransferRecord) -> tuple[int, int, int]:
        slots = scenario.names
        return slots.index(transfer.receiver), transfer.prompt, slots.index(transfer.source)

    moved = 0
    for step in range(1, SHARED_STEPS + 1):
        read = reader.step_transfers(RUN, step)
        assert read == sorted(scenario.step(step).transfers, key=place)
        moved += len(read)
    assert moved > 50


def test_visits_name_every_prompt_a_member_was_asked(reader: Reader, scenario: Scenario) -> None:
    name = scenario.names[1]
    visits = reader.visits(RUN, name)
    assert list(visits) == list(range(1, SHARED_STEPS + 1))
    for step in (1, 9):
        assert list(visits[step].items()) == [(g.prompt, g.n) for g in scenario.step(step).groups if g.member == name]


def test_a_missing_or_cut_shard_is_named_before_it_is_needed(url: str) -> None:
    make_store(url, members=2, steps=3, prompts=2, n=2)
    shards = sorted((shards_of(url) / RUN).glob("step_000002_*"))
    with open_reader(url) as reader:
        name = reader.run(RUN).members[0].name
        reader.check_shards(RUN, name, {1, 2, 3})
        shard = next(path for path in shards if name in path.name)
        shard.write_bytes(shard.read_bytes()[:-8])
        with pytest.raises(StoreError, match=rf"{shard.name} has \d+ bytes of \d+; restore it"):
            reader.check_shards(RUN, name, {1, 2, 3})
        shard.unlink()
        with pytest.raises(StoreError, match=f"{shard.name} is missing; restore it"):
            reader.check_shards(RUN, name, {2})
        reader.check_shards(RUN, name, {1, 3})


def test_a_replay_is_kept_with_its_run_and_leaves_with_the_steps_it_read(url: str) -> None:
    make_store(url, members=2, steps=4, prompts=2, n=2, status="interrupted")
    whole = ReplayRecord(RUN, 1, 4, {"set": ["exchange.floor=0.7"]}, {"routed": {"numerator": 3, "denominator": 4}})
    part = ReplayRecord(RUN, 1, 2, {}, {})
    with open_reader(url) as reader:
        before = reader.revision(RUN)
        first, second = record_replay(url, whole), record_replay(url, part)
        assert [(info.id, info.record) for info in reader.replays(RUN)] == [(second, part), (first, whole)]
        assert reader.revision(RUN) == before
        with open_writer(url) as writer:
            writer.resume_run(RUN, 2)
        assert [info.record for info in reader.replays(RUN)] == [part]


def test_a_replay_of_nothing_is_refused_in_one_line(url: str, tmp_path: Path) -> None:
    make_store(url, members=2, steps=1, prompts=2, n=2)
    with pytest.raises(StoreError, match=f"no run 'other'; the newest are: {RUN}"):
        record_replay(url, ReplayRecord("other", 1, 1, {}, {}))
    with pytest.raises((StoreError, SchemaError)):
        record_replay(str(tmp_path / "absent.db"), ReplayRecord(RUN, 1, 1, {}, {}))
    assert not (tmp_path / "absent.db").exists()
