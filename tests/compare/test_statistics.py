"""Differences are paired by seed, over the members that both arms train, at the end, at equal rollouts and cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from server.store.comparison import (
    AT_END,
    EQUAL_COST,
    EQUAL_ROLLOUTS,
    Comparison,
    Paired,
    Spread,
    default_baseline,
    default_cost,
)
from server.store.results import CHECKPOINTS, Protocol, Selection
from tests.compare.made import GRAFT, GRPO, arm, comparison, run


def values(paired: Spread) -> list[float]:
    return list(paired.by_seed.values())


def test_differences_are_paired_by_seed_at_the_end_and_within_the_baselines_cost() -> None:
    both = comparison(GRPO, GRAFT)
    assert values(both.against(GRAFT, GRPO, AT_END)) == pytest.approx([0.2, 0.25])
    assert values(both.against(GRAFT, GRPO, EQUAL_ROLLOUTS)) == pytest.approx([0.2, 0.25])
    # 54 * 1.25 = 67.5 <= 72 < 72 * 1.25
    assert values(both.against(GRAFT, GRPO, EQUAL_COST)) == pytest.approx([0.1, 0.1])
    # The baseline is cheaper than the arm: it is taken at its end, never flattered.
    assert values(both.against(GRPO, GRAFT, EQUAL_COST)) == pytest.approx([-0.2, -0.25])


def test_twice_the_rollouts_are_compared_at_half_of_the_steps() -> None:
    curve = {"heldout": {0: [0.2] * 3, 36: [0.65] * 3, 72: [0.8] * 3}}
    wide = arm("grpo-16", run(0, curve, rollouts_per_step=16))
    both = comparison(GRPO, wide)
    assert values(both.against(wide, GRPO, EQUAL_ROLLOUTS)) == pytest.approx([-0.05])
    assert values(both.against(wide, GRPO, AT_END)) == pytest.approx([0.1])


def test_a_pair_is_compared_with_the_same_members_and_their_share_of_the_cost() -> None:
    pair = arm("pair", run(0, {"heldout": {0: [0.2, 0.2], 36: [0.5, 0.5], 72: [0.8, 0.8]}}, members="ab"))
    both = comparison(GRPO, pair)
    assert values(both.against(pair, GRPO)) == pytest.approx([0.2])
    # 72 s * 2/3 = 48 s of the pair: step 36.
    assert values(both.against(pair, GRPO, EQUAL_COST)) == pytest.approx([-0.1])
    assert values(both.against(pair, GRPO, member="c")) == []


def test_the_spread_and_the_interval_are_those_of_textbooks() -> None:
    drawn = (0.1, 0.2, 0.4, 0.05, 0.15)
    paired = Paired(dict(enumerate(drawn)))
    expected = stats.t.interval(0.95, 4, loc=np.mean(drawn), scale=np.std(drawn, ddof=1) / np.sqrt(5))
    assert paired.interval == pytest.approx(expected)
    # By hand: mean 0.18, squared deviations 0.0064 + 0.0004 + 0.0484 + 0.0169 + 0.0009 = 0.073, sd sqrt(0.073 / 4).
    assert paired.mean == pytest.approx(0.18)
    assert paired.sd == pytest.approx(0.135093, abs=1e-6)
    # t(0.975, 4) = 2.776445; half width 2.776445 * 0.135093 / sqrt(5).
    assert paired.interval == pytest.approx((0.18 - 0.167740, 0.18 + 0.167740), abs=1e-5)


def test_too_few_seeds_have_no_spread_and_no_interval() -> None:
    assert Spread({}).mean is None
    assert Spread({0: 0.5}).sd is None
    assert Paired({0: 0.1}).interval is None
    assert Paired({}).interval is None


def test_seeds_that_one_side_has_alone_are_named_and_enter_no_difference() -> None:
    other = arm("graft", GRAFT.runs[1], run(7, {"heldout": {0: [0.2] * 3, 72: [0.9] * 3}}))
    paired = comparison(GRPO, other).against(other, GRPO)
    assert list(paired.by_seed) == [1]
    assert (paired.unpaired, paired.unpaired_baseline) == ((7,), (0,))


def test_the_average_is_the_unweighted_mean_of_the_test_benchmarks() -> None:
    one = run(0, {"small": {0: [0.0, 0.0], 4: [0.1, 0.3]}, "large": {0: [0.4, 0.4], 4: [0.5, 0.7]}}, members="ab")
    one = replace(one, protocol={"small": Protocol(30, 240, 0.6), "large": Protocol(500, 4000, 0.6)})
    only = comparison(arm("grpo", one))
    assert only.benchmarks == ("small", "large")
    assert values(only.after(only.arms[0])) == pytest.approx([0.4])
    assert values(only.after(only.arms[0], "b")) == pytest.approx([0.5])
    assert values(only.after(only.arms[0], "b", "small")) == pytest.approx([0.3])
    assert values(only.before(only.arms[0])) == pytest.approx([0.2])
    validating = replace(one, protocol={**one.protocol, "small": Protocol(30, 240, 0.6, "validation")})
    assert comparison(arm("grpo", validating)).benchmarks == ("large",)


def test_what_is_missing_is_missing_and_not_a_mean_of_the_rest() -> None:
    holed = run(0, {"x": {0: [0.1, 0.1], 4: [0.2, 0.4]}, "y": {0: [0.1, 0.1]}}, members="ab")
    only = comparison(arm("grpo", holed))
    assert values(only.after(only.arms[0])) == []
    assert values(only.after(only.arms[0], benchmark="x")) == pytest.approx([0.3])
    assert only.spent(only.arms[0], "gpu_seconds").mean is None
    assert only.cost_kinds == ("rollouts", "rollout_tokens", "cpu_seconds")


def test_the_best_checkpoint_is_chosen_for_each_member_by_the_runs_own_rule() -> None:
    curves = {
        "valid": {0: [0.9, 0.9], 2: [0.5, 0.1], 4: [0.3, 0.2]},
        "test": {0: [0.0, 0.0], 2: [0.6, 0.6], 4: [0.8, 0.8]},
    }
    one = run(0, curves, members="ab", selection=Selection("mean", "validation", ("valid",)))
    one = replace(
        one, protocol={"valid": Protocol(5, 5, 1.0, "validation"), "test": Protocol(5, 5, 1.0)},
        repeats={"test": {2: {"a": 0.55}, 4: {"b": 0.75}}},
    )  # fmt: skip
    both = arm("grpo", one)

    def after(checkpoint: str) -> list[float]:
        return values(Comparison((both,), ("grpo",), "cpu_seconds", CHECKPOINTS[checkpoint]).after(both))

    assert after("last") == pytest.approx([0.8])
    assert after("best") == pytest.approx([0.7])  # a at step 2, b at step 4; the start is no candidate
    assert after("repeats") == pytest.approx([0.65])


def test_within_a_budget_the_best_affordable_checkpoint_is_taken() -> None:
    dear = arm(
        "graft", run(0, {"heldout": {0: [0.2] * 3, 36: [0.8] * 3, 54: [0.7] * 3, 72: [0.9] * 3}}, cpu_per_step=1.25)
    )
    both = Comparison((GRPO, dear), ("grpo",), "cpu_seconds", CHECKPOINTS["best"])
    assert values(both.against(dear, GRPO, EQUAL_COST)) == pytest.approx([0.1])
    assert values(both.against(dear, GRPO)) == pytest.approx([0.2])


def test_the_baseline_and_the_cost_follow_from_the_arms() -> None:
    assert default_baseline((GRAFT, GRPO)) == "grpo"
    assert default_baseline((GRAFT,)) == "graft"
    timed = replace(GRPO.runs[0], cost={**GRPO.runs[0].cost, "gpu_seconds": GRPO.runs[0].cost["cpu_seconds"]})
    assert default_cost((GRPO,)) == "cpu_seconds"
    assert default_cost((arm("grpo", timed),)) == "gpu_seconds"
    assert default_cost((arm("grpo", timed), GRAFT)) == "cpu_seconds"
