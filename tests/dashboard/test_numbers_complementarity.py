"""Every number of Complementarity is that of the raw rows: matrices, their course, a cell, patterns and the graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from tests.dashboard import raw_rows
from tests.dashboard.conftest import View
from tests.dashboard.raw_rows import Interval, Run
from tests.dashboard.shown import MISSING, chart, curves, diagram, said, says, steps, table, texts, within

Pages = Callable[..., AppTest]
Value = tuple[float, Interval | None, int]
MATRICES = ("complementarity", "compatibility", "admitted", "uptake", "failing")
CELL = (1, 0)


@pytest.fixture(params=MATRICES)
def matrix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def page(page_of: Pages, view: View, matrix: str) -> AppTest:
    return page_of("complementarity", matrix=matrix, over="true", cell=f"{CELL[0]}-{CELL[1]}", **view.query)


def both_graded(run: Run, first: int, last: int, i: int, j: int) -> list[tuple[bool, bool]]:
    places = run.place(first, last).values()
    return [(own[i].all_fail, own[j].all_fail) for own in places if not (own[i].ungraded or own[j].ungraded)]


def value(run: Run, matrix: str, first: int, last: int, i: int, j: int) -> Value | None:
    """(value, its 95 % interval, n) of a cell; None where nothing was counted."""
    moved = run.pair(first, last, i, j)
    if matrix == "complementarity":
        beside = run.failed_beside(first, last, i, j)
        return share(sum(peer.right > 0 for _, peer in beside), len(beside))
    if matrix == "admitted":
        n = sum(len(t.gates) for t in moved)
        admitted = sum(t.admitted for t in moved)
        return (float(admitted), raw_rows.wilson(admitted, n), n) if n else None
    if matrix == "compatibility":
        scores = [(math.fsum(t.scores), float(len(t.scores))) for t in moved]
        n = sum(len(t.scores) for t in moved)
        if not n:
            return None
        mean, half = math.fsum(total for total, _ in scores) / n, raw_rows.ratio_half_width(scores)
        return mean, None if half is None else (max(0.0, mean - half), mean + half), n
    if matrix == "uptake":
        counts = run.uptake(moved)
        if not (counts[1] and counts[3]):
            return None
        change, (low, high) = raw_rows.difference(*counts)
        return change, (max(-1.0, low), min(1.0, high)), min(counts[1], counts[3])
    pairs = both_graded(run, first, last, i, j)
    found = raw_rows.phi(pairs)
    if found is None:
        return None
    middle, half = found[0], raw_rows.Z * found[1]
    return middle, (max(-1.0, middle - half), min(1.0, middle + half)), len(pairs)


def share(k: int, n: int) -> Value | None:
    return (k / n, raw_rows.wilson(k, n), n) if n else None


def written(matrix: str, *values: float) -> list[float]:
    """Values as they are written: shares in percent, differences in points."""
    return [100 * one if matrix in ("complementarity", "uptake") else one for one in values]


def interval_says(matrix: str, text: str, interval: Interval | None) -> bool:
    if interval is None:
        return text == MISSING
    bounds = [100 * one for one in interval] if matrix == "admitted" else written(matrix, *interval)
    return says(text.replace(MISSING, " ").replace("to", " "), *bounds, within=1e-4)


def test_every_cell_is_that_of_the_raw_rows(page: AppTest, view: View, matrix: str, counted: Run) -> None:
    cells = chart(page, ": ")["cells"]
    assert len(cells) == len(counted.names) * (len(counted.names) - 1)
    for row in cells.to_dict("records"):
        expected = value(counted, matrix, view.first, view.last, row["i"], row["j"])
        assert (row["row"], row["column"]) == (counted.names[row["i"]], counted.names[row["j"]])
        assert row["selected"] == ((row["i"], row["j"]) == CELL)
        if expected is None:
            assert row["main"] == row["range"] == MISSING
            assert row["counted"].startswith(MISSING)
            continue
        middle, interval, n = expected
        assert says(row["main"], *written(matrix, middle))
        assert says(row["support"], n)
        assert says(row["counted"], *written(matrix, middle), n)
        assert interval_says(matrix, row["range"], interval)
        if matrix != "admitted":
            assert row["tone"] == pytest.approx(middle)


def test_the_heading_is_the_chosen_cells(page: AppTest, view: View, matrix: str, counted: Run) -> None:
    found = value(counted, matrix, view.first, view.last, *CELL)
    assert found is not None
    middle, interval, n = found
    heading = next(element.value for element in page.subheader).partition(": ")[2]
    bounds = next(text for text in texts(page) if text.startswith("95 %: ")).partition(": ")[2]
    if matrix != "complementarity":
        assert says(heading, *written(matrix, middle), n)
        assert interval_says(matrix, bounds, interval)
        return
    beside = counted.failed_beside(view.first, view.last, *CELL)
    assert says(heading, sum(peer.right > 0 for _, peer in beside), n, 100 * middle)
    alone, _, by_prompt = bounds.partition(" · by prompt: ")
    assert interval_says(matrix, alone, interval)
    drawn, _, prompts = by_prompt.partition(" (")
    expected = raw_rows.by_cluster([(own.prompt, float(peer.right > 0), 1.0) for own, peer in beside])
    assert within(":" + drawn, expected), (drawn, expected)
    assert says(prompts, len({own.prompt for own, _ in beside}))


def test_the_prompts_behind_a_cell_are_those_it_counts(page_of: Pages, view: View, counted: Run) -> None:
    page = page_of("complementarity", matrix="complementarity", over="true", cell="1-0", **view.query)
    solved = [pair for pair in counted.failed_beside(view.first, view.last, *CELL) if pair[1].right]
    shown = table(page, "Transfer")
    assert len(shown) == min(8, len(solved))
    newest = sorted((own.step for own, _ in solved), reverse=True)[: len(shown)]
    assert [int(step) for step in shown["Step"]] == newest
    counts = {(own.step, f"{own.right}/{own.n}", f"{peer.right}/{peer.n}") for own, peer in solved}
    for row in shown.itertuples(index=False):
        assert (int(row[0]), row[3], row[4]) in counts
    if len(solved) > 8:
        assert says(said(page, f"of {len(solved)}").replace(MISSING, " "), 1, 8, len(solved))


def test_the_rows_history_is_that_of_each_points_steps(page: AppTest, view: View, matrix: str, counted: Run) -> None:
    titles = {
        "complementarity": "Complementarity", "compatibility": "Compatibility s", "admitted": "Admitted responses",
        "uptake": "Uptake", "failing": "Failing together",
    }  # fmt: skip
    words = f"{titles[matrix]} of every member over"
    for name, first, last, row, read in curves(page, words):
        expected = value(counted, matrix, first, last, CELL[0], counted.names.index(name))
        if expected is None:
            assert np.isnan(row["value"])
            assert read == MISSING
            continue
        middle, interval, n = expected
        assert says(read, *written(matrix, middle), n)
        assert row["value"] == pytest.approx(middle / n if matrix == "admitted" else middle)
        if interval is not None:
            assert (row["low"], row["high"]) == pytest.approx(interval, abs=1e-5)
    for row in chart(page, words)["means"].to_dict("records"):
        whole = value(counted, matrix, view.first, view.last, CELL[0], counted.names.index(row["member"]))
        assert whole is not None
        assert row["value"] == pytest.approx(whole[0] / whole[2] if matrix == "admitted" else whole[0])


def test_the_matrix_over_time_is_that_of_each_windows_steps(page: AppTest, matrix: str, counted: Run) -> None:
    tiles = chart(page, "in consecutive windows")["tiles"]
    assert len(set(tiles["steps"])) > 1
    for row in tiles.to_dict("records"):
        i, j = (counted.names.index(name) for name in row["pair"].split(" · "))
        expected = value(counted, matrix, *steps(row["steps"]), i, j)
        if expected is None:
            assert row["range"] == MISSING
            assert row["counted"].startswith(MISSING)
            continue
        middle, interval, n = expected
        assert says(row["counted"], *written(matrix, middle), n)
        assert interval_says(matrix, row["range"], interval)


def solvers(run: Run, first: int, last: int) -> Counter[tuple[str, ...]]:
    """How many prompts of a step each set of members solved."""
    places = run.place(first, last).values()
    return Counter(tuple(run.names[slot] for slot in sorted(own) if own[slot].right) for own in places)


def test_patterns_count_who_solved_the_same_prompt(page_of: Pages, view: View, counted: Run) -> None:
    page = page_of("complementarity", matrix="complementarity", over="true", cell="1-0", **view.query)
    expected = solvers(counted, view.first, view.last)
    total = sum(expected.values())
    words = {(): "nobody", tuple(counted.names): "everybody"}
    by_text = {words.get(who, ", ".join(who)): k for who, k in expected.items()}
    shown = chart(page, "solved the same prompt")["patterns"]
    assert {row["detail"]: round(row["share"] * total) for row in shown.to_dict("records")} == by_text
    for row in shown.to_dict("records"):
        k = by_text[row["detail"]]
        assert says(row["text"], 100 * k / total)
        assert says(row["counted"], k, total)
        assert says(row["range"].replace(MISSING, " "), *(100 * one for one in raw_rows.wilson(k, total)))
    assert says(said(page, "All patterns:"), total, total, 100)


def test_the_graph_of_members_joins_them_by_phi_over_the_window(page_of: Pages, view: View, counted: Run) -> None:
    page = page_of("complementarity", matrix="complementarity", over="true", cell="1-0", **view.query)
    series = diagram(page)["series"][0]
    links = series["links"]
    found = {frozenset(int(link[end].removeprefix("member ")) for end in ("source", "target")): link for link in links}
    for i, j in combinations(counted.members, 2):
        expected = value(counted, "failing", view.first, view.last, i, j)
        assert expected is not None
        assert found[frozenset((i, j))]["value"] == pytest.approx(expected[0], abs=0.0005)
    groups = counted.groups(view.first, view.last)
    for slot, node in enumerate(series["data"]):
        assert (node["name"], node["value"]) == (
            counted.names[slot],
            len({g.prompt for g in groups if g.member == slot and g.right}),
        )
    prompts = {g.prompt for g in groups}
    assert says(said(page, "prompts of steps").replace(MISSING, " "), len(prompts), view.first, view.last)


def test_one_member_and_one_prompt_of_the_graph_are_those_of_the_raw_rows(
    page_of: Pages, view: View, counted: Run
) -> None:
    groups = counted.groups(view.first, view.last)
    slot, name = 0, counted.names[0]
    page = page_of("complementarity", graph="one member", of=name, **view.query)
    tried = {g.prompt for g in groups if g.member == slot}
    solved = {m: {g.prompt for g in groups if g.member == m and g.right} for m in counted.members}
    failed = {g.prompt for g in groups if g.member == slot and g.all_fail} - solved[slot]
    others = set.union(*(solved[m] for m in counted.members if m != slot))
    only, lost = len(solved[slot] - others), len(failed & set.intersection(*(solved[m] for m in counted.members if m)))
    numbers: list[float] = []
    for k in (only, lost):
        numbers += [k, len(tried), *percents(k, len(tried))]
    assert says(said(page, "alone solved").replace(MISSING, " "), *numbers, within=0.005)
    key = max(tried, key=lambda prompt: sum(g.prompt == prompt for g in groups))
    visits = table(page_of("complementarity", graph="one prompt", prompt=str(key), **view.query), "Visits")
    for m in counted.members:
        own, row = [g for g in groups if (g.member, g.prompt) == (m, key)], visits.iloc[m]
        right, n = sum(g.right for g in own), sum(g.n for g in own)
        assert int(row["Visits"]) == len(own)
        assert says(row["Right"], right, n)
        assert says(row["Share"] + " " + row["95 %"].replace(MISSING, " "), *percents(right, n))
        newest = max(own, key=lambda g: g.step)
        assert row["Newest"] == f"step {newest.step}: {newest.right}/{newest.n}"


def percents(k: int, n: int) -> Sequence[float]:
    """A share and Wilson's bounds in percent."""
    return [100 * one for one in (k / n, *raw_rows.wilson(k, n))]


def test_coverage_and_failing_together_are_those_of_each_points_steps(page_of: Pages, view: View, counted: Run) -> None:
    page = page_of("complementarity", matrix="complementarity", over="true", cell="1-0", **view.query)
    for name, first, last, row, read in curves(page, "share of prompts solved of every member"):
        places = counted.place(first, last).values()
        k = [sum(own[m].right > 0 for own in places) for m in counted.members]
        n = len(places)
        expected = {
            "together": sum(any(g.right for g in own.values()) for own in places),
            "best member": max(k),
            "mean of members": sum(k) / len(k),
        }[name]
        assert row["value"] == pytest.approx(expected / n)
        assert (row["low"], row["high"]) == pytest.approx(raw_rows.wilson(expected, n), abs=1e-9)
        assert says(read.replace("/", " "), 100 * expected / n, expected, n)
    for name, first, last, row, read in curves(page, "failure correlation of every member"):
        i, j = (counted.names.index(one) for one in full_names(counted, name))
        found = value(counted, "failing", first, last, i, j)
        assert (found is None) == np.isnan(row["value"])
        if found is not None:
            assert (row["value"], row["low"], row["high"]) == pytest.approx((found[0], *found[1]), abs=1e-5)
            assert says(read, found[0], raw_rows.Z * raw_rows.phi(both_graded(counted, first, last, i, j))[1], found[2])


def full_names(run: Run, pair: str) -> list[str]:
    """The members of a pair whose names were shortened in the middle."""
    parts = [label.split("…") for label in pair.split(" · ")]
    return [next(n for n in run.names if n.startswith(ends[0]) and n.endswith(ends[-1])) for ends in parts]
