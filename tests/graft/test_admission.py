"""Which transferred responses take part."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.admission import Arrivals, everything, gate, gated_successes, one_success, random_admission
from graft.compatibility import admission_weight, compatibility

RULES = [gate, everything, random_admission, gated_successes, one_success]
REASONS = {
    gate: {"floor"},
    everything: set(),
    random_admission: {"not_drawn"},
    gated_successes: {"floor", "failure"},
    one_success: {"failure", "not_drawn"},
}
responses = st.lists(st.tuples(st.floats(1e-6, 3), st.sampled_from([0.0, 1.0]), st.integers(0, 4)), max_size=30)


def arrivals_of(rows):
    s, rewards, slot = zip(*rows, strict=True) if rows else ((), (), ())
    return Arrivals(np.array(s, np.float64), np.array(rewards, np.float64), np.array(slot, np.int64))


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("rule", RULES)
@given(rows=responses, floor=st.sampled_from([0.0, 0.7, 0.8, 0.9]), seed=st.integers(0, 99))
def test_a_response_has_a_weight_or_a_reason_never_both(rule, rows, floor, seed):
    found = rule(arrivals_of(rows), floor, rng(seed))
    assert found.weights.shape == (len(rows),)
    assert [reason is None for reason in found.reasons] == (found.weights > 0).tolist()
    assert {reason for reason in found.reasons if reason} <= REASONS[rule]
    assert (found.weights <= 1).all()
    again = rule(arrivals_of(rows), floor, rng(seed))
    assert (found.weights.tolist(), found.reasons) == (again.weights.tolist(), again.reasons)


@given(responses, st.sampled_from([0.0, 0.7, 0.8, 0.9]))
def test_the_gate_is_eq_8(rows, floor):
    assert gate(arrivals_of(rows), floor, rng()).weights.tolist() == [admission_weight(s, floor) for s, _, _ in rows]


def test_the_gate_is_strict_and_looks_at_no_reward():
    found = gate(arrivals_of([(0.8, 1, 0), (0.81, 0, 0), (1.7, 1, 0)]), 0.8, rng())
    assert found.weights.tolist() == [0.0, 0.81, 1.0]
    assert found.reasons == ("floor", None, None)


@given(responses)
def test_a_floor_of_zero_admits_all_at_their_compatibility(rows):
    assert gate(arrivals_of(rows), 0.0, rng()).weights.tolist() == [min(s, 1.0) for s, _, _ in rows]


@given(st.lists(st.floats(-5, 0), min_size=1, max_size=9), st.integers(1, 8))
def test_identical_twins_have_s_1_and_are_admitted_whole(logprobs, n):
    s = compatibility(logprobs, logprobs)
    assert s == 1.0
    found = gate(arrivals_of([(s, i % 2, 0) for i in range(n)]), 0.8, rng())
    assert found.weights.tolist() == [1.0] * n


def test_without_gate_everything_weighs_one():
    assert everything(arrivals_of([(0.01, 0, 0), (2.0, 1, 1)]), 0.8, rng()).weights.tolist() == [1.0, 1.0]


@given(responses, st.integers(0, 99))
def test_random_admission_takes_exactly_as_many_as_pass_the_floor(rows, seed):
    found = random_admission(arrivals_of(rows), 0.8, rng(seed))
    assert (found.weights > 0).sum() == sum(s > 0.8 for s, _, _ in rows)
    assert all(weight in (0.0, min(s, 1.0)) for weight, (s, _, _) in zip(found.weights, rows, strict=True))


def test_random_admission_is_uniform_over_all_that_arrived():
    rows = arrivals_of([(0.9, 1, 0), (0.1, 0, 0), (0.9, 0, 1), (0.2, 1, 1)])
    counts = sum((random_admission(rows, 0.8, rng(seed)).weights > 0).astype(int) for seed in range(2000))
    assert (abs(counts - 1000) < 120).all()  # four standard errors are 90


@given(responses, st.sampled_from([0.0, 0.8]))
def test_success_only_is_the_gate_on_the_correct_ones(rows, floor):
    found, gated = gated_successes(arrivals_of(rows), floor, rng()), gate(arrivals_of(rows), floor, rng())
    for (_, reward, _), weight, reason, all_weight, all_reason in zip(
        rows, found.weights, found.reasons, gated.weights, gated.reasons, strict=True
    ):
        assert weight == all_weight * reward
        assert reason == (all_reason or (None if reward else "failure"))


@given(responses, st.integers(0, 99))
def test_one_success_takes_one_correct_response_of_every_slot_that_has_any(rows, seed):
    found = one_success(arrivals_of(rows), 0.8, rng(seed))
    drawn = [slot for (_, _, slot), weight in zip(rows, found.weights, strict=True) if weight]
    assert sorted(drawn) == sorted({slot for _, reward, slot in rows if reward})
    assert set(found.weights.tolist()) <= {0.0, 1.0}
    for (_, reward, _), reason in zip(rows, found.reasons, strict=True):
        assert reason in ((None, "not_drawn") if reward else ("failure",))


def test_one_success_is_uniform_over_the_sources_of_a_slot():
    # Slot 0 was served by two sources, with one and two correct responses.
    rows = arrivals_of([(1, 1, 0), (1, 0, 0), (1, 1, 0), (1, 1, 0), (1, 1, 1)])
    drawn = Counter(tuple(np.flatnonzero(one_success(rows, 0.8, rng(seed)).weights)) for seed in range(1500))
    assert set(drawn) == {(0, 4), (2, 4), (3, 4)}
    assert all(abs(count - 500) < 75 for count in drawn.values())


def test_arrivals_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one s, reward and slot each"):
        Arrivals(np.ones(2), np.ones(3), np.zeros(2, np.int64))
