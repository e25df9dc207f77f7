"""Group-relative advantages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.advantages import (
    capability_ratio,
    capability_weighted,
    group_advantages,
    pooled,
    separate,
)


def test_golden_values(golden):
    for case in golden("advantages"):
        found = group_advantages(case["rewards"], std=case["std"], eps=case["eps"])
        np.testing.assert_allclose(found, case["advantages"], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("right", "success", "failure"), [(1, 2.475, -0.354), (4, 0.935, -0.935), (7, 0.354, -2.475)])
def test_paper_values_for_eight_responses(right, success, failure):
    found = group_advantages([1.0] * right + [0.0] * (8 - right))
    assert found[0] == pytest.approx(success, abs=5e-4)
    assert found[-1] == pytest.approx(failure, abs=5e-4)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=16), st.sampled_from(["sample", "population", "none"]))
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(rewards, std):
    found = group_advantages(rewards, std=std)
    assert found.shape == (len(rewards),)
    assert abs(found.sum()) <= 1e-6 * max(1.0, np.abs(found).sum())
    order = np.argsort(rewards, kind="stable")
    assert (np.diff(found[order]) >= 0).all()


@given(st.floats(-1e6, 1e6), st.integers(1, 33))
def test_equal_rewards_give_exactly_zero(reward, n):
    assert (group_advantages([reward] * n) == 0.0).all()


@pytest.mark.parametrize("rewards", [[], [[1.0, 0.0]], [float("nan"), 1.0], [float("inf"), 0.0]])
def test_malformed_rewards_are_refused(rewards):
    with pytest.raises(ValueError, match="rewards must be"):
        group_advantages(rewards)


def test_unknown_deviation_is_refused():
    with pytest.raises(ValueError, match="'sample', 'population' or 'none'"):
        group_advantages([0.0, 1.0], std="mad")


@pytest.mark.parametrize("rule", [separate, pooled, capability_weighted])
@given(own=st.lists(st.floats(-5, 5), min_size=1, max_size=9))
def test_without_peers_every_rule_is_eq_1_bit_for_bit(rule, own):
    advantages, peers = rule(own, [], [])
    assert advantages.tolist() == group_advantages(own).tolist()
    assert peers == []


def test_separate_groups_keep_what_their_source_computed():
    own, peers = separate([0, 0, 0], [[1, 0, 0], [1, 1, 0]], [2.0, 3.0])
    assert own.tolist() == [0, 0, 0]
    assert peers[0].tolist() == group_advantages([1, 0, 0]).tolist()
    assert peers[1].tolist() == group_advantages([1, 1, 0]).tolist()


@pytest.mark.parametrize("n", [2, 4, 8])
def test_pooled_differs_from_full_exactly_as_derived_by_hand(n):
    # k of 2n right: mean k/2n, squared deviations k (1 - k/2n). In the source's own group: mean k/n, k (1 - k/n).
    for k in range(1, n):
        own, (peer,) = pooled([0.0] * n, [[1.0] * k + [0.0] * (n - k)], [1.0])
        deviation = np.sqrt(k * (1 - k / (2 * n)) / (2 * n - 1)) + 1e-6
        assert own.tolist() == pytest.approx([-k / (2 * n) / deviation] * n, rel=1e-12)
        assert peer[:k].tolist() == pytest.approx([(1 - k / (2 * n)) / deviation] * k, rel=1e-12)
        assert peer[k:].tolist() == pytest.approx([-k / (2 * n) / deviation] * (n - k), rel=1e-12)
        full = (1 - k / n) / (np.sqrt(k * (1 - k / n) / (n - 1)) + 1e-6)
        gain = (1 - k / (2 * n)) / (1 - k / n) * np.sqrt((2 * n - 1) * (1 - k / n) / ((n - 1) * (1 - k / (2 * n))))
        assert peer[0] / full == pytest.approx(gain, rel=1e-4)
        assert peer[0] > full


def test_hacpo_of_two_agents_by_hand():
    # P_1 = 0.5, P_2 = 0.25, so omega(1, 2) = 2: agent 2's successes count double in agent 1's baseline.
    # mu_1 = (1 + 2 * 1) / 4 = 3/4. Rewards 1 0 1 0: sample deviation sqrt(1/3).
    own, (peer,) = capability_weighted([1, 0], [[1, 0]], [capability_ratio(0.5, 0.25)])
    deviation = np.sqrt(1 / 3) + 1e-6
    assert own.tolist() == pytest.approx([0.25 / deviation, -0.75 / deviation], rel=1e-12)
    # Its samples weigh omega(2, 1) = 1/2 in agent 1's loss.
    assert peer.tolist() == pytest.approx([0.25 / deviation / 2, -0.75 / deviation / 2], rel=1e-12)


def test_hacpo_of_three_agents_by_hand():
    # omega(1, 2) = 0.4 / 0.8 = 1/2, omega(1, 3) = 0.4 / 0.1 = 4. mu_1 = (1 + 2 * 1/2 + 1 * 4) / 6 = 1.
    ratios = [capability_ratio(0.4, 0.8), capability_ratio(0.4, 0.1)]
    own, peers = capability_weighted([1, 0], [[1, 1], [0, 1]], ratios)
    # Four of six right: squared deviations 6 * 2/3 * 1/3 = 4/3, over 5.
    deviation = np.sqrt(4 / 15) + 1e-6
    assert own.tolist() == pytest.approx([0, -1 / deviation], abs=1e-12)
    assert peers[0].tolist() == pytest.approx([0, 0], abs=1e-12)
    assert peers[1].tolist() == pytest.approx([-1 / deviation / 4, 0], abs=1e-12)


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=5), min_size=1, max_size=4), st.data())
def test_hacpo_is_its_equations_for_any_number_of_agents(groups, data):
    ratios = data.draw(st.lists(st.floats(0.1, 10), min_size=len(groups) - 1, max_size=len(groups) - 1))
    own, peers = capability_weighted(groups[0], groups[1:], ratios)
    rewards = [reward for group in groups for reward in group]
    if len(set(rewards)) == 1:
        assert not own.any()
        assert not any(peer.any() for peer in peers)
        return
    omega = [1.0, *ratios]
    mean = sum(w * r for w, group in zip(omega, groups, strict=True) for r in group) / len(rewards)
    plain = sum(rewards) / len(rewards)
    deviation = (sum((r - plain) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5
    for w, group, found in zip(omega, groups, [own, *peers], strict=True):
        expected = [(r - mean) / (deviation + 1e-6) / w for r in group]
        assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=6), st.integers(1, 3))
def test_equally_able_agents_make_hacpo_the_pooled_baseline(own, peers):
    groups = [[1.0, 0.0]] * peers
    weighted, plain = capability_weighted(own, groups, [1.0] * peers), pooled(own, groups, [1.0] * peers)
    np.testing.assert_allclose(weighted[0], plain[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.concatenate(weighted[1]), np.concatenate(plain[1]), rtol=1e-12, atol=1e-12)


def test_capability_ratios_are_clamped_and_inverse_to_each_other():
    assert capability_ratio(0.6, 0.3) == pytest.approx(2.0)
    assert capability_ratio(0.9, 0.01) == 10.0
    assert capability_ratio(0.01, 0.9) == 0.1
    assert capability_ratio(0.5, 0.0) == 10.0
    assert capability_ratio(0.0, 0.5) == 0.1
    assert capability_ratio(0.0, 0.0) == 1.0
    with pytest.raises(ValueError, match="finite and not negative"):
        capability_ratio(-0.1, 0.5)


@pytest.mark.parametrize("ratios", [[], [1.0, 1.0], [0.0], [float("inf")], [float("nan")]])
def test_capability_ratios_that_do_not_fit_the_peers_are_refused(ratios):
    with pytest.raises(ValueError, match="1 peer groups need one positive capability ratio each"):
        capability_weighted([1.0], [[0.0, 1.0]], ratios)
