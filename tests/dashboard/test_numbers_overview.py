"""Every number of the Overview is that of the raw rows: over the run, over a window, and for one member."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from tests.dashboard import raw_rows
from tests.dashboard.conftest import View
from tests.dashboard.numbers_store import BROKEN_STEP, STEPS
from tests.dashboard.raw_rows import Run
from tests.dashboard.shown import MISSING, chart, curves, figures, said, says, table, texts, within

Pages = Callable[..., AppTest]


@pytest.fixture
def page(page_of: Pages, view: View) -> AppTest:
    return page_of("", **view.query)


def by_prompt(rows: list[tuple[object, float, float]]) -> tuple[raw_rows.Interval, raw_rows.Interval]:
    """Where the bounds lie when prompts are drawn whole; never inside Wilson's."""
    wilson = raw_rows.wilson(sum(k for _, k, _ in rows), sum(n for *_, n in rows))
    lows, highs = raw_rows.by_cluster(rows)
    return (min(wilson[0], lows[0]), min(wilson[0], lows[1])), (max(wilson[1], highs[0]), max(wilson[1], highs[1]))


def test_the_figures_are_shares_of_the_raw_rows_with_intervals_by_prompt(
    page: AppTest, view: View, counted: Run
) -> None:
    first, last = view.first, view.last
    groups, moved = counted.groups(first, last), counted.transfers(first, last)
    rescued = [
        (group.prompt, float(given), 1.0)
        for m in counted.members
        for group, _, given in counted.rescued(first, last, m)
    ]
    rows: dict[str, tuple[str, list[tuple[object, float, float]]]] = {
        "All-fail groups": ("group", [(g.prompt, float(g.all_fail), 1.0) for g in groups]),
        "Rescued by a peer": ("group", rescued),
        "Admitted by the gate": ("response", [(t.prompt, float(t.admitted), float(len(t.gates))) for t in moved]),
    }
    metrics = {metric.label: metric.value for metric in page.metric}
    intervals = [text for text in texts(page) if text.startswith("95 %:")]
    assert len(intervals) == len(rows)
    for interval, (label, (unit, counts)) in zip(intervals, rows.items(), strict=True):
        k, n = (round(sum(row[at] for row in counts)) for at in (1, 2))
        assert 0 < k < n
        assert says(metrics[label], 100 * k / n)
        assert said(page, f"[{k:,} of {n:,} {unit}s]")
        assert within(interval, by_prompt(counts)), (label, interval)
    assert metrics["Progress"] == "100\u00a0%"


def test_the_members_table_is_that_of_the_raw_rows(page: AppTest, view: View, counted: Run) -> None:
    first, last, slots = view.first, view.last, view.slots
    shown = table(page, "Accuracy")
    assert shown["Member"].tolist() == [counted.names[slot] for slot in slots]
    for (_, row), slot in zip(shown.iterrows(), slots, strict=True):
        groups = counted.groups(first, last, slot)
        accuracy = [(g.prompt, float(g.right), float(g.n)) for g in groups]
        failed = [(g.prompt, float(g.all_fail), 1.0) for g in groups]
        for rows, share, interval, counts in (
            (accuracy, "Accuracy", "95 %", "Rollouts"),
            (failed, "All-fail", "95 % ", "Groups"),
        ):
            k, n = (sum(one[at] for one in rows) for at in (1, 2))
            assert says(row[share], 100 * k / n)
            assert row[counts] == f"{k:,.0f}/{n:,.0f}"
            assert within(":" + row[interval], by_prompt(rows)), (share, row[interval])
        for name, column, scale in (
            ("entropy", "Entropy", 1),
            ("clip_own", "Clip own", 100),
            ("clip_peer", "Clip peer", 100),
        ):
            values = counted.metric(name, first, last, slot)
            k, n = (math.fsum(part) for part in zip(*values, strict=True))
            assert says(row[column], scale * k / n, n), (column, row[column])
        speed = counted.metric("tokens_per_second_rollout", first, last, slot)
        assert says(row["Tokens/s"], sum(k for k, _ in speed) / sum(n for _, n in speed))


@pytest.mark.parametrize("what", ["accuracy", "all-fail"])
def test_curves_are_shares_of_each_points_steps_with_wilsons_interval(
    page: AppTest, view: View, counted: Run, what: str
) -> None:
    first, last, slots = view.first, view.last, view.slots
    points = curves(page, f"{what} of every member over")
    assert {(low, high) for _, low, high, *_ in points} == {(step, step) for step in range(first, last + 1)}
    assert {name for name, *_ in points} == {counted.names[slot] for slot in slots}
    for name, low, high, row, read in points:
        groups = counted.groups(low, high, counted.names.index(name))
        k, n = (
            (sum(g.right for g in groups), sum(g.n for g in groups))
            if what == "accuracy"
            else (sum(g.all_fail for g in groups), len(groups))
        )
        assert row["value"] == pytest.approx(k / n)
        assert (row["low"], row["high"]) == pytest.approx(raw_rows.wilson(k, n), abs=1e-9)
        assert says(read.replace("/", " "), 100 * k / n, k, n)


def test_held_out_changes_are_paired_by_problem(page_of: Pages, counted: Run) -> None:
    page = page_of("", bench="held-out")
    shown, scores = (
        table(page, "Change"),
        chart(page, "before training and now")["scores"].set_index(["member", "when"]),
    )
    joint = []
    for slot, name in enumerate(counted.names):
        row = shown.iloc[slot]
        before, now = (counted.problems("held-out", step, slot) for step in (0, STEPS))
        change = [now[key][0] / now[key][1] - before[key][0] / before[key][1] for key in now]
        joint.append(change)
        low, high = raw_rows.normal(change)
        assert row["Member"].replace("\\", "") == name
        assert says(row["Change"].replace("to", " "), *(100 * part for part in (np.mean(change), low, high)))
        for when, column, rows in (("before", "Before (step 0)", before), ("now", f"Now (step {STEPS})", now)):
            shares = [right / n for right, n in rows.values()]
            interval = raw_rows.over_problems(shares, sum(n for _, n in rows.values()))
            text = row[column].replace(MISSING, " ").replace("&nbsp;", " ")
            assert says(text, *(100 * part for part in (np.mean(shares), *interval)))
            drawn = scores.loc[(name, when)]
            assert (drawn["value"], drawn["low"], drawn["high"]) == pytest.approx((np.mean(shares), *interval))
    means = np.mean(joint, axis=0)
    line = said(page, "Held-out accuracy").replace("to", " ")
    up = sum(np.mean(change) > 0 for change in joint)
    assert says(line, 100 * means.mean(), *(100 * part for part in raw_rows.normal(means)), up, 3, len(means))


def test_the_answers_are_those_of_the_raw_rows(page: AppTest, view: View, counted: Run) -> None:
    first, last = view.first, view.last
    pairs = {
        (i, j): sum(t.admitted > 0 for t in counted.pair(first, last, i, j))
        for i in counted.members
        for j in counted.members
    }
    got = {i: sum(pairs[i, j] for j in counted.members) for i in counted.members}
    lines = [line for text in texts(page) for line in text.split("\n") if "&nbsp;" in line and "←" in line]
    strongest = sorted(pairs.values(), reverse=True)[: len(lines)]
    assert [figures(line)[0][0] for line in lines] == strongest
    for line in lines:
        receiver, source = (
            counted.names.index(part.replace("\\", "").strip()) for part in line.partition("&nbsp;")[0].split("←")
        )
        assert says(line, pairs[receiver, source], got[receiver])
    ends = [counted.groups(step, step) for step in (first, last)]
    shares = []
    for groups in ends:
        k, n = sum(g.all_fail for g in groups), len(groups)
        shares += [100 * part for part in (k / n, *raw_rows.wilson(k, n))]
    assert says(said(page, "All-fail groups").replace(MISSING, " "), *shares, first, last, *map(len, ends))


def test_uptake_is_that_of_each_receivers_next_visits(page: AppTest, view: View, counted: Run) -> None:
    first, last = view.first, view.last
    moved = counted.transfers(first, last)
    places = {(t.step, t.receiver, t.prompt): t for t in moved}.values()
    rows = chart(page, "solving at the next visit")["uptake"].set_index("order")
    pairs = {
        f"{counted.names[i]} ← {counted.names[j]}": counted.pair(first, last, i, j)
        for i in counted.members for j in counted.members if i != j
    }  # fmt: skip
    assert len(rows) > 1
    for order, row in rows.iterrows():
        label = row["row"].partition("  ")[0]
        counts = counted.uptake(places if order == 0 else pairs[label])
        change, (low, high) = raw_rows.difference(*counts)
        assert row["value"] == pytest.approx(100 * change)
        assert (row["low"], row["high"]) == pytest.approx((max(-100, 100 * low), min(100, 100 * high)))
        assert says(row["row"].partition("  ")[2], counts[1], counts[3])
        assert says(row["after"].replace("/", " "), 100 * counts[0] / counts[1], *counts[:2])
        assert says(row["withheld"].replace("/", " "), 100 * counts[2] / counts[3], *counts[2:])
    met = sum(counted.next_visit(t) is not None for t in places)
    assert says(said(page, "met again so far").partition("so far: ")[2].partition(" ·")[0], met, len(places))


def test_numbers_that_are_none_are_counted(page: AppTest, view: View, counted: Run) -> None:
    first, last = view.first, view.last
    lines = [text for text in texts(page) if text.startswith("Not a number")]
    assert len(lines) == 1
    broken = 1 if first <= BROKEN_STEP <= last else 0
    assert ("grad norm of" in lines[0]) == bool(broken)
    late = [step for step in range(first, last + 1) if step >= STEPS - 1]
    assert f"in {len(late)} step" in lines[0] or not late
