"""From the store's arrays to the frames of charts and tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import frames, frames_population
from dashboard.measures import MEASURES
from graft.complementarity import uptake, wilson_interval
from server.store.reader import EvaluationSummary, GraftedRecord, TransferRecord


@given(first=st.integers(1, 30_000), length=st.integers(1, 30_000), most=st.integers(2, 80))
def test_buckets_cover_the_window_once_and_are_few(first: int, length: int, most: int) -> None:
    last = first + length - 1
    edges = frames.bucket_edges(first, last, most)
    assert edges[0] == first - 1
    assert edges[-1] == last
    assert all(low < high for low, high in itertools.pairwise(edges))
    assert len(edges) - 1 <= most


def test_a_full_bucket_never_changes_as_the_run_goes_on() -> None:
    before, after = frames.bucket_edges(1, 431), frames.bucket_edges(1, 440)
    assert before[:-1] == after[: len(before) - 1]
    assert before[1] - before[0] == 10


def test_one_step_is_one_bucket() -> None:
    assert frames.bucket_edges(7, 7) == [6, 7]
    assert frames.bucket_text([6, 7], 0) == "7"
    assert frames.bucket_text([1000, 1010], 0) == "1,001–1,010"


def test_intervals_of_arrays_are_wilsons_and_missing_where_there_is_no_case() -> None:
    share, low, high = frames.wilson(np.array([[3, 0]]), np.array([[10, 0]]))
    assert share[0, 0] == 0.3
    assert (low[0, 0], high[0, 0]) == wilson_interval(3, 10)
    assert np.isnan([share[0, 1], low[0, 1], high[0, 1]]).all()


def test_values_keep_their_intervals_and_their_gaps() -> None:
    value, half = np.array([[0.25, math.nan], [-0.5, 0.1]]), np.array([[0.1, math.nan], [0.2, 0.3]])
    curves, hover = frames.value_curves(["x", "y"], [0, 5, 10], value, half)
    assert curves["member"].tolist() == ["x", "y", "x", "y"]
    np.testing.assert_allclose(curves["low"], [0.15, math.nan, -0.7, -0.2])
    np.testing.assert_allclose(curves["high"], [0.35, math.nan, -0.3, 0.4])
    assert hover["m0"].tolist() == ["+0.25 ± 0.10", "−0.50 ± 0.20"]
    assert hover["m1"].tolist() == ["–", "+0.10 ± 0.30"]


def test_correlations_say_over_how_many_prompts_and_stay_within_their_range() -> None:
    value, half, n = np.array([[0.95], [np.nan]]), np.array([[0.2], [np.nan]]), np.array([[12], [0]])
    curves, hover = frames.value_curves(["x"], [0, 5, 10], value, half, n, bounds=(-1.0, 1.0))
    assert (curves["low"][0], curves["high"][0]) == (0.75, 1.0)
    assert hover["m0"].tolist() == ["+0.95 ± 0.20 (n 12)", "–"]


def test_coverage_is_that_of_the_best_share_and_of_the_exact_mean() -> None:
    union, prompts = np.array([9.0, 0.0]), np.array([12.0, 0.0])
    solved, asked = np.array([[6.0, 6.0, 5.0], [0.0, 0.0, 0.0]]), np.array([[12.0, 10.0, 12.0], [0.0, 0.0, 0.0]])
    k, n = frames.coverage_counts(union, prompts, solved, asked)
    # The second member's 6 of 10 are the best share, though the first solved as many.
    assert k[0].tolist() == pytest.approx([9, 6, 12 * (6 / 12 + 6 / 10 + 5 / 12) / 3])
    assert n[0].tolist() == [12, 10, 12]
    _, hover = frames.rate_curves(["all", "best", "mean"], [0, 5, 10], k, n)
    assert hover.iloc[0].tolist()[2:] == ["75.0\u00a0% (9/12)", "60.0\u00a0% (6/10)", "50.6\u00a0% (6.1/12)"]
    assert hover.iloc[1].tolist()[2:] == ["–", "–", "–"]


def test_uptake_rows_put_all_first_then_the_pairs_with_most_controls() -> None:
    names = ("grafted_seen", "grafted_solved", "held_out_seen", "held_out_solved")
    edges = {name: np.zeros((3, 3), np.int64) for name in names}
    for (i, j), counts in {(0, 1): (40, 30, 10, 5), (1, 0): (20, 10, 20, 10), (2, 0): (9, 3, 0, 0)}.items():
        for name, count in zip(names, counts, strict=True):
            edges[name][i, j] = count
    total = dict(zip(names, (69, 43, 30, 15), strict=True))
    rows, cut = frames.uptake_rows(["a", "b", "c"], edges, total, 12)
    assert rows["row"].tolist() == ["all  (n 69 v 30)", "b ← a  (n 20 v 20)", "a ← b  (n 40 v 10)"]
    assert cut == 0
    change = uptake(30, 40, 5, 10)
    assert rows["value"][2] == pytest.approx(25.0)
    assert rows["high"][2] - rows["value"][2] == pytest.approx(100 * frames.Z * change.standard_error)
    short, cut = frames.uptake_rows(["a", "b", "c"], edges, total, 1)
    assert (len(short), cut) == (2, 1)


def test_pairs_with_few_visits_of_a_kind_are_left_out_and_counted() -> None:
    names = ("grafted_seen", "grafted_solved", "held_out_seen", "held_out_solved")
    edges = {name: np.zeros((2, 2), np.int64) for name in names}
    for name, few, enough in zip(names, (40, 40, 4, 0), (5, 4, 5, 1), strict=True):
        edges[name][0, 1], edges[name][1, 0] = few, enough
    rows, cut = frames.uptake_rows(["a", "b"], edges, dict(zip(names, (45, 44, 9, 1), strict=True)), 12)
    assert [row.partition("  ")[0] for row in rows["row"]] == ["all", "b ← a"]
    assert cut == 1
    assert not frames.enough_visits(dict(zip(names, (40, 40, 4, 0), strict=True)))


def test_of_many_members_those_furthest_from_the_mean_are_drawn() -> None:
    shares = frames.ratio(np.array([5, 50, 5, 0, *[5] * 10]), np.array([10, 50, 10, 0, *[10] * 10]))
    weight = frames.unlike(shares)
    assert np.argmax(weight) == 1
    # A member that has no value is as little telling as one at the mean.
    assert weight[3] == 0
    assert 1 in frames.most_telling(range(14), weight)
    assert len(frames.most_telling(range(14), weight)) == 8
    assert frames.most_telling([2, 3], weight) == [2, 3]


def test_curves_leave_gaps_and_mark_lone_points() -> None:
    edges = list(range(21))
    k = np.ones((20, 2), dtype=np.int64)
    n = np.full((20, 2), 4, dtype=np.int64)
    n[[4, 6], 0] = 0
    curves, hover = frames.rate_curves(["a", "b"], edges, k, n)
    a = curves[curves["member"] == "a"].set_index("step")
    assert a["value"].isna().sum() == 2
    assert a.index[a["lone"]].tolist() == [6]
    assert not curves[curves["member"] == "b"]["lone"].any()
    assert hover["m0"].tolist()[3:6] == ["25.0\u00a0% (1/4)", "–", "25.0\u00a0% (1/4)"]


def test_a_short_run_shows_every_point() -> None:
    curves, _ = frames.rate_curves(["a"], [0, 1], np.array([[1]]), np.array([[2]]))
    assert curves["lone"].all()


def test_heatmap_cells_carry_share_support_and_the_ring_but_no_diagonal() -> None:
    k, n = np.array([[0, 3], [0, 0]]), np.array([[0, 10], [0, 0]])
    values = MEASURES[0].read({"solved": k, "both_attempted_fail": n})
    cells = frames_population.matrix_cells(["a", "b"], MEASURES[0], values, (0, 1)).set_index(["row", "column"])
    assert len(cells) == 2
    assert cells.loc[("a", "b"), "main"] == "30\u00a0%"
    assert cells.loc[("a", "b"), "support"] == "n = 10"
    assert bool(cells.loc[("a", "b"), "selected"])
    assert math.isnan(cells.loc[("b", "a"), "tone"])
    assert cells.loc[("b", "a"), "main"] == "–"


def test_patterns_name_their_solvers_and_link_first_to_last() -> None:
    patterns = [((True, False, True), 6), ((False,) * 3, 3), ((True,) * 3, 1)]
    shown = frames_population.pattern_frames(["a", "b", "c"], patterns, 10)
    assert shown["patterns"]["detail"].tolist() == ["a, c", "nobody", "everybody"]
    assert shown["patterns"]["share"].tolist() == [0.6, 0.3, 0.1]
    assert shown["links"].to_dict("list") == {"rank": [0, 2], "top": ["a", "a"], "bottom": ["c", "c"]}
    assert len(shown["dots"]) == 9


def evaluation(member: str, step: int, mean: float) -> EvaluationSummary:
    return EvaluationSummary(member, "held-out", step, mean, mean - 0.1, mean + 0.1, 300, 1200, 0.6, 1)


def test_before_and_now_are_the_first_and_the_last_evaluation() -> None:
    results = [evaluation("a", 10, 0.5), evaluation("a", 0, 0.3), evaluation("a", 5, 0.4), evaluation("b", 0, 0.2)]
    scores, moves = frames.before_after(["a", "b", "c"], ["A", "B", "C"], results)
    assert scores[["member", "when", "value"]].values.tolist() == [
        ["A", "before", 0.3],
        ["A", "now", 0.5],
        ["B", "before", 0.2],
    ]
    assert [(label, first.step, last.step) for label, first, last in moves] == [("A", 0, 10), ("B", 0, 0)]


def test_the_member_table_writes_counts_beside_every_rate() -> None:
    counts = {
        name: np.array([value]) for name, value in {"successes": 5, "rollouts": 8, "all_fail": 0, "groups": 0}.items()
    }
    metrics = {
        "entropy": (np.array([4.0]), np.array([8.0])),
        "clip_own": (np.array([42.0]), np.array([100_000.0])),
        "clip_peer": (np.array([0.0]), np.array([0.0])),
        "tokens_per_second_rollout": (np.array([6480.0]), np.array([2.0])),
    }
    bounds = np.array([[0.25], [0.875]]), np.full((2, 1), np.nan)
    row = frames.member_table(["a"], counts, [[0.5, math.nan]], metrics, *bounds).iloc[0]
    assert (row["Accuracy"], row["95 %"]) == ("62.5\u00a0%", "25.0–87.5\u00a0%")
    assert row["Rollouts"] == "5/8"
    assert (row["All-fail"], row["95 % "], row["Groups"]) == ("–", "–", "–")
    assert (row["Entropy"], row["Clip own"], row["Clip peer"], row["Tokens/s"]) == (
        "0.500 (n 8)",
        "0.042\u00a0% (n 100k)",
        "–",
        "3,240",
    )
    assert row["Trend"] == [0.5]


@pytest.mark.parametrize("s", [None, math.nan, 0.61])
def test_the_gate_strip_shows_scored_responses_only(s: float | None) -> None:
    transfer = TransferRecord("a", "b", 1, 0.5, False, False, (GraftedRecord(1, s, 0.0, "floor", 5, -1.0, 5, -1.0),))
    shown = frames.gate_frames(transfer, [0.0, 1.0], 0.8)
    assert len(shown["responses"]) == (s == 0.61)
    if s == 0.61:
        assert shown["responses"].iloc[0].to_dict() == {
            "index": "#1", "s": 0.61, "lift": 0, "verdict": "refused", "answer": "right", "detail": "0.610"
        }  # fmt: skip
    assert shown["floor"]["text"].tolist() == ["floor 0.80"]
    assert frames.gate_frames(transfer, [0.0, 1.0], None)["floor"].empty


def test_the_gate_strip_does_not_guess_answers_of_a_group_that_is_not_stored() -> None:
    transfer = TransferRecord("a", "b", 1, 0.5, False, False, (GraftedRecord(1, 0.9, 0.9, None, 5, -1.0, 5, -1.0),))
    assert frames.gate_frames(transfer, [], 0.8)["responses"]["answer"].tolist() == ["unknown"]


def test_points_of_equal_s_are_lifted_apart() -> None:
    assert frames.lifts([0.5, 0.5, 0.9, 0.5, 0.7], 0.8) == [0, 1, 0, 2, 0]
    assert frames.lifts([0.5, 0.5], None) == [0, 1]
    assert frames.lifts([], 0.8) == []
