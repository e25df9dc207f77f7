"""Counts of a step: a case worked out by hand, and every stored count recomputed from raw rows and shards."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from server.store.counts import MEMBER_COUNTS, PAIR_COUNTS, count_step, group_facts, masks, transfer_facts, two_sum
from server.store.records import GraftedRecord, GroupRecord, ResponseRecord, StepRecord, TransferRecord
from tests.store.audit import audit
from tests.store.synthetic import make_store


def _group(member: str, prompt: int, rewards: list[int], *, ungraded: int = 0, finish: str = "stop") -> GroupRecord:
    responses = tuple(
        ResponseRecord(
            "x", np.arange(3, dtype=np.int32), np.zeros(3, np.float32), float(reward), 0.0, verdict, finish, 0
        )
        for reward, verdict in [(reward, reward) for reward in rewards] + [(0, -2)] * ungraded
    )
    return GroupRecord(member, prompt, responses)


def _grafted(index: int, s: float | None, weight: float, refusal: str | None) -> GraftedRecord:
    return GraftedRecord(index, s, weight, refusal, 3, -1.0, 3, -1.0)


@pytest.fixture(scope="module")
def small_step() -> StepRecord:
    """Three members and three prompts; b fails prompt 1, a and b fail prompt 2, c could not be graded on prompt 2."""
    groups = (
        _group("a", 1, [1, 0]), _group("b", 1, [0, 0], finish="length"), _group("c", 1, [1, 1]),
        _group("a", 2, [0, 0]), _group("b", 2, [0, 0]), _group("c", 2, [0], ungraded=1),
        _group("a", 3, [1, 0]), _group("b", 3, [0, 0]),
    )  # fmt: skip
    transfers = (
        TransferRecord("b", "a", 1, 0.5, False, False, (_grafted(0, 0.9, 0.9, None), _grafted(1, 0.5, 0.0, "floor"))),
        TransferRecord("b", "a", 3, 0.5, True, True),
        TransferRecord("a", "c", 2, 0.5, False, False, (_grafted(0, None, 0.0, "too_long"),)),
    )
    return StepRecord(1, (), groups, transfers)


def test_a_group_that_was_not_failed_whole_is_shared_but_not_received(small_step: StepRecord) -> None:
    pooled = TransferRecord("a", "b", 3, 0.5, False, False, (_grafted(0, 0.9, 1.0, None),))
    step = replace(small_step, transfers=(pooled,))
    counts = count_step(
        step, {"a": 0, "b": 1, "c": 2}, [group_facts(group) for group in step.groups], [transfer_facts(pooled)]
    )
    assert counts.member[:, MEMBER_COUNTS.index("received")].tolist() == [0, 0, 0]
    assert counts.pair[0, 1, PAIR_COUNTS.index("grafted")] == 1


def test_counts_of_a_small_step_are_those_worked_out_by_hand(small_step: StepRecord) -> None:
    slots = {"a": 0, "b": 1, "c": 2}
    counts = count_step(
        small_step,
        slots,
        [group_facts(group) for group in small_step.groups],
        [transfer_facts(transfer) for transfer in small_step.transfers],
    )
    member = {name: counts.member[:, place].tolist() for place, name in enumerate(MEMBER_COUNTS)}
    assert member == {
        "groups": [3, 3, 2], "all_fail": [1, 3, 0], "mixed": [2, 0, 0], "all_solved": [0, 0, 1], "errors": [0, 0, 1],
        "rollouts": [6, 6, 4], "successes": [2, 0, 2], "response_tokens": [18, 18, 12], "truncated": [0, 2, 0],
        "received": [0, 1, 0], "held_out": [0, 1, 0], "rescuable": [0, 2, 0], "any_peer": [0, 2, 0],
    }  # fmt: skip
    pair = {name: counts.pair[..., place].tolist() for place, name in enumerate(PAIR_COUNTS)}
    # c did not attempt prompt 3.
    assert pair["both_attempted_fail"] == [[0, 1, 1], [3, 0, 2], [0, 0, 0]]
    assert pair["solved"] == [[0, 0, 0], [2, 0, 1], [0, 0, 0]]
    # The group of c on prompt 2 was not graded wholly, so nobody is compared with it there.
    assert pair["both_graded"] == [[0, 3, 1], [3, 0, 1], [1, 1, 0]]
    assert pair["failed_beside"] == [[0, 1, 0], [3, 0, 1], [0, 0, 0]]
    assert pair["failed_together"] == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert pair["routed"] == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    assert pair["grafted"] == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert pair["held_out"] == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert pair["responses"] == [[0, 0, 1], [2, 0, 0], [0, 0, 0]]
    assert pair["refused_floor"] == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert pair["refused_other"] == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert pair["n_s"] == [[0, 0, 0], [2, 0, 0], [0, 0, 0]]
    assert counts.pair_sums[1, 0].tolist() == pytest.approx([1.4, 0.9])
    assert masks(counts.solved) == [0b101, 0, 0b001]
    assert masks(counts.attempted) == [0b111, 0b111, 0b011]
    assert masks(counts.all_fail) == [0b010, 0b011, 0b010]


def test_a_place_that_two_sources_give_to_is_one_place_and_two_transfers() -> None:
    groups = (_group("a", 1, [1, 0]), _group("b", 1, [0, 0]), _group("c", 1, [1, 0]))
    kept, dropped = _grafted(0, 0.9, 0.9, None), _grafted(0, 0.5, 0.0, "floor")
    transfers = (
        TransferRecord("b", "a", 1, 0.5, False, False, (kept,)),
        TransferRecord("b", "c", 1, 0.5, False, False, (kept, dropped)),
    )
    slots = {"a": 0, "b": 1, "c": 2}
    for held_out in (False, True):
        moved = tuple(replace(one, held_out=True, responses=()) if held_out else one for one in transfers)
        step = StepRecord(1, (), groups, moved)
        counts = count_step(step, slots, [group_facts(one) for one in groups], [transfer_facts(one) for one in moved])
        member = dict(zip(MEMBER_COUNTS, counts.member[1].tolist(), strict=True))
        assert (member["received"], member["held_out"]) == ((0, 1) if held_out else (1, 0))
        for source, responses in (("a", 1), ("c", 2)):
            pair = dict(zip(PAIR_COUNTS, counts.pair[1, slots[source]].tolist(), strict=True))
            routed = not held_out
            assert (pair["routed"], pair["grafted"], pair["held_out"]) == (routed, routed, held_out)
            assert pair["responses"] == responses * routed


def test_a_group_nobody_could_grade_is_neither_all_fail_nor_mixed() -> None:
    assert not _group("a", 1, [0, 0], ungraded=1).all_fail
    assert not _group("a", 1, [1, 0], ungraded=1).mixed
    assert _group("a", 1, [0, 0]).all_fail
    assert _group("a", 1, [1, 1]).all_solved


def test_a_reward_that_is_no_number_is_ungraded_and_no_failure() -> None:
    graded = _group("a", 1, [0, 0])
    spoilt = replace(graded, responses=(replace(graded.responses[0], reward=math.nan), graded.responses[1]))
    assert (spoilt.errors, spoilt.successes, spoilt.all_fail, spoilt.mixed) == (1, 0, False, False)
    assert group_facts(spoilt).errors == 1


def test_a_compatibility_that_is_no_number_enters_no_sum() -> None:
    facts = transfer_facts(
        TransferRecord(
            "a", "b", 1, 1.0, False, False, (_grafted(0, math.nan, math.nan, None), _grafted(1, 0.5, 0.5, None))
        )
    )
    assert (facts.admitted, facts.n_s, facts.sum_s, facts.sum_w) == (2, 1, 0.5, 0.5)


@pytest.mark.parametrize(("members", "seed"), [(1, 0), (2, 1), (3, 2), (5, 3)])
def test_every_stored_count_equals_its_recomputation_from_raw_rows_and_shards(
    url: str, members: int, seed: int
) -> None:
    make_store(url, members=members, steps=6, prompts=10, n=4, seed=seed, nan_loss_at=3, sources=members)
    assert audit(url) == []


def test_a_sum_in_two_doubles_survives_a_spike() -> None:
    high, low = 0.0, 0.0
    for value in (1e20, 1.0, 2.0, 3.0):
        high, low = two_sum(high, low, value)
    before = two_sum(0.0, 0.0, 1e20)
    assert (high - before[0]) + (low - before[1]) == 6.0
