"""Complementarity, intervals and health measures."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.complementarity import (
    bootstrap_mean_interval,
    bootstrap_ratio_interval,
    complementarity,
    effective_sources,
    failure_correlation,
    mixing_modulus,
    pass_at_k,
    phi_coefficient,
    phi_standard_error,
    union_coverage,
    uptake,
    wilson_interval,
)


def random_counts(seed, members=4, prompts=30):
    rng = np.random.default_rng(seed)
    attempts = np.where(rng.random((members, prompts)) < 0.8, 8, 0)
    return rng.binomial(attempts, rng.beta(0.4, 1.2, (members, prompts))), attempts


def test_golden_values(golden):
    for case in golden("complementarity"):
        matrix, support = complementarity(case["successes"], case["attempts"])
        expected = np.array(case["complementarity"], dtype=float)
        np.testing.assert_array_equal(np.isnan(matrix), np.isnan(expected))
        np.testing.assert_allclose(matrix, expected, rtol=1e-12)
        np.testing.assert_array_equal(support, case["support"])


@given(st.integers(0, 10_000))
def test_complementarity_equals_its_definition(seed):
    successes, attempts = random_counts(seed)
    matrix, support = complementarity(successes, attempts)
    for i in range(4):
        for j in range(4):
            asked = [p for p in range(30) if i != j and attempts[i, p] and attempts[j, p] and successes[i, p] == 0]
            assert support[i, j] == len(asked)
            if asked:
                assert matrix[i, j] == pytest.approx(np.mean([successes[j, p] > 0 for p in asked]))
            else:
                assert math.isnan(matrix[i, j])


@given(st.integers(0, 10_000))
def test_failure_correlation_is_the_correlation_of_failure_indicators(seed):
    successes, attempts = random_counts(seed)
    phi = failure_correlation(successes, attempts)
    for i, j in combinations(range(4), 2):
        both = (attempts[i] > 0) & (attempts[j] > 0)
        one, other = successes[i, both] == 0, successes[j, both] == 0
        if one.std() == 0 or other.std() == 0:
            assert math.isnan(phi[i, j])
        else:
            assert phi[i, j] == pytest.approx(np.corrcoef(one, other)[0, 1])
            assert phi[j, i] == pytest.approx(phi[i, j])


def test_pooled_counts_give_the_correlation_of_the_whole_window():
    (k, n), (k2, n2) = random_counts(1), random_counts(2)
    parts = []
    for successes, attempts in ((k, n), (k2, n2)):
        seen, failed = attempts > 0, (attempts > 0) & (successes == 0)
        pairs = ((seen, seen), (failed, seen), (failed, failed))
        parts.append([one.astype(int) @ other.T.astype(int) for one, other in pairs])
    pooled = phi_coefficient(*(one + other for one, other in zip(*parts, strict=True)))
    whole = failure_correlation(np.hstack([k, k2]), np.hstack([n, n2]))
    np.testing.assert_allclose(pooled, whole, rtol=1e-12)


@pytest.mark.parametrize("cells", [(0.012, 0.018, 0.038), (0.2, 0.1, 0.2), (0.05, 0.2, 0.3), (0.08, 0.02, 0.02)])
def test_the_standard_error_of_phi_is_its_spread_over_samples(cells):
    n = 640
    together, first, second, _ = np.random.default_rng(3).multinomial(n, [*cells, 1 - sum(cells)], 20_000).T
    failed = np.stack([together + first, together + second], axis=1)
    counts = np.full(len(together), n), failed, together
    both, alone, joint = (np.broadcast_to(part.reshape(len(together), -1, 1), (len(together), 2, 2)) for part in counts)
    phi, error = (estimate(both, alone, joint)[:, 0, 1] for estimate in (phi_coefficient, phi_standard_error))
    assert np.nanmean(error) == pytest.approx(np.nanstd(phi), rel=0.05)


def test_missing_data_is_nan_not_zero():
    nothing = np.zeros((2, 3), dtype=int)
    matrix, support = complementarity(nothing, nothing)
    assert np.isnan(matrix).all()
    assert (support == 0).all()
    assert np.isnan(failure_correlation(nothing, nothing)).all()
    assert all(math.isnan(share) for share in union_coverage(nothing, nothing))
    assert all(math.isnan(bound) for bound in wilson_interval(0, 0))
    assert all(math.isnan(bound) for bound in bootstrap_mean_interval([], seed=0))
    assert math.isnan(effective_sources(nothing[:, :2]))
    assert all(math.isnan(part) for part in uptake(0, 0, 1, 2))


def test_counts_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        complementarity([[1, 0]], [[8, 8, 8]])
    with pytest.raises(ValueError, match="between 0 and the attempts"):
        complementarity([[9, 0]], [[8, 8]])


def test_union_coverage_compares_the_union_with_mean_and_best():
    successes = [[1, 0, 0, 0], [0, 2, 3, 0]]
    assert union_coverage(successes, np.full((2, 4), 8)) == (0.75, 0.375, 0.5)


def test_intervals_have_golden_values(golden):
    cases = golden("intervals")
    for k, n, low, high in cases["wilson95"]:
        assert wilson_interval(k, n) == pytest.approx((low, high), rel=1e-12, abs=1e-12)
    for n, c, k, expected in cases["pass_at_k"]:
        assert pass_at_k(n, c, k) == pytest.approx(expected, rel=1e-12)


def test_pass_at_k_is_the_share_of_subsets_with_a_success():
    for n, c, k in [(6, 2, 3), (5, 1, 2), (7, 3, 3)]:
        subsets = list(combinations(range(n), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(min(subset) < c for subset in subsets) / len(subsets))


def test_impossible_counts_of_a_proportion_are_refused():
    with pytest.raises(ValueError, match="0 <= k <= n"):
        wilson_interval(3, 2)
    with pytest.raises(ValueError, match="1 <= k <= n"):
        pass_at_k(4, 1, 5)


def test_bootstrap_interval_is_reproducible_and_close_to_the_normal_one():
    values = np.random.default_rng(5).random(400)
    low, high = bootstrap_mean_interval(values, seed=3)
    assert (low, high) == bootstrap_mean_interval(values, seed=3)
    half = 1.96 * values.std() / math.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)
    wide = bootstrap_mean_interval(values, seed=3, level=0.99)
    assert wide[0] < low < high < wide[1]


def test_effective_sources_counts_equal_givers():
    assert effective_sources([[0, 2, 2], [2, 0, 2], [2, 2, 0]]) == pytest.approx(3.0)
    assert effective_sources([[0, 0, 0], [5, 0, 0], [1, 0, 0]]) == pytest.approx(1.0)


def test_mixing_is_instant_when_all_give_alike_and_absent_when_two_only_swap():
    assert mixing_modulus(np.ones((3, 3))) == pytest.approx(0.0, abs=1e-12)
    assert mixing_modulus([[0, 3], [4, 0]]) == pytest.approx(1.0)
    assert mixing_modulus([[0, 0], [0, 0]]) == pytest.approx(1.0)
    assert math.isnan(mixing_modulus([[0]]))


def test_uptake_is_a_difference_with_a_positive_standard_error():
    difference, error = uptake(30, 60, 2, 10)
    assert difference == pytest.approx(0.3)
    assert error == pytest.approx(math.sqrt(31 / 62 * 31 / 62 / 62 + 3 / 12 * 9 / 12 / 12))
    assert uptake(0, 4, 0, 4).standard_error > 0


def test_a_ratio_of_visits_is_as_sure_as_its_problems_are_many() -> None:
    # 40 problems, half of them solved at every one of their five visits: as wide as 40 observations, not as 200.
    n = np.full(40, 5)
    k = np.where(np.arange(40) % 2 == 0, 5, 0)
    low, high = bootstrap_ratio_interval(k, n, seed=1)
    assert (low, high) == bootstrap_ratio_interval(k, n, seed=1)
    narrow, wide = wilson_interval(100, 200), wilson_interval(20, 40)
    assert low < narrow[0]
    assert high > narrow[1]
    assert high - low == pytest.approx(wide[1] - wide[0], abs=0.04)


def test_a_ratio_weighs_problems_by_their_visits_and_without_any_is_unknown() -> None:
    assert bootstrap_ratio_interval([3, 0], [3, 0], seed=0) == (1.0, 1.0)
    assert all(math.isnan(bound) for bound in bootstrap_ratio_interval([], [], seed=0))
    assert all(math.isnan(bound) for bound in bootstrap_ratio_interval([0], [0], seed=0))
    with pytest.raises(ValueError, match="one numerator and denominator per problem"):
        bootstrap_ratio_interval([1, 2], [1], seed=0)
