"""What members know of each other: complementarity, intervals, and the health of a population (METHOD.md part 2).

Counts are arrays [N, P]: members by prompts. A prompt with 0 attempts was not seen by that member. Whatever has no
data is NaN, never 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# How many resampled values a bootstrap holds at once.
BOOTSTRAP_CHUNK = 1_000_000


class Coverage(NamedTuple):
    """Shares of the prompts that every member attempted; NaN where there are none."""

    union: float
    mean: float
    best: float


class Uptake(NamedTuple):
    """Difference of two success rates and its standard error, both NaN where one side has no data."""

    difference: float
    standard_error: float


def complementarity(successes: ArrayLike, attempts: ArrayLike) -> tuple[FloatArray, IntArray]:
    """(C, support), both [N, N], from success and attempt counts [N, P].

    C[i, j] is the share of the prompts both attempted and i failed in every rollout that j solved at least once;
    support[i, j] is how many prompts that share is over. NaN where the support is 0, which includes the diagonal.
    """
    k, n = _counts(successes, attempts)
    seen = (n > 0).astype(np.float64)
    solved = (k > 0).astype(np.float64)
    failed = seen - solved
    support = failed @ seen.T
    np.fill_diagonal(support, 0)
    return _ratio(failed @ solved.T, support), np.rint(support).astype(np.int64)


def failure_correlation(successes: ArrayLike, attempts: ArrayLike) -> FloatArray:
    """Phi coefficient [N, N] between "i failed every rollout" and "j failed every rollout", from counts [N, P].

    Over the prompts both attempted; 1 on the diagonal. NaN where either member failed all or none of those prompts.
    """
    k, n = _counts(successes, attempts)
    seen = (n > 0).astype(np.float64)
    failed = seen * (k == 0)
    return phi_coefficient(seen @ seen.T, failed @ seen.T, failed @ failed.T)


def phi_coefficient(both: ArrayLike, failed: ArrayLike, together: ArrayLike) -> FloatArray:
    """Phi coefficient [..., N, N] from counts [..., N, N] that add up over steps, so that windows can be pooled.

    Of the `both[i, j]` prompts that members i and j attempted, i failed `failed[i, j]` and both failed
    `together[i, j]`. NaN where either failed all or none of them.
    """
    n, fails_i, joint = (np.asarray(counts, dtype=np.float64) for counts in (both, failed, together))
    fails_j = np.swapaxes(fails_i, -1, -2)
    variance = fails_i * (n - fails_i) * fails_j * (n - fails_j)
    return _ratio(n * joint - fails_i * fails_j, np.sqrt(variance))


def phi_standard_error(both: ArrayLike, failed: ArrayLike, together: ArrayLike) -> FloatArray:
    """Large-sample standard error [..., N, N] of `phi_coefficient` of the same counts.

    The delta method on the four cells (Bishop, Fienberg and Holland, Discrete Multivariate Analysis, 1975), which
    unlike (1 - phi^2) / sqrt(n) also holds where failures are rare. NaN where phi is.
    """
    n, fails_i, joint = (np.asarray(counts, dtype=np.float64) for counts in (both, failed, together))
    phi = phi_coefficient(n, fails_i, joint)
    p = _ratio(fails_i, n)
    q = np.swapaxes(p, -1, -2)
    with np.errstate(divide="ignore", invalid="ignore"):
        skew_i, skew_j = ((1 - 2 * share) / np.sqrt(share * (1 - share)) for share in (p, q))
        variance = (1 - phi**2 + phi * (1 + phi**2 / 2) * skew_i * skew_j - 0.75 * phi**2 * (skew_i**2 + skew_j**2)) / n
    error: FloatArray = np.sqrt(np.maximum(variance, 0.0))
    return error


def union_coverage(successes: ArrayLike, attempts: ArrayLike) -> Coverage:
    """Share of prompts at least one member solved, against the mean and the best member, from counts [N, P].

    Over the prompts that all members attempted, so that the three shares compare.
    """
    k, n = _counts(successes, attempts)
    common = (n > 0).all(axis=0)
    if not common.any():
        return Coverage(math.nan, math.nan, math.nan)
    solved = k[:, common] > 0
    each = solved.mean(axis=1)
    return Coverage(float(solved.any(axis=0).mean()), float(each.mean()), float(each.max()))


def effective_sources(transferred: ArrayLike) -> float:
    """exp of the entropy of the members' shares of all groups given, from counts [N, N] (receiver, source).

    N when all give equally, 1 when one member gives everything; NaN when nothing was transferred.
    """
    given = np.asarray(transferred, dtype=np.float64).sum(axis=0)
    if given.sum() == 0:
        return math.nan
    shares = given[given > 0] / given.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def mixing_modulus(transferred: ArrayLike) -> float:
    """Second largest eigenvalue modulus of the row-normalised transfer matrix [N, N] (receiver, source).

    How slowly the population mixes: 0 is at once, 1 is never (it falls apart, or only swaps). A member that received
    nothing keeps what it has (a self-loop). NaN for fewer than two members.
    """
    counts = np.array(transferred, dtype=np.float64)
    if len(counts) < 2:
        return math.nan
    received = counts.sum(axis=1)
    counts[received == 0] = np.eye(len(counts))[received == 0]
    rows = counts / counts.sum(axis=1, keepdims=True)
    return float(np.sort(np.abs(np.linalg.eigvals(rows)))[-2])


def uptake(grafted_solved: int, grafted: int, held_out_solved: int, held_out: int) -> Uptake:
    """P(solved at the next visit | grafted) - P(... | held out), with the standard error of the difference.

    The standard error adds one success and one failure to each side, so that it is not 0 for unanimous small counts.
    """
    if grafted == 0 or held_out == 0:
        return Uptake(math.nan, math.nan)
    variance = 0.0
    for solved, total in ((grafted_solved, grafted), (held_out_solved, held_out)):
        rate = (solved + 1) / (total + 2)
        variance += rate * (1 - rate) / (total + 2)
    return Uptake(grafted_solved / grafted - held_out_solved / held_out, math.sqrt(variance))


def wilson_interval(k: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson score interval of a proportion k / n (95 % by default); (NaN, NaN) for n = 0."""
    if not 0 <= k <= n:
        raise ValueError(f"a proportion needs 0 <= k <= n, got k={k}, n={n}")
    if n == 0:
        return math.nan, math.nan
    share = k / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that k of n responses contain a right one, c of the n being right."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def bootstrap_mean_interval(
    values: ArrayLike, *, seed: int, level: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values` [P], one value per problem.

    Problems are drawn whole, so the responses of one problem stay together (a cluster bootstrap). The same seed gives
    the same interval. (NaN, NaN) without values.
    """
    array: FloatArray = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"values must be a vector of one number per problem, got shape {array.shape}")
    if array.size == 0:
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    rows = max(1, BOOTSTRAP_CHUNK // array.size)
    means = np.concatenate(
        [
            array[rng.integers(0, array.size, size=(min(rows, resamples - start), array.size))].mean(axis=1)
            for start in range(0, resamples, rows)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap_ratio_interval(
    numerators: ArrayLike, denominators: ArrayLike, *, seed: int, level: float = 0.95, resamples: int = 1000
) -> tuple[float, float]:
    """Percentile bootstrap interval of sum(numerators) / sum(denominators), one entry [P] of each per problem.

    For shares of visits where a problem is visited more than once: problems are drawn whole, with all their visits.
    The same seed gives the same interval. (NaN, NaN) when the denominators add up to 0.
    """
    k, n = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if k.ndim != 1 or n.shape != k.shape:
        raise ValueError(f"need one numerator and denominator per problem, got shapes {k.shape} and {n.shape}")
    if n.sum() == 0:
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    rows = max(1, BOOTSTRAP_CHUNK // k.size)
    ratios = []
    for start in range(0, resamples, rows):
        drawn = rng.integers(0, k.size, size=(min(rows, resamples - start), k.size))
        ratios.append(_ratio(k[drawn].sum(axis=1), n[drawn].sum(axis=1)))
    low, high = np.nanquantile(np.concatenate(ratios), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _counts(successes: ArrayLike, attempts: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    n, k = np.asarray(attempts), np.asarray(successes)
    if n.ndim != 2 or k.shape != n.shape:
        raise ValueError(f"need counts [members, prompts] of one shape, got {k.shape} and {n.shape}")
    k = np.where(n > 0, k, 0)
    if ((k < 0) | (k > n)).any():
        raise ValueError("successes must lie between 0 and the attempts")
    return k.astype(np.int64), n.astype(np.int64)


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)
