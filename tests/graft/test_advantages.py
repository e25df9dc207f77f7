"""Group-relative advantages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.advantages import group_advantages


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
