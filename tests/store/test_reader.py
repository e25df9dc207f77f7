"""What the reader says equals what was written, for any window."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.store.reader import Reader, open_reader
from server.store.records import StoreError
from server.store.writer import open_writer
from tests.store.conftest import SHARED_STEPS
from tests.store.synthetic import Scenario, make_store

SCENARIO = Scenario(steps=SHARED_STEPS, prompts=16, nan_loss_at=5)
STEPS = [SCENARIO.step(step) for step in range(1, SHARED_STEPS + 1)]
EDGES = st.lists(st.integers(-3, SHARED_STEPS + 5), min_size=2, max_size=7).map(sorted)


def test_a_run_is_described_as_it_was_begun(reader: Reader) -> None:
    info, run = reader.run("latest"), SCENARIO.run()
    assert (info.uid, info.method, info.status) == ("synthetic", "graft", "finished")
    assert (info.first_step, info.last_step, info.total_steps) == (1, SHARED_STEPS, SHARED_STEPS)
    assert info.members == run.members
    assert info.config == run.config
    assert info.heartbeat is not None
    assert info.heartbeat >= info.created
    assert reader.runs() == [info] == [reader.run("synthetic")]
    with pytest.raises(StoreError, match="the newest are: synthetic"):
        reader.run("nothing")


def _counts_of(first: int, last: int) -> dict[str, list[int]]:
    groups = [group for step in STEPS[first - 1 : last] for group in step.groups]
    own = [[group for group in groups if group.member == name] for name in SCENARIO.names]
    return {
        "groups": [len(part) for part in own],
        "all_fail": [sum(group.all_fail for group in part) for part in own],
        "rollouts": [sum(group.n for group in part) for part in own],
        "successes": [sum(group.successes for group in part) for part in own],
    }


@pytest.mark.parametrize(("first", "last"), [(1, SHARED_STEPS), (1, 1), (7, 7), (6, 13), (SHARED_STEPS, SHARED_STEPS)])
def test_a_window_counts_its_steps_and_no_others(reader: Reader, first: int, last: int) -> None:
    counts = reader.member_counts("latest", first, last)
    for name, expected in _counts_of(first, last).items():
        assert counts[name].tolist() == expected


def test_a_window_is_clipped_to_what_is_committed(reader: Reader) -> None:
    whole = reader.pair_counts("latest", 1, SHARED_STEPS)
    wider = reader.pair_counts("latest", -5, 10_000)
    assert all(np.array_equal(whole[name], wider[name]) for name in whole)
    for first, last in ((SHARED_STEPS + 1, SHARED_STEPS + 9), (-9, 0), (9, 8)):
        assert not any(part.any() for part in reader.pair_counts("latest", first, last).values())
        assert not reader.member_counts("latest", first, last)["groups"].any()
        assert reader.metric("latest", "loss", first, last)[1].tolist() == [0, 0, 0]
        assert reader.patterns("latest", first, last) == ([], 0)
        assert reader.transfers("latest", first, last) == ([], 0)


@settings(max_examples=25, deadline=None)
@given(edges=EDGES)
def test_buckets_of_any_edges_add_up_to_their_windows(shared_store: str, edges: list[int]) -> None:
    with open_reader(shared_store) as reader:
        members, pairs = reader.member_history("latest", edges), reader.pair_history("latest", edges)
        loss, tokens = reader.metric_history("latest", "clip_peer", edges)
        union, prompts = reader.run_metric_history("latest", "union_solved", edges)
        whole = edges[0] + 1, edges[-1]
        for name, part in reader.member_counts("latest", *whole).items():
            assert np.array_equal(members[name].sum(axis=0), part)
        for name, part in reader.pair_counts("latest", *whole).items():
            np.testing.assert_allclose(pairs[name].sum(axis=0), part, atol=1e-9)
        np.testing.assert_allclose(loss.sum(axis=0), reader.metric("latest", "clip_peer", *whole)[0], atol=1e-9)
        np.testing.assert_allclose(tokens.sum(axis=0), reader.metric("latest", "clip_peer", *whole)[1], atol=1e-9)
        assert (union.sum(), prompts.sum()) == pytest.approx(reader.run_metric("latest", "union_solved", *whole))
        assert len(members["groups"]) == len(edges) - 1


def test_edges_that_fall_or_make_no_bucket_are_refused(reader: Reader) -> None:
    for edges in ([3], [], [5, 3]):
        with pytest.raises(StoreError, match="ascending order"):
            reader.member_history("latest", edges)


def test_complementarity_is_the_share_of_failed_prompts_a_peer_solved(reader: Reader) -> None:
    share, support = reader.complementarity("latest", 4, 11)
    for i, receiver in enumerate(SCENARIO.names):
        for j, source in enumerate(SCENARIO.names):
            solved = [
                any(peer.member == source and peer.prompt == own.prompt and peer.successes for peer in step.groups)
                for step in STEPS[3:11]
                for own in step.groups
                if own.member == receiver and own.all_fail
            ]
            if i == j:
                assert np.isnan(share[i, j])
            else:
                assert support[i, j] == len(solved)
                assert share[i, j] == pytest.approx(sum(solved) / len(solved))


def test_complementarity_without_support_is_unknown_not_zero(reader: Reader) -> None:
    share, support = reader.complementarity("latest", SHARED_STEPS + 1, SHARED_STEPS + 2)
    assert np.isnan(share).all()
    assert not support.any()


def test_metrics_are_summed_over_the_steps_that_recorded_them(reader: Reader) -> None:
    # clip_peer is not recorded in steps divisible by three.
    _, _, recorded, not_finite = reader.metric_buckets("latest", ["clip_peer"], [0, 3, 6])["clip_peer"]
    assert recorded.tolist() == [[2, 2, 2], [2, 2, 2]]
    assert not not_finite.any()
    _, denominator = reader.metric_history("latest", "clip_peer", [2, 3, 4])
    assert denominator[0].tolist() == [0, 0, 0]
    assert (denominator[1] > 0).all()
    numerator, denominator = reader.metric("latest", "loss", 2, 9)
    values = [
        [one for step in STEPS[1:9] for one in step.metrics if one.name == "loss" and one.member == name]
        for name in SCENARIO.names
    ]
    expected = [sum(one.numerator for one in part if np.isfinite(one.numerator)) for part in values]
    np.testing.assert_allclose(numerator, expected)
    assert denominator.tolist() == [4 * 7, 4 * 8, 4 * 8]
    assert reader.metric("latest", "no such metric", 1, 9)[1].tolist() == [0, 0, 0]
    assert {"loss", "union_solved", "step_seconds", "clip_peer"} <= set(reader.metric_names("latest"))


def test_a_series_has_every_point_and_nothing_where_none_was_recorded(reader: Reader) -> None:
    steps, numerator, denominator = reader.metric_series("latest", "loss", 4, 6)
    assert steps.tolist() == [4, 5, 6]
    assert np.isnan(numerator[:, 0]).tolist() == [False, True, False]
    assert np.isnan(denominator[:, 0]).tolist() == [False, True, False]
    assert not np.isnan(numerator[:, 1:]).any()
    steps, numerator, _ = reader.metric_series("latest", "clip_peer", 1, 4)
    assert steps.tolist() == [1, 2, 4]
    assert numerator.shape == (3, 3)


def test_patterns_count_who_solved_what(reader: Reader) -> None:
    expected: dict[tuple[bool, ...], int] = {}
    for step in STEPS[2:9]:
        for prompt in step.prompts:
            solved = {group.member for group in step.groups if group.prompt == prompt.key and group.successes}
            pattern = tuple(name in solved for name in SCENARIO.names)
            expected[pattern] = expected.get(pattern, 0) + 1
    shown, total = reader.patterns("latest", 3, 9)
    assert dict(shown) == expected
    assert total == sum(expected.values()) == 7 * 16
    assert [count for _, count in shown] == sorted(expected.values(), reverse=True)
    assert reader.patterns("latest", 3, 9, limit=2) == (shown[:2], total)


def test_drill_down_pages_through_exactly_the_prompts_of_a_cell(reader: Reader) -> None:
    receiver, source = SCENARIO.names[0], SCENARIO.names[2]
    pages = [
        reader.prompts_for("latest", receiver, source, 5, 20, offset=offset, limit=7) for offset in range(0, 200, 7)
    ]
    rows = [row for page, _ in pages for row in page]
    assert {total for _, total in pages} == {len(rows)}
    assert len({(row.step, row.prompt) for row in rows}) == len(rows)
    assert [row.step for row in rows] == sorted((row.step for row in rows), reverse=True)
    solved = reader.pair_counts("latest", 5, 20)["solved"]
    assert len(rows) == solved[0, 2]
    outcomes = {"grafted": 0, "refused": 0, "held out": 0, "": 0}
    for row in rows:
        step = STEPS[row.step - 1]
        own = next(group for group in step.groups if group.prompt == row.prompt and group.member == receiver)
        peer = next(group for group in step.groups if group.prompt == row.prompt and group.member == source)
        assert own.all_fail
        assert (row.receiver_successes, row.receiver_n) == (0, own.n)
        assert (row.source_successes, row.source_n) == (peer.successes, peer.n)
        outcomes[row.transfer] += 1
    counts = reader.pair_counts("latest", 5, 20)
    assert outcomes["grafted"] == counts["grafted"][0, 2]
    assert outcomes["held out"] == counts["held_out"][0, 2]
    assert outcomes["refused"] == counts["routed"][0, 2] - counts["grafted"][0, 2]


@pytest.mark.parametrize("verdict", [None, "admitted", "refused", "held out"])
@pytest.mark.parametrize("pair", [(None, None), (0, None), (None, 1), (2, 1)])
def test_transfers_are_paged_and_filtered(reader: Reader, verdict, pair) -> None:
    receiver, source = (None if slot is None else SCENARIO.names[slot] for slot in pair)
    rows, total = reader.transfers("latest", 3, 20, receiver=receiver, source=source, verdict=verdict, limit=10_000)
    assert len(rows) == total
    expected = [
        (step.step, one.receiver, one.source, one.prompt)
        for step in STEPS[2:20]
        for one in step.transfers
        if receiver in (None, one.receiver) and source in (None, one.source) and verdict in (None, _verdict(one))
    ]
    assert sorted((row.step, row.receiver, row.source, row.prompt) for row in rows) == sorted(expected)
    assert all(verdict in (None, row.verdict) for row in rows)
    paged = [row for offset in range(0, total, 9) for row in _page(reader, receiver, source, verdict, offset)]
    assert paged == rows


def _page(reader: Reader, receiver, source, verdict, offset):
    rows, _ = reader.transfers(
        "latest", 3, 20, receiver=receiver, source=source, verdict=verdict, offset=offset, limit=9
    )
    return rows


def _verdict(transfer) -> str:
    if transfer.held_out:
        return "held out"
    return "admitted" if any(one.refusal is None for one in transfer.responses) else "refused"


def test_a_trajectory_is_read_back_exactly(reader: Reader) -> None:
    for step in STEPS[::5]:
        for transfer in step.transfers:
            seen = reader.trajectory("latest", step.step, transfer.prompt, transfer.receiver)
            (peer,) = seen.peers
            assert peer.transfer == transfer
            assert seen.prompt == next(prompt for prompt in step.prompts if prompt.key == transfer.prompt)
            for found, name in ((seen.own, transfer.receiver), (peer.group, transfer.source)):
                written = next(one for one in step.groups if one.member == name and one.prompt == transfer.prompt)
                _same_group(found, written)


def test_every_source_of_a_place_is_read_back(url: str) -> None:
    scenario = Scenario(members=4, steps=3, prompts=20, n=4, sources=3)
    url = make_store(url, members=4, steps=3, prompts=20, n=4, sources=3)
    several = 0
    with open_reader(url) as reader:
        for number in (1, 2, 3):
            step = scenario.step(number)
            rows, total = reader.transfers("latest", number, number, limit=1000)
            assert len(rows) == total == len(step.transfers)
            for place in {(one.prompt, one.receiver) for one in step.transfers}:
                written = [one for one in step.transfers if (one.prompt, one.receiver) == place]
                seen = reader.trajectory("latest", number, *place)
                assert [peer.transfer for peer in seen.peers] == sorted(
                    written, key=lambda one: scenario.names.index(one.source)
                )
                for one in written:
                    peer = seen.peer(one.source)
                    assert peer is not None
                    assert peer.transfer == one
                    assert peer.group is not None
                    assert peer.group.member == one.source
                assert seen.peer("nobody") is seen.peer() is seen.peers[0]
                several += len(written) > 1
            received = reader.member_counts("latest", number, number)["received"].sum()
            assert received <= reader.pair_counts("latest", number, number)["grafted"].sum()
    assert several > 5


def _same_group(found, written) -> None:
    assert (found.member, found.prompt, found.n) == (written.member, written.prompt, written.n)
    for one, other in zip(found.responses, written.responses, strict=True):
        assert one.token_ids.dtype == np.int32
        assert one.logprobs.dtype == np.float32
        assert np.array_equal(one.token_ids, other.token_ids)
        assert np.array_equal(one.logprobs, other.logprobs)
        assert (one.text, one.reward, one.advantage) == (other.text, other.reward, other.advantage)
        assert (one.verdict, one.finish, one.weight_version) == (other.verdict, other.finish, other.weight_version)


def test_a_group_without_a_transfer_is_shown_alone(reader: Reader) -> None:
    solved = next(group for group in STEPS[0].groups if group.successes)
    seen = reader.trajectory("latest", 1, solved.prompt, solved.member)
    assert (seen.peers, seen.peer()) == ((), None)
    with pytest.raises(StoreError, match="no group of"):
        reader.trajectory("latest", 1, 12345, solved.member)
    with pytest.raises(StoreError, match="no member 'nobody'"):
        reader.trajectory("latest", 1, solved.prompt, "nobody")


def test_a_lost_or_damaged_shard_is_named(url: str, tmp_path: Path) -> None:
    make_store(url, steps=1, prompts=2)
    group = Scenario(steps=1, prompts=2).step(1).groups[0]
    (shard,) = tmp_path.glob(f"store_trajectories/synthetic/*{group.member}*")
    content = shard.read_bytes()
    with open_reader(url) as reader:
        reader.trajectory("latest", 1, group.prompt, group.member)
        shard.write_bytes(content[: len(content) // 2])
        with pytest.raises(StoreError, match=f"{shard.name} is damaged"):
            reader.trajectory("latest", 1, group.prompt, group.member)
        shard.unlink()
        with pytest.raises(StoreError, match=f"{shard.name} is missing"):
            reader.trajectory("latest", 1, group.prompt, group.member)


def test_evaluations_are_listed_with_their_intervals(reader: Reader) -> None:
    summaries = reader.evaluations("latest")
    steps = [step for step in range(SHARED_STEPS + 1) if step % 5 == 0]
    assert len(summaries) == 2 * len(steps) * 3
    for summary in summaries:
        record = next(
            one
            for one in SCENARIO.evaluations(summary.step)
            if (one.member, one.benchmark) == (summary.member, summary.benchmark)
        )
        assert summary.mean == pytest.approx(np.mean([correct / n for _, correct, n in record.problems]))
        assert 0 <= summary.low < summary.mean < summary.high <= 1
        assert (summary.problems, summary.responses, summary.seeds) == (40, 160, 1)
    assert [one.benchmark for one in summaries] == sorted(one.benchmark for one in summaries)


def test_the_revision_changes_with_everything_but_a_heartbeat(url: str) -> None:
    scenario = Scenario(steps=3, prompts=2, n=2)
    with open_writer(url) as writer:
        writer.start_run(scenario.run())
        with open_reader(url) as reader:
            seen = [reader.revision("latest")]
            assert writer.heartbeat()
            assert reader.revision("latest") == seen[0]
            writer.commit(scenario.step(1))
            seen.append(reader.revision("latest"))
            writer.event(scenario.step(7).events[0])
            seen.append(reader.revision("latest"))
            writer.record_evaluation(scenario.evaluations(1)[0])
            seen.append(reader.revision("latest"))
            writer.finish("failed", "out of memory")
            seen.append(reader.revision("latest"))
            assert seen == sorted(set(seen))
            assert (reader.run("latest").status, reader.run("latest").message) == ("failed", "out of memory")


def test_an_empty_run_reads_as_nothing_yet(url: str) -> None:
    with open_writer(url) as writer, open_reader(url) as reader:
        assert reader.runs() == []
        with pytest.raises(StoreError, match="no run yet"):
            reader.run("latest")
        writer.start_run(Scenario().run())
        assert reader.run("latest").last_step is None
        assert reader.member_counts("latest", 1, 10)["groups"].tolist() == [0, 0, 0]
        assert reader.member_history("latest", [0, 5, 10])["groups"].shape == (2, 3)
        assert reader.metric_names("latest") == []
        assert reader.events("latest") == []
        assert reader.evaluations("latest") == []


def test_several_threads_may_read_at_once(reader: Reader) -> None:
    expected = reader.member_counts("latest", 3, 9)["successes"].tolist()
    faults: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(20):
                assert reader.member_counts("latest", 3, 9)["successes"].tolist() == expected
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert faults == []


def test_the_reader_cannot_write(reader: Reader) -> None:
    with pytest.raises(StoreError, match=r"cannot open|does not allow this user"), reader._connection() as connection:
        connection.exec_driver_sql("DELETE FROM runs")


def test_an_absent_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        open_reader(f"sqlite:///{tmp_path / 'none.db'}")
    assert not list(tmp_path.iterdir())
    for url in ("mysql://me:secret@host/db", "postgresql://me:secret@host", "sqlite://", "nonsense://"):
        with pytest.raises(StoreError) as caught:
            open_reader(url)
        assert "secret" not in str(caught.value)


def test_the_mark_of_a_step_stays_until_the_run_goes_on_from_before_it(url: str) -> None:
    scenario = Scenario(steps=8, prompts=4, n=2)
    with open_writer(url) as writer:
        writer.start_run(scenario.run())
        for step in range(1, 6):
            writer.commit(scenario.step(step))
    with open_reader(url) as store:
        assert store.newest_step("latest", 0) is None
        third = store.newest_step("latest", 3)
        assert third is not None
        assert third.step == 3
        assert store.newest_step("latest", 99) == store.newest_step("latest", 5)
        with open_writer(url) as writer:
            writer.resume_run("synthetic", 3)
            writer.commit(scenario.step(4))
            assert store.newest_step("latest", 3) == third
            fourth = store.newest_step("latest", 4)
        with open_writer(url) as writer:
            writer.resume_run("synthetic", 2)
            assert store.newest_step("latest", 4) == store.newest_step("latest", 2)
            for step in (3, 4):
                writer.commit(scenario.step(step))
            assert store.newest_step("latest", 3) != third
            assert store.newest_step("latest", 4) != fourth
