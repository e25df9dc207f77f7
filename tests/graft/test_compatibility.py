"""s, the gate, normalisers and edge rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.compatibility import (
    admission_weight,
    compatibility,
    compatibility_of_sums,
    mean_bytes_per_token,
    normalised_compatibility,
    updated_edge_rate,
)

logprob_vectors = st.lists(st.floats(-15, 0), min_size=1, max_size=30)


def test_golden_values(golden):
    cases = golden("compatibility")
    for case in cases["cases"]:
        s = compatibility(case["receiver_logprobs"], case["source_logprobs"])
        assert s == pytest.approx(case["s"], rel=1e-12)
        for floor, weight in case["weight"].items():
            assert admission_weight(s, float(floor)) == pytest.approx(weight, rel=1e-12)
    for case in cases["weight_at"]:
        assert admission_weight(case["s"], case["floor"]) == case["weight"]


@given(logprob_vectors)
def test_identical_twins_have_s_one_and_full_weight(logprobs):
    assert compatibility(logprobs, logprobs) == 1.0
    assert admission_weight(1.0) == 1.0


@given(logprob_vectors, logprob_vectors)
def test_s_is_reciprocal_between_two_members(one, other):
    assert compatibility(one, other) * compatibility(other, one) == pytest.approx(1.0)


@given(st.floats(0, 1e9), st.floats(0, 1))
def test_weight_is_zero_up_to_the_floor_and_never_above_one(s, floor):
    weight = admission_weight(s, floor)
    assert weight == (0.0 if s <= floor else min(s, 1.0))


def test_default_floor_is_strict():
    assert admission_weight(0.8) == 0.0
    assert admission_weight(math.nextafter(0.8, 1)) > 0.8


def test_equal_probability_gives_s_one_in_bytes_but_not_in_own_tokens():
    receiver, source = [-0.5] * 40, [-20 / 12] * 12
    assert normalised_compatibility(receiver, source) == pytest.approx(math.exp(-0.5 + 20 / 12))
    assert compatibility(receiver, source) == pytest.approx(3.21, abs=0.005)
    assert compatibility(source, receiver) == pytest.approx(0.31, abs=0.005)
    assert normalised_compatibility(receiver, source, normaliser="bytes", text_bytes=60) == pytest.approx(1.0)
    assert normalised_compatibility(
        receiver, source, normaliser="reference", text_bytes=60, bytes_per_token=3.7
    ) == pytest.approx(1.0)


@given(logprob_vectors, st.integers(1, 6), st.floats(-0.5, 0.5))
def test_reference_equals_the_papers_scale_for_one_tokenizer(logprobs, bytes_per_token, shift):
    receiver = np.asarray(logprobs) + shift
    found = normalised_compatibility(
        receiver,
        logprobs,
        normaliser="reference",
        text_bytes=bytes_per_token * len(logprobs),
        bytes_per_token=bytes_per_token,
    )
    assert found == pytest.approx(compatibility(receiver, logprobs))


def test_extreme_log_ratios_stay_finite():
    assert compatibility([-1e9], [-1.0]) == math.exp(-20)
    assert compatibility([-1.0], [-1e9]) == math.exp(20)
    assert compatibility([-math.inf, -1.0], [-1.0]) == math.exp(-20)


@pytest.mark.parametrize(
    ("receiver", "source", "message"),
    [
        ([], [-1.0], "receiver's log-probs must be a non-empty vector"),
        ([-1.0], [[-1.0]], "source's log-probs must be a non-empty vector"),
        ([math.nan], [-1.0], "receiver's log-probs must be finite"),
        ([-1.0], [-math.inf], "source's log-probs must be finite"),
    ],
)
def test_unusable_logprobs_are_refused(receiver, source, message):
    with pytest.raises(ValueError, match=message):
        compatibility(receiver, source)


def test_normalisers_name_what_they_miss():
    with pytest.raises(ValueError, match="UTF-8 length"):
        normalised_compatibility([-1.0], [-1.0], normaliser="bytes")
    with pytest.raises(ValueError, match="bytes_per_token"):
        normalised_compatibility([-1.0], [-1.0], normaliser="reference", text_bytes=3)
    with pytest.raises(ValueError, match="'own', 'bytes' or 'reference'"):
        normalised_compatibility([-1.0], [-1.0], normaliser="words")


def test_edge_rate_follows_admission_and_never_reaches_zero():
    assert updated_edge_rate(1.0, 0.5) == pytest.approx(0.95)
    rate = 1.0
    for _ in range(10_000):
        rate = updated_edge_rate(rate, 0.0)
    assert 0.0 < rate < 1e-5
    assert updated_edge_rate(rate, 1.0) > 0.1
    with pytest.raises(ValueError, match="lies in"):
        updated_edge_rate(1.0, 1.5)


@pytest.mark.parametrize("normaliser", ["own", "bytes", "reference"])
def test_sums_and_counts_give_the_same_s_bit_for_bit(normaliser):
    rng = np.random.default_rng(3)
    for _ in range(50):
        receiver, source = (-rng.exponential(0.4, int(rng.integers(1, 900))).astype(np.float32) for _ in range(2))
        settings = {"normaliser": normaliser, "text_bytes": int(rng.integers(1, 3000)), "bytes_per_token": 3.7}
        sums = [(float(one.astype(np.float64).sum()), one.size) for one in (receiver, source)]
        assert compatibility_of_sums(*sums, **settings) == normalised_compatibility(receiver, source, **settings)


def test_the_reference_scale_is_bytes_over_tokens_of_all_responses():
    assert mean_bytes_per_token([("añb", 2), ("xyz", 3)]) == 7 / 5
    assert mean_bytes_per_token([("", 4)]) == 1 / 4
