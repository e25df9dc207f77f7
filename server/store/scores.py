"""What the counts of an evaluation say: pass@1 with its interval, pass@k, maj@k, and their mean over benchmarks.

Every figure is exact given the counts. An evaluation may hold several passes ("repeats") with other random numbers:
their mean and sd are kept beside the interval over problems, since they answer different questions (how much the
sampling of responses moves the figure, and how much another draw of problems would).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from server.store.records import EvaluationRecord, Role

_Z = 1.959963984540054


class MeanInterval(NamedTuple):
    """A mean over problems with its 95 % interval."""

    mean: float
    low: float
    high: float


def mean_interval(correct: Sequence[int], responses: Sequence[int]) -> MeanInterval:
    """Mean over problems of correct / responses with its 95 % interval; NaN without problems."""
    shares = np.asarray(correct, np.float64) / np.asarray(responses, np.float64)
    return share_interval(shares, float(sum(responses)))


def share_interval(shares: np.ndarray, trials: float) -> MeanInterval:
    """Mean over problems of shares [P] in [0, 1], with its 95 % interval; NaN without problems. See `moments_interval`.

    `trials`: the responses (or sets of k of them) that the shares rest on.
    """
    size = len(shares)
    if not size:
        return MeanInterval(math.nan, math.nan, math.nan)
    variance = float(shares.var(ddof=1)) / size if size > 1 else 0.0
    return moments_interval(float(shares.mean()), variance, size, trials)


def moments_interval(mean: float, variance: float, problems: int, trials: float) -> MeanInterval:
    """The Wilson interval of a mean over problems at their effective number; `variance` is that of the mean.

    The responses to one problem are alike, so the problem is the unit: the effective number is p (1 - p) over the
    variance of the mean, between the number of problems less one and the number of trials.
    """
    effective = mean * (1 - mean) / variance if variance > 0 else float(problems)
    effective = min(max(effective, 1.0), trials)
    # Wilson, written for a share and a real number of trials.
    shrink = 1 + _Z**2 / effective
    centre = (mean + _Z**2 / (2 * effective)) / shrink
    half = _Z * math.sqrt(max(mean * (1 - mean), 0.0) / effective + _Z**2 / (4 * effective**2)) / shrink
    return MeanInterval(mean, max(0.0, centre - half), min(1.0, centre + half))


def combined(parts: Sequence[MeanInterval]) -> MeanInterval:
    """The unweighted mean over benchmarks, at least one: the distances to their bounds add as squares (MOVER, Zou and
    Donner 2008), since their problems are other ones. One part stays as it is."""
    size = len(parts)
    mean = math.fsum(part.mean for part in parts) / size
    down = math.sqrt(math.fsum((part.mean - part.low) ** 2 for part in parts)) / size
    up = math.sqrt(math.fsum((part.high - part.mean) ** 2 for part in parts)) / size
    return MeanInterval(mean, max(0.0, mean - down), min(1.0, mean + up))


def pass_share(responses: int, correct: int, k: int) -> float:
    """The share of all k-subsets of the responses that hold a right one: 1 - C(n - c, k) / C(n, k); NaN for k > n.

    It is the unbiased estimate of pass@k of one problem (Chen et al. 2021, arXiv 2107.03374, eq. 1).
    """
    if k > responses:
        return math.nan
    return 1.0 - math.comb(responses - correct, k) / math.comb(responses, k)


@lru_cache(maxsize=65536)
def majority_share(responses: int, correct: int, wrong: tuple[int, ...], k: int) -> float:
    """The share of all k-subsets of the responses whose majority vote is right; NaN for k > n.

    `wrong`: how many responses gave each wrong answer. Right responses are one answer, since all of them equal the
    reference; responses that are neither gave no answer and do not vote. Among answers with equally many votes one is
    drawn at random, so a tie of t answers counts 1 / t; a subset without any vote is wrong. Exact, hence unbiased.
    """
    if k > responses:
        return math.nan
    silent, won = responses - correct - sum(wrong), Fraction(0)
    for votes in range(1, min(correct, k) + 1):
        # {(wrong votes, wrong answers level with the right one): subsets}, no wrong answer above it.
        ways = {(0, 0): 1}
        for size in wrong:
            longer: dict[tuple[int, int], int] = defaultdict(int)
            for (used, level), count in ways.items():
                for taken in range(min(size, votes, k - votes - used) + 1):
                    longer[used + taken, level + (taken == votes)] += count * math.comb(size, taken)
            ways = longer
        for (used, level), count in ways.items():
            subsets = math.comb(correct, votes) * count * math.comb(silent, k - votes - used)
            won += Fraction(subsets, 1 + level)
    return float(won / math.comb(responses, k))


@dataclass(frozen=True)
class Score:
    """Figures of one member on one benchmark, or their unweighted mean over several (`benchmarks`, else 1).

    `passes` holds pass@1 of every repeat, `pass1` their mean with the 95 % interval over problems. `pass_at` and
    `majority_at` hold the same of the k that can be estimated (means over repeats). `problems` and `responses` (per
    problem and repeat; 0 where they differ) say from how much.
    """

    member: str
    benchmark: str
    role: Role
    problems: int
    responses: int
    passes: tuple[float, ...]
    pass1: MeanInterval
    pass_at: Mapping[int, MeanInterval]
    majority_at: Mapping[int, MeanInterval]
    benchmarks: int = 1

    @property
    def sd(self) -> float:
        """Sample standard deviation of pass@1 over the repeats; NaN for fewer than two."""
        return float(np.std(self.passes, ddof=1)) if len(self.passes) > 1 else math.nan


def score(records: Sequence[EvaluationRecord], ks: Iterable[int]) -> Score:
    """The figures of one member on one benchmark; `records` are its repeats, at least one, on the same problems.

    ValueError when they are of several members or benchmarks, or of different problems.
    """
    first = records[0]
    keys = [key for key, _, _ in first.problems]
    for record in records[1:]:
        if (record.member, record.benchmark) != (first.member, first.benchmark):
            raise ValueError(f"scores: {record.member} on {record.benchmark} is no repeat of {first.member}'s")
        if sorted(key for key, _, _ in record.problems) != sorted(keys):
            raise ValueError(f"scores: the repeats of {first.member} on {first.benchmark} have different problems")
    passes = tuple(mean_interval([c for _, c, _ in r.problems], [n for _, _, n in r.problems]).mean for r in records)
    pooled: dict[int, list[int]] = {key: [0, 0] for key in keys}
    for record in records:
        for key, correct, responses in record.problems:
            pooled[key][0] += correct
            pooled[key][1] += responses
    interval = mean_interval([c for c, _ in pooled.values()], [n for _, n in pooled.values()])
    sizes = {responses for record in records for _, _, responses in record.problems}
    return Score(
        first.member,
        first.benchmark,
        first.role,
        len(keys),
        sizes.pop() if len(sizes) == 1 else 0,
        passes,
        interval,
        _known({k: _over_repeats(records, keys, k, _pass_at) for k in ks}),
        _known({k: _over_repeats(records, keys, k, _majority_at) for k in ks}),
    )


def aggregate(scores: Sequence[Score]) -> Score:
    """The unweighted mean over benchmarks of one member's scores, at least one, all with as many repeats.

    With one benchmark it is that benchmark's. A k counts where every benchmark has it.
    """
    first, size = scores[0], len(scores)
    if {len(one.passes) for one in scores} != {len(first.passes)}:
        raise ValueError(f"scores: the benchmarks of {first.member} have different numbers of repeats")
    sizes = {one.responses for one in scores}

    def shared(parts: Sequence[Mapping[int, MeanInterval]]) -> dict[int, MeanInterval]:
        return {k: combined([part[k] for part in parts]) for k in parts[0] if all(k in part for part in parts)}

    return Score(
        first.member,
        first.benchmark if size == 1 else f"mean of {size}",
        first.role,
        sum(one.problems for one in scores),
        sizes.pop() if len(sizes) == 1 else 0,
        tuple(float(np.mean(values)) for values in zip(*(one.passes for one in scores), strict=True)),
        combined([one.pass1 for one in scores]),
        shared([one.pass_at for one in scores]),
        shared([one.majority_at for one in scores]),
        size,
    )


def _known(figures: Mapping[int, MeanInterval]) -> dict[int, MeanInterval]:
    return {k: value for k, value in figures.items() if not math.isnan(value.mean)}


def _over_repeats(
    records: Sequence[EvaluationRecord],
    keys: Sequence[int],
    k: int,
    estimate: Callable[[EvaluationRecord, int], dict[int, float]],
) -> MeanInterval:
    """Mean over problems of the estimate's mean over repeats."""
    estimates = [estimate(record, k) for record in records]
    shares = np.array([[one.get(key, math.nan) for key in keys] for one in estimates], np.float64).mean(axis=0)
    trials = sum(responses for record in records for _, _, responses in record.problems) / k
    return share_interval(shares, trials)


def _pass_at(record: EvaluationRecord, k: int) -> dict[int, float]:
    """{problem: estimate of pass@k}."""
    return {key: pass_share(responses, correct, k) for key, correct, responses in record.problems}


def _majority_at(record: EvaluationRecord, k: int) -> dict[int, float]:
    """{problem: estimate of maj@k}, without the problems whose answers were not told apart."""
    return {
        key: majority_share(responses, correct, record.votes[key], k)
        for key, correct, responses in record.problems
        if key in record.votes
    }
