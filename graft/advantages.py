"""Group-relative advantages (paper eq. 1), and the rules by which own and peer rewards of one prompt share a baseline.

An `AdvantageRule` takes one learner's rewards on one prompt, those of the peer groups that reached it, and the
learner's capability ratio to each of those peers. Without peers every rule is eq. 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Deviation = Literal["sample", "population", "none"]
Array = NDArray[np.float64]

AdvantageRule = Callable[[ArrayLike, Sequence[ArrayLike], Sequence[float]], tuple[Array, list[Array]]]
"""(own rewards [n], each peer's rewards [n_j], ratios omega(k, j)) -> (own advantages [n], each peer's [n_j])."""

CAPABILITY_RANGE = (0.1, 10.0)


def group_advantages(rewards: ArrayLike, *, std: Deviation = "sample", eps: float = 1e-6) -> Array:
    """Advantages a_i = (r_i - mean) / (std + eps) of one group's rewards [n], as [n].

    `std` is the divisor: the `sample` deviation (n - 1, the paper), the `population` deviation (n), or `none`
    (differences from the mean as they are). A group without variance has exactly zero advantages.
    Raises ValueError for anything but a non-empty vector of finite rewards.
    """
    values: Array = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"rewards must be a non-empty vector of finite numbers, got shape {values.shape}: {rewards!r}")
    if std not in ("sample", "population", "none"):
        raise ValueError(f"std must be 'sample', 'population' or 'none', got {std!r}")
    # Comparing, not subtracting the mean: equal rewards must give 0.0, not rounding noise over eps.
    if values.min() == values.max():
        return np.zeros_like(values)
    centred = values - float(values.mean())
    if std == "none":
        return centred
    return centred / (float(values.std(ddof=1 if std == "sample" else 0)) + eps)


def separate(own: ArrayLike, peers: Sequence[ArrayLike], ratios: Sequence[float]) -> tuple[Array, list[Array]]:
    """Every group by itself: a peer's advantages are those its source computed (paper, section 4)."""
    return group_advantages(own), [group_advantages(rewards) for rewards in peers]


def pooled(own: ArrayLike, peers: Sequence[ArrayLike], ratios: Sequence[float]) -> tuple[Array, list[Array]]:
    """Eq. 1 over the concatenated rewards of all groups (the paper's ablation, 2n rewards for two members)."""
    groups = [np.asarray(own, dtype=np.float64), *(np.asarray(rewards, dtype=np.float64) for rewards in peers)]
    return _split(group_advantages(np.concatenate(groups)), groups)


def imitated(own: ArrayLike, peers: Sequence[ArrayLike], ratios: Sequence[float]) -> tuple[Array, list[Array]]:
    """The learner's own group by itself; 1 for every peer response, which a likelihood term takes as it comes (SGT)."""
    return group_advantages(own), [np.ones(np.asarray(rewards).size) for rewards in peers]


def capability_weighted(
    own: ArrayLike, peers: Sequence[ArrayLike], ratios: Sequence[float]
) -> tuple[Array, list[Array]]:
    """HACPO's advantages for learner k (arXiv 2603.02604, eq. 5-6, N agents of G rollouts each).

    mu_k = 1/(N G) sum_j sum_i omega(k, j) R(y_i^j), with omega(k, k) = 1 and `ratios` holding omega(k, j) = P_k / P_j
    of each peer group in turn; A = (R - mu_k) / (std + 1e-6) with the sample deviation (N G - 1, as in eq. 1) of all
    N G rewards as they are. A peer's advantages are multiplied by omega(j, k) = 1 / omega(k, j). Rewards that are all
    equal teach nothing: every advantage is then exactly zero, whatever the capabilities. Where groups differ in size
    the mean is over all rewards. Raises ValueError unless there is one positive ratio for every peer group.
    """
    if len(ratios) != len(peers) or not all(0.0 < ratio < math.inf for ratio in ratios):
        raise ValueError(f"{len(peers)} peer groups need one positive capability ratio each, got {list(ratios)}")
    groups = [np.asarray(own, dtype=np.float64), *(np.asarray(rewards, dtype=np.float64) for rewards in peers)]
    factors = np.repeat([1.0, *ratios], [len(rewards) for rewards in groups])
    rewards = np.concatenate(groups)
    advantages = group_advantages(rewards)  # checks the rewards; for equal ones it is all zeros
    if advantages.any():
        baseline = float((factors * rewards).mean())
        advantages = (rewards - baseline) / (float(rewards.std(ddof=1)) + 1e-6) / factors
    return _split(advantages, groups)


def capability_ratio(learner: float, source: float) -> float:
    """omega(k, j) = P_k / P_j from two mean accuracies, clamped to [0.1, 10]; two members that solve nothing are equal.

    Raises ValueError for accuracies that are negative or not finite.
    """
    if not (0.0 <= learner < math.inf and 0.0 <= source < math.inf):
        raise ValueError(f"mean accuracies must be finite and not negative, got {learner} and {source}")
    if source == 0.0:
        return CAPABILITY_RANGE[1] if learner > 0.0 else 1.0
    return min(max(learner / source, CAPABILITY_RANGE[0]), CAPABILITY_RANGE[1])


def _split(advantages: Array, groups: Sequence[Array]) -> tuple[Array, list[Array]]:
    own, *peers = np.split(advantages, np.cumsum([len(rewards) for rewards in groups])[:-1])
    return own, peers
