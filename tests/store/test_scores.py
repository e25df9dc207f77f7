"""pass@k and maj@k against a count over all subsets, intervals and the mean over benchmarks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from graft.complementarity import wilson_interval
from server.store.records import EvaluationRecord
from server.store.scores import MeanInterval, aggregate, majority_share, mean_interval, pass_share, score

# (right, sizes of the wrong answers, silent): 0 stands for the right answer, None for none.
PROBLEMS = [
    (3, (2, 1), 2),
    (0, (4, 2), 2),
    (8, (), 0),
    (2, (2, 2, 2), 0),
    (1, (1, 1, 1, 1), 3),
    (2, (5,), 1),
    (0, (), 8),
]


def answers(right: int, wrong: tuple[int, ...], silent: int) -> list[int | None]:
    return [0] * right + [i for i, size in enumerate(wrong, 1) for _ in range(size)] + [None] * silent


def voted(subset: tuple[int | None, ...]) -> Fraction:
    """The chance that the majority of one subset is right, ties drawn."""
    votes = [one for one in subset if one is not None]
    if not votes:
        return Fraction(0)
    most = max(votes.count(one) for one in votes)
    winners = {one for one in votes if votes.count(one) == most}
    return Fraction(int(0 in winners), len(winners))


@pytest.mark.parametrize(("right", "wrong", "silent"), PROBLEMS)
@pytest.mark.parametrize("k", range(1, 9))
def test_pass_and_majority_are_the_mean_over_all_subsets(
    right: int, wrong: tuple[int, ...], silent: int, k: int
) -> None:
    subsets = list(combinations(answers(right, wrong, silent), k))
    passed = Fraction(sum(0 in subset for subset in subsets), len(subsets))
    won = sum((voted(subset) for subset in subsets), Fraction(0)) / len(subsets)
    assert pass_share(8, right, k) == pytest.approx(float(passed), abs=1e-15)
    assert majority_share(8, right, wrong, k) == pytest.approx(float(won), abs=1e-15)


def test_golden_values() -> None:
    assert pass_share(8, 2, 4) == pytest.approx(1 - 15 / 70)
    assert majority_share(8, 2, (2, 2, 2), 8) == pytest.approx(1 / 4)
    assert majority_share(8, 3, (3, 1), 8) == pytest.approx(1 / 2)
    assert majority_share(8, 3, (2, 2), 8) == 1.0
    assert math.isnan(pass_share(4, 2, 5))
    assert math.isnan(majority_share(4, 2, (1,), 5))


def test_one_vote_is_one_response() -> None:
    for right, wrong, _ in PROBLEMS:
        assert majority_share(8, right, wrong, 1) == pass_share(8, right, 1) == pytest.approx(right / 8)


def test_many_responses_are_counted_as_well() -> None:
    rng = np.random.default_rng(0)
    sizes = (9, 7, 3, 2, 2, 1)
    pool = answers(10, sizes, 30)
    drawn = [voted(tuple(pool[i] for i in rng.permutation(64)[:16])) for _ in range(4000)]
    assert majority_share(64, 10, sizes, 16) == pytest.approx(float(np.mean([float(x) for x in drawn])), abs=0.03)


def record(benchmark: str, counts: list[int], repeat: int = 0, n: int = 4, **more: object) -> EvaluationRecord:
    rows = tuple((key, correct, n) for key, correct in enumerate(counts))
    return EvaluationRecord("a", benchmark, 7, rows, 0.6, 0, repeat=repeat, **more)  # type: ignore[arg-type]


def means(figures: Mapping[int, MeanInterval]) -> dict[int, float]:
    return {k: one.mean for k, one in figures.items()}


def test_a_score_has_its_repeats_apart_and_its_interval_over_problems() -> None:
    one, other = record("x", [4, 0, 2], 1), record("x", [2, 0, 4], 2)
    found = score([one, other], (1, 2, 8))
    assert found.passes == (0.5, 0.5)
    assert found.sd == 0.0
    assert found.pass1 == mean_interval([6, 0, 6], [8, 8, 8])
    assert (found.problems, found.responses) == (3, 4)
    # Nothing can be said of 8 of 4 responses, nor of votes that were not counted.
    assert means(found.pass_at) == pytest.approx({1: 0.5, 2: (1 + 0 + 5 / 6) / 3})
    assert found.majority_at == {}
    votes = {0: (), 1: (2, 2), 2: (1, 1)}
    assert means(score([record("x", [4, 0, 2], votes=votes)], (4,)).majority_at) == pytest.approx({4: 2 / 3})
    assert score([record("x", [4, 0, 2], votes={0: ()})], (4,)).majority_at == {}
    with pytest.raises(ValueError, match="different problems"):
        score([one, record("x", [4], 2)], ())
    with pytest.raises(ValueError, match="no repeat"):
        score([one, record("y", [4, 0, 2], 2)], ())


def test_the_aggregate_is_the_unweighted_mean_whatever_the_sizes() -> None:
    large = [score([record("x", [4] * 90 + [0] * 10, r) for r in (1, 2)], (2,))]
    small = [score([record("y", [1, 1], 1), record("y", [3, 3], 2)], (2,))]
    both = aggregate([*large, *small])
    assert both.passes == pytest.approx((0.575, 0.825))
    assert both.pass1.mean == pytest.approx((0.9 + 0.5) / 2)
    assert both.sd == pytest.approx(np.std([0.575, 0.825], ddof=1))
    assert means(both.pass_at) == pytest.approx({2: (large[0].pass_at[2].mean + small[0].pass_at[2].mean) / 2})
    assert both.problems == 102
    alone = aggregate(large)
    assert alone.pass1 == pytest.approx(large[0].pass1)
    with pytest.raises(ValueError, match="different numbers of repeats"):
        aggregate([*large, score([record("y", [1, 1])], ())])


def test_the_interval_of_the_aggregate_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    truth = float(np.mean([1 / 2.5, 0.4 / 3.4]))
    inside = 0
    for _ in range(300):
        scores = []
        for name, (a, b) in zip("xy", ((1, 1.5), (0.4, 3)), strict=True):
            right = rng.binomial(4, rng.beta(a, b, 40))
            scores.append(score([record(name, right.tolist())], ()))
        interval = aggregate(scores).pass1
        inside += interval.low <= truth <= interval.high
    assert 0.91 <= inside / 300 <= 0.99


def test_pass_at_all_responses_has_the_interval_of_a_share_of_problems() -> None:
    found = score([record("x", [4, 0, 1, 0, 2, 0, 0, 3])], (1, 4))
    low, high = wilson_interval(4, 8)
    # The spread of a sample is that of its mean times n / (n - 1), so its effective number is one problem less.
    assert found.pass_at[4].mean == 0.5
    assert found.pass_at[4].low == pytest.approx(low, abs=0.02)
    assert found.pass_at[4].high == pytest.approx(high, abs=0.02)
    assert found.pass_at[1] == found.pass1


@pytest.mark.parametrize("k", [2, 4])
def test_the_intervals_of_pass_at_k_and_maj_at_k_cover_as_often_as_they_say(k: int) -> None:
    rng = np.random.default_rng(k)
    chances = rng.beta(1, 1.5, 4_000)
    votes = binomial_majority(chances, k)
    truth = {"pass": float(np.mean(1 - (1 - chances) ** k)), "maj": float(votes.mean())}
    inside = {"pass": 0, "maj": 0}
    for _ in range(300):
        drawn = rng.choice(chances, 60)
        right = rng.binomial(4, drawn)
        # One wrong answer, so that right ones win by votes alone and ties are drawn.
        wrong = {key: ((4 - int(c)),) if c < 4 else () for key, c in enumerate(right)}
        found = score([record("x", right.tolist(), votes=wrong)], (k,))
        for name, figures in (("pass", found.pass_at), ("maj", found.majority_at)):
            inside[name] += figures[k].low <= truth[name] <= figures[k].high
    assert all(0.9 <= count / 300 <= 0.99 for count in inside.values()), inside


def binomial_majority(chances: np.ndarray, k: int) -> np.ndarray:
    """The chance that more than half of k responses are right, ties half."""
    return sum(
        math.comb(k, right) * chances**right * (1 - chances) ** (k - right) * (1.0 if 2 * right > k else 0.5)
        for right in range(k + 1)
        if 2 * right >= k
    )
