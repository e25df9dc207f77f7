"""Intervals with prompts drawn whole. Pure.

Rollouts of a group and visits of a prompt are alike; Wilson's interval takes each for itself, and is too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboard.frames import Array, wilson
from server.store.reader import NewestGroups, NewestTransfers

RESAMPLES = 1_000
# Resamples that are held at once.
_CHUNK = 100
HELP = "95 % intervals draw prompts whole (bootstrap), since their rollouts and visits are alike."

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """95 % intervals (low, high) of the Overview: of every member [2, N] and of all together."""

    accuracy: Floats
    all_fail: Floats
    failed: tuple[float, float]
    received: tuple[float, float]
    admitted: tuple[float, float]


def intervals(prompt: Array, part: tuple[Array, Array], whole: tuple[Array, Array]) -> Floats:
    """[2, M] bounds of the M shares k / n of `whole` ([M] each), from the rows of `part` (k, n [R, M]) by `prompt` [R].

    The percentile bootstrap of the part's shares; where the part is not all, its spread is taken for all. Never inside
    Wilson's interval: prompts that are all alike would leave no width. NaN where n is 0.
    """
    share, low, high = wilson(*whole)
    keys, at = np.unique(prompt, return_inverse=True)
    if not len(keys):
        return np.stack([low, high])
    sums = np.stack([np.stack([np.bincount(at, each, len(keys)) for each in rows.T], axis=1) for rows in part])
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(0, RESAMPLES, _CHUNK):
        drawn = rng.integers(0, len(keys), (_CHUNK, len(keys))) + len(keys) * np.arange(_CHUNK)[:, None]
        times = np.bincount(drawn.ravel(), minlength=_CHUNK * len(keys)).reshape(_CHUNK, -1).astype(np.float64)
        ratios.append(_ratio(times @ sums[0], times @ sums[1]))
    k, n = sums.sum(axis=1)
    known = n > 0
    bounds = np.full((2, len(share)), np.nan)
    bounds[:, known] = np.nanquantile(np.concatenate(ratios)[:, known], (0.025, 0.975), axis=0)
    spread = (bounds - _ratio(k, n)) * np.sqrt(_ratio(n, np.asarray(whole[1], np.float64)))
    return np.stack(
        [np.maximum(0.0, np.fmin(low, share + spread[0])), np.minimum(1.0, np.fmax(high, share + spread[1]))]
    )


def bounds(
    groups: NewestGroups, transfers: NewestTransfers, members: Mapping[str, Array], admitted: int, responses: int
) -> Bounds:
    """The intervals of a window's `members` (as `Reader.member_counts`) and of its admitted responses, from the newest
    groups and transfers."""
    size = len(members["groups"])
    own = groups.member[:, None] == np.arange(size)
    failed = (groups.successes == 0) & (groups.errors == 0)
    # Right of all rollouts of every member, all-fail of all groups of every member, and of all members together.
    k = np.concatenate([own * groups.successes[:, None], own * failed[:, None], failed[:, None]], axis=1)
    n = np.concatenate([own * groups.n[:, None], own, np.ones((len(own), 1), np.int64)], axis=1)
    whole_k, whole_n = (
        np.concatenate([members[rollouts], members[judged], [members[judged].sum()]])
        for rollouts, judged in (("successes", "all_fail"), ("rollouts", "groups"))
    )
    found = intervals(groups.prompt, (k, n), (whole_k, whole_n))
    since = max(groups.first_step, transfers.first_step)
    stuck = failed & (groups.step >= since)
    given = set(_places(transfers.step, transfers.prompt, transfers.receiver, transfers.admitted > 0))
    got = [place in given for place in _places(groups.step, groups.prompt, groups.member, stuck)]
    received = intervals(
        groups.prompt[stuck],
        (np.array(got, np.int64).reshape(-1, 1), np.ones((len(got), 1))),
        (np.array([members["received"].sum()]), np.array([members["all_fail"].sum()])),
    )
    gate = intervals(
        transfers.prompt,
        (transfers.admitted[:, None], transfers.responses[:, None]),
        (np.array([admitted]), np.array([responses])),
    )
    pooled = (_pair(one[:, -1]) for one in (found, received, gate))
    return Bounds(found[:, :size], found[:, size : 2 * size], *pooled)


def _places(step: Array, prompt: Array, member: Array, chosen: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    return list(zip(step[chosen].tolist(), prompt[chosen].tolist(), member[chosen].tolist(), strict=True))


def _pair(column: Floats) -> tuple[float, float]:
    return float(column[0]), float(column[1])


def _ratio(k: Array, n: Array) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(n > 0, k / n, np.nan)
