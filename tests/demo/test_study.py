"""The comparison is paired by seed, at equal rollouts and at equal CPU, over the members that the arm has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from population.demo.study import ARMS, Paired, Result, as_json, compare, from_json, markdown


def result(members: str, curve: dict[int, list[float]], cpu_per_step: float) -> Result:
    return Result(
        tuple(members),
        {step: np.array(row) for step, row in curve.items()},
        {step: step * cpu_per_step for step in curve},
    )


BASE = {
    0: result("abc", {0: [0.2, 0.2, 0.2], 36: [0.4, 0.5, 0.6], 72: [0.6, 0.6, 0.9]}, 1.0),
    1: result("abc", {0: [0.2, 0.2, 0.2], 36: [0.4, 0.5, 0.6], 72: [0.5, 0.7, 0.9]}, 1.0),
}


def test_differences_are_paired_by_seed_at_the_last_step_and_within_the_baselines_cpu() -> None:
    arm = {seed: result("abc", {0: [0.2] * 3, 36: [0.7] * 3, 54: [0.8] * 3, 72: [0.9] * 3}, 1.25) for seed in (0, 1)}
    rollouts, cpu = compare(arm, BASE)
    assert rollouts.differences == pytest.approx((0.2, 0.2))
    assert cpu.differences == pytest.approx((0.1, 0.1))  # 54 * 1.25 = 67.5 <= 72 < 72 * 1.25


def test_a_pair_is_compared_with_the_same_members_and_their_share_of_the_cpu() -> None:
    arm = {0: result("ab", {0: [0.2, 0.2], 36: [0.5, 0.5], 72: [0.8, 0.8]}, 1.0)}
    rollouts, cpu = compare(arm, BASE)
    assert rollouts.differences == pytest.approx((0.2,))
    assert cpu.differences == pytest.approx((-0.1,))  # 72 s * 2/3 = 48 s: step 36


def test_the_interval_is_the_paired_t_interval() -> None:
    values = (0.1, 0.2, 0.4, 0.05, 0.15)
    low, high = Paired(values).interval or (0.0, 0.0)
    expected = stats.t.interval(0.95, 4, loc=np.mean(values), scale=np.std(values, ddof=1) / np.sqrt(5))
    assert (low, high) == pytest.approx(expected)
    assert Paired((0.1,)).interval is None


def test_the_table_shows_every_seed_the_spread_and_signed_differences() -> None:
    text = markdown({"grpo": BASE, "graft": BASE})
    assert {line.count("|") for line in text.strip().splitlines()} == {9}
    assert "| grpo | 0.200 | 0.700 0.700 | 0.700 ± 0.000 | 72 | – | – | – |" in text
    assert "| graft | 0.200 | 0.700 0.700 | 0.700 ± 0.000 | 72 | +0.000 [+0.000, +0.000] |" in text


def test_results_survive_json() -> None:
    text = as_json({"grpo": BASE})
    assert as_json(from_json(text)) == text


def test_the_documented_table_is_computed_from_the_recorded_results() -> None:
    results = from_json(Path("docs/demo_study.json").read_text())
    assert list(results) == list(ARMS)
    assert all(sorted(by_seed) == [0, 1, 2, 3, 4] for by_seed in results.values())
    assert markdown(results).strip() in Path("docs/demo.md").read_text()
