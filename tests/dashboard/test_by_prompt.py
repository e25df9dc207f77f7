"""Intervals with prompts drawn whole: a bootstrap, never narrower than Wilson's; missing where n is 0."""

from __future__ import annotations

import numpy as np
import pytest

from dashboard.by_prompt import bounds, intervals
from graft.complementarity import bootstrap_ratio_interval, wilson_interval
from server.store.reader import NewestGroups, NewestTransfers


def alike(prompts: int, visits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(prompt, right, rollouts) of visits that stand or fall with their prompt."""
    prompt = np.repeat(np.arange(prompts), visits)
    right = np.where(prompt % 3 == 0, 8, 0)[:, None]
    return prompt, right, np.full_like(right, 8)


def test_it_is_the_bootstrap_of_whole_prompts() -> None:
    prompt, k, n = alike(60, 4)
    low, high = intervals(prompt, (k, n), (k.sum(axis=0), n.sum(axis=0)))[:, 0]
    sums = [np.bincount(prompt, weights=part[:, 0]) for part in (k, n)]
    assert (low, high) == pytest.approx(bootstrap_ratio_interval(*sums, seed=5, resamples=20_000), abs=0.02)
    narrow = wilson_interval(int(k.sum()), int(n.sum()))
    assert high - low > 4 * (narrow[1] - narrow[0])


def test_a_part_lends_its_spread_to_all() -> None:
    prompt, k, n = alike(60, 4)
    part = intervals(prompt, (k, n), (k.sum(axis=0), n.sum(axis=0)))[:, 0]
    whole = intervals(prompt, (k, n), (4 * k.sum(axis=0) + 32, 4 * n.sum(axis=0)))[:, 0]
    share = (4 * k.sum() + 32) / (4 * n.sum())
    assert whole - share == pytest.approx((part - k.sum() / n.sum()) / 2)


def test_prompts_that_are_all_alike_leave_wilsons_interval() -> None:
    k, n = np.zeros((5, 1)), np.ones((5, 1))
    low, high = intervals(np.arange(5), (k, n), (np.array([0]), np.array([5])))[:, 0]
    assert (low, high) == pytest.approx(wilson_interval(0, 5))


def test_where_nothing_was_counted_there_is_no_interval() -> None:
    nothing = np.zeros((0, 1))
    assert np.isnan(intervals(np.zeros(0, int), (nothing, nothing), (np.array([0]), np.array([0])))).all()
    mixed = intervals(np.arange(3), (np.zeros((3, 2)), np.array([[1, 0]] * 3)), (np.array([0, 0]), np.array([3, 0])))
    assert np.isfinite(mixed[:, 0]).all()
    assert np.isnan(mixed[:, 1]).all()


def test_a_rescue_is_that_of_the_same_place_and_not_of_the_prompt() -> None:
    # Both members fail prompt 7 twice; member 0 was helped at step 2 alone.
    step, member = np.array([2, 2, 1, 1]), np.array([0, 1, 0, 1])
    prompt, n, zero = np.full(4, 7), np.full(4, 8), np.zeros(4, np.int64)
    groups = NewestGroups(1, step, prompt, member, n, zero, zero)
    one = np.array([1])
    transfers = NewestTransfers(1, 2 * one, 7 * one, 0 * one, one, 8 * one, 5 * one, 8 * one, 7.0 * one, 5.0 * one)
    counts = {"successes": [0, 0], "rollouts": [16, 16], "all_fail": [2, 2], "groups": [2, 2], "received": [1, 0]}
    found = bounds(groups, transfers, {name: np.array(value) for name, value in counts.items()}, 5, 8)
    # One prompt alone has no spread over prompts, so every interval is Wilson's.
    assert found.received == pytest.approx(wilson_interval(1, 4))
    assert found.admitted == pytest.approx(wilson_interval(5, 8))
    assert found.failed == pytest.approx(wilson_interval(4, 4))
    assert found.accuracy[:, 0] == pytest.approx(wilson_interval(0, 16))
    assert found.all_fail[:, 1] == pytest.approx(wilson_interval(2, 2))
