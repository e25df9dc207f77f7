"""Matrices of member against member and the success graph: values, frames, drawings, and the numbers of raw rows."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import fields, replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import charts_graph, frames, frames_population, matrices, measures, success_graph
from dashboard.charts_population import tile_columns
from dashboard.controls import Window
from dashboard.formats import MISSING
from dashboard.launch import STORE_VARIABLE
from dashboard.measures import MEASURES, Measure
from dashboard.palette import DARK, LIGHT
from dashboard.source import Source
from graft.complementarity import failure_correlation, uptake, wilson_interval
from server.store.reader import NewestPlaces, NewestTransfers, open_reader
from tests.dashboard.showcase import MODELS, Showcase
from tests.dashboard.test_pages import SHAPES, fill, fill_each, opened, texts

__all__ = ["opened"]

LABELS = ["a", "b", "c"]


def measure(key: str) -> Measure:
    return next(one for one in MEASURES if one.key == key)


def places() -> NewestPlaces:
    """Four prompts by three members, 10 twice: a and b solve 10 and 30, a alone solves 20, nobody 40."""
    prompt = np.array([40, 10, 30, 20, 10])
    solved = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0], [0, 1, 0]], bool)
    attempted = np.ones((5, 3), bool)
    return NewestPlaces(1, np.array([3, 3, 2, 2, 1]), prompt, attempted, attempted & ~solved, solved)


def test_shares_of_any_shape_have_wilsons_interval() -> None:
    k, n = np.array([0, 3, 10, 0]), np.array([5, 10, 10, 0])
    share, low, high = frames.wilson(k, n)
    for place in range(3):
        assert (low[place], high[place]) == pytest.approx(wilson_interval(int(k[place]), int(n[place])))
    assert np.isnan([share[3], low[3], high[3]]).all()


def test_uptake_of_all_pairs_is_that_of_each() -> None:
    counts = {
        "grafted_seen": np.array([[0, 30], [4, 0]]),
        "grafted_solved": np.array([[0, 20], [4, 0]]),
        "held_out_seen": np.array([[0, 10], [0, 0]]),
        "held_out_solved": np.array([[0, 3], [0, 0]]),
    }
    values = measure("uptake").read(counts)
    one = uptake(20, 30, 3, 10)
    assert values.value[0, 1] == pytest.approx(one.difference)
    assert values.high[0, 1] - values.value[0, 1] == pytest.approx(1.959964 * one.standard_error, rel=1e-6)
    assert np.isnan(values.value[1, 0])
    assert values.n[0, 1] == 10


def test_an_interval_by_group_is_that_of_means_of_whole_groups() -> None:
    # Four groups of eight responses that stand or fall together: as wide as four observations, not as 32.
    admitted = np.array([8, 8, 0, 0])
    responses = np.full(4, 8)
    zeros = np.zeros(4, np.int64)
    newest = NewestTransfers(
        1, zeros, zeros, zeros, zeros + 1, responses, admitted, responses, np.zeros(4), np.zeros(4)
    )
    counted = np.array([[0, 32], [0, 0]])
    half = measures.clustered(newest, admitted, responses, counted, 2)
    assert half[0, 1] == pytest.approx(1.959964 * np.std([1, 1, 0, 0], ddof=1) / 2, rel=1e-6)
    assert np.isnan(half[1, 0])
    # A withheld group has no responses: it is none of those the spread is from.
    arrays = {one.name: getattr(newest, one.name) for one in fields(newest) if one.name != "first_step"}
    added = {name: np.append(part, 1 if name == "source" else 0) for name, part in arrays.items()}
    withheld = replace(newest, **added)
    assert measures.clustered(withheld, withheld.admitted, withheld.responses, counted, 2)[0, 1] == half[0, 1]
    alone = measures.within(replace(withheld, step=np.array([2, 2, 2, 1, 1])), 1, 1)
    assert np.isnan(measures.clustered(alone, alone.admitted, alone.responses, counted, 2)[0, 1])
    # The spread of a quarter of the groups, taken for four times as many.
    assert measures.clustered(newest, admitted, responses, 4 * counted, 2)[0, 1] == pytest.approx(half[0, 1] / 2)


@pytest.mark.parametrize("key", [one.key for one in MEASURES])
@pytest.mark.parametrize("members", [2, 12, 32])
def test_every_matrix_has_a_cell_for_each_pair_and_a_dash_where_nothing_is(key: str, members: int) -> None:
    zero = np.zeros((2, members, members), np.int64)
    names = [*measures_counts(), "sum_s"]
    counts = {name: zero.copy() for name in names}
    for part in counts.values():
        part[1, 0, 1] = part[1, 1, 0] = 4
    counts["both_graded"][1], counts["failed_together"][1, 0, 1] = 9, 1
    labels = [f"m{slot}" for slot in range(members)]
    values = measure(key).read(counts)
    first = measures.Values(*(getattr(values, name)[1] for name in ("value", "low", "high", "n", "tone")))
    cells = frames_population.matrix_cells(labels, measure(key), first, (0, 1))
    assert len(cells) == members * (members - 1)
    known = cells[(cells.row == "m0") & (cells.column == "m1")].iloc[0]
    assert known["main"] != MISSING
    assert np.isfinite(known["tone"])
    assert bool(known["selected"])
    if members > 2:
        assert (cells[(cells.row == "m1") & (cells.column == "m2")]["main"] == MISSING).all()
    tiles = frames_population.tile_frames(labels, measure(key), values, [0, 5, 9])
    assert len(tiles["tiles"]) == 2 * members * (members - 1)
    assert tiles["names"]["text"].tolist() == ["steps 1–5", "steps 6–9"]
    assert tiles["tiles"]["x2"].max() <= tile_columns(members, 2) * 1.1 * members


def measures_counts() -> tuple[str, ...]:
    return (
        "solved", "both_attempted_fail", "n_s", "admitted", "responses", "grafted_seen", "grafted_solved",
        "held_out_seen", "held_out_solved", "both_graded", "failed_beside", "failed_together",
    )  # fmt: skip


def test_visits_add_up_by_prompt_and_the_last_visited_comes_first() -> None:
    seen = success_graph.visits(places())
    assert seen.prompts.tolist() == [40, 10, 30, 20]
    assert seen.last_step.tolist() == [3, 3, 2, 2]
    assert seen.tried.tolist() == [[1, 1, 1], [2, 2, 2], [1, 1, 1], [1, 1, 1]]
    assert seen.solved.tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 0], [1, 0, 0]]
    assert (seen.solved + seen.failed == seen.tried).all()


def test_what_one_member_alone_solved_or_failed() -> None:
    seen = success_graph.visits(places())
    assert seen.prompts[success_graph.alone(seen, 0, True)].tolist() == [20]
    assert seen.prompts[success_graph.alone(seen, 2, False)].tolist() == [10, 30]
    assert not len(success_graph.alone(seen, 1, True))


def test_the_nearest_prompts_share_solvers_and_never_more_than_asked() -> None:
    seen = success_graph.visits(places())
    assert success_graph.nearest(seen, 10, 9) == [10, 30, 20]
    assert success_graph.nearest(seen, 10, 2) == [10, 30]
    assert success_graph.nearest(seen, 40, 9) == [40]
    assert success_graph.nearest(seen, 99, 9) == []


def test_graphml_is_read_back_as_the_same_graph() -> None:
    hostile = ["<a&b>\x01", "b", "c"]
    graph = success_graph.bipartite(hostile, success_graph.visits(places()))
    again = nx.parse_graphml(success_graph.graphml(graph).decode())
    assert set(again.nodes) == set(graph.nodes)
    assert {frozenset(edge) for edge in again.edges} == {frozenset(edge) for edge in graph.edges}
    assert again.edges["member 0", "prompt 10"] | {"id": ""} == graph.edges["member 0", "prompt 10"] | {"id": ""}
    assert again.nodes["member 0"]["name"] == "<a&b>�"


def test_members_that_fail_together_are_a_community() -> None:
    phi = np.array([[0, 0.6, -0.4, -0.3], [0.6, 0, -0.2, -0.5], [-0.4, -0.2, 0, 0.5], [-0.3, -0.5, 0.5, 0]])
    seen = success_graph.visits(
        NewestPlaces(1, np.zeros(0, np.int64), np.zeros(0, np.int64), *(np.zeros((0, 4), bool),) * 3)
    )
    graph = success_graph.projection(["a", "b", "c", "d"], phi, np.full((4, 4), 9.0), seen)
    assert success_graph.communities(graph) == [["member 0", "member 1"], ["member 2", "member 3"]]
    assert [facts["community"] for _, facts in graph.nodes(data=True)] == [0, 0, 1, 1]
    drawn = charts_graph.members(["a", "b", "c", "d"], LIGHT, graph, height=300)["series"][0]
    assert len(drawn["links"]) == 6
    assert {link["lineStyle"]["type"] for link in drawn["links"] if link["value"] < 0} == {"dashed"}
    alone = success_graph.projection(["a"], np.zeros((1, 1)), np.zeros((1, 1)), seen_of_one())
    assert success_graph.communities(alone) == [["member 0"]]


def seen_of_one() -> success_graph.Visits:
    empty = np.zeros(0, np.int64)
    return success_graph.Visits(empty, empty, *(np.zeros((0, 1), np.int64),) * 3)


def test_a_neighbourhood_draws_a_line_for_every_prompt_tried() -> None:
    seen = success_graph.visits(places())
    names = [str(key) for key in seen.prompts]
    option = charts_graph.neighbourhood(LABELS, DARK, names, seen.tried > 0, seen.solved > 0, height=200)
    series = option["series"][0]
    assert len(series["links"]) == 12
    assert sum(link["lineStyle"]["type"] == "solid" for link in series["links"]) == 5
    assert [node["id"] for node in series["data"]] == ["m0", "m1", "m2", "p0", "p1", "p2", "p3"]


def test_of_many_members_the_lines_with_the_most_are_drawn() -> None:
    assert frames.most_telling([0, 2], np.array([1, 9, 5])) == [0, 2]
    weight = np.arange(32)
    assert frames.most_telling(range(32), weight) == list(range(24, 32))


def test_failing_together_is_that_of_the_raw_groups(tmp_path: Path) -> None:
    url = fill(tmp_path, Showcase(steps=8, prompts=20), 8, evaluate_every=0)
    with open_reader(url) as reader:
        values = measure("failing").read(reader.pair_counts("latest", 2, 7))
        fails = measure("complementarity").read(reader.pair_counts("latest", 2, 7))
    rows = sqlite3.connect(tmp_path / "store.db").execute(
        "select step, prompt, member, successes from groups where step between 2 and 7"
    )
    table: dict[tuple[int, int], dict[int, int]] = {}
    for step, prompt, member, successes in rows:
        table.setdefault((step, prompt), {})[member] = successes
    k = np.array([[own[slot] for own in table.values()] for slot in range(3)])
    np.testing.assert_allclose(
        values.value[~np.eye(3, dtype=bool)], failure_correlation(k, np.full_like(k, 8))[~np.eye(3, dtype=bool)]
    )
    failed = k == 0
    for i, j in ((0, 1), (2, 0)):
        assert fails.n[i, j] == failed[i].sum()
        assert fails.value[i, j] == pytest.approx((failed[i] & (k[j] > 0)).sum() / failed[i].sum())


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    visits = Showcase(steps=12, pool=16, sources=2, held_out=0.4), 12
    return fill_each(tmp_path_factory, {"visits": visits, **SHAPES})


@pytest.mark.parametrize("key", [one.key for one in MEASURES])
def test_every_matrix_is_drawn_over_the_window_and_over_time(stores: dict[str, str], opened, key: str) -> None:
    page: AppTest = opened(stores["visits"], "complementarity", matrix=key, over="true")
    said = texts(page)
    assert "could not be drawn" not in said
    assert f"**{measure(key).title}**" in said
    assert f"**{measure(key).title} over time**" in said


@pytest.mark.parametrize(
    ("key", "asked", "heading"),
    [
        ("complementarity", "{i} fails: who solves?", r"{i} fails, {j} solves: \d+ of \d+ groups = "),
        (
            "compatibility",
            "{i} receives: how likely",
            r"{j} gives, {i} receives: 0\.\d{{3}} \(n = \d+ scored responses\)",
        ),
        ("admitted", "{i} receives: what share", r"{j} gives, {i} receives: \d+ \(n = \d+ responses\)"),
        ("uptake", "{i} receives: whose grafts take?", r"{j} gives, {i} receives: .+ \(n = \d+ visits? on the smaller"),
        ("failing", "{i}: who fails on the same", r"{i} and {j} fail together: .+ \(n = \d+ prompts\)"),
    ],
)
def test_heading_and_history_speak_of_the_chosen_measure(stores, opened, key: str, asked: str, heading: str) -> None:
    page: AppTest = opened(stores["visits"], "complementarity", matrix=key, cell="0-1")
    names = {"i": re.escape(MODELS[0]), "j": re.escape(MODELS[1])}
    said = texts(page).replace("\\", "")
    assert f"**{asked.format(i=MODELS[0])}" in said
    found = next(one.value.replace("\\", "") for one in page.subheader if "GRAFT" not in one.value)
    assert re.match(heading.format(**names), found), found
    assert (f"**{MODELS[0]} failed, {MODELS[1]} solved**" in said) == (key != "complementarity")


@pytest.mark.parametrize("key", [one.key for one in MEASURES])
def test_a_measure_over_one_bucket_is_that_of_the_window(stores, monkeypatch, key: str) -> None:
    monkeypatch.setenv(STORE_VARIABLE, stores["visits"])
    run, window = Source.open("latest"), Window(3, 11)
    whole, _ = matrices.window_values(run, window, run.ask("pair_counts", 3, 11), measure(key))
    course = matrices.course(run, window, measure(key), [2, 11])
    for one, other in zip(course.__dict__.values(), whole.__dict__.values(), strict=True):
        np.testing.assert_allclose(one[0], other)
    halves = matrices.course(run, window, measure(key), [2, 6, 11])
    assert np.isfinite(halves.value).any()
    assert (np.isfinite(halves.low) <= np.isfinite(halves.value)).all()


@pytest.mark.parametrize(
    ("kind", "graph"),
    [
        ("pair", "one member"), ("twelve", "members"), ("twelve", "one prompt"), ("many", "members"),
        ("many", "one member"), ("many", "one prompt"), ("one step", "members"), ("one step", "one prompt"),
        ("no step", "members"), ("grpo", "one member"),
    ],
)  # fmt: skip
def test_the_success_graph_is_drawn_over_every_kind_of_run(
    stores: dict[str, str], opened, kind: str, graph: str
) -> None:
    page: AppTest = opened(stores[kind], "complementarity", graph=graph, over="true")
    said = texts(page)
    assert "could not be drawn" not in said
    assert ("**Success graph**" in said) == (kind != "no step")


def test_a_link_to_a_prompt_shows_who_tried_it(stores: dict[str, str], opened) -> None:
    with open_reader(stores["visits"]) as reader:
        newest = reader.newest_places("latest", 1, 12)
        prompt = int(newest.prompt[0])
        visits = reader.prompt_visits("latest", prompt, 1, 12)
    page: AppTest = opened(stores["visits"], "complementarity", graph="one prompt", prompt=str(prompt))
    shown = next(table.value for table in page.table if "Visits" in table.value.columns)
    assert shown["Visits"].tolist() == [str(int((visits.member == slot).sum())) for slot in range(3)]
    rights = [int(visits.successes[visits.member == slot].sum()) for slot in range(3)]
    assert [text.split(" of ")[0] for text in shown["Right"]] == [str(right) for right in rights]


def test_a_method_without_an_exchange_offers_no_matrix_of_transfers(stores: dict[str, str], opened) -> None:
    page: AppTest = opened(stores["grpo"], "complementarity", matrix="uptake")
    assert "matrix = “uptake”" in texts(page).replace("\u2060", "")
