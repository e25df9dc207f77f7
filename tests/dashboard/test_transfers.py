"""The Transfers page: drawings that stay in place, and a table whose numbers are those of the raw rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import charts_transfers
from dashboard.pages.transfers import pair_table
from dashboard.palette import DARK, LIGHT, member_colour
from server.store.reader import open_reader
from tests.dashboard.showcase import Showcase
from tests.dashboard.test_pages import SHAPES, fill, fill_each, opened, texts

__all__ = ["opened"]

MOVED = np.array([[0, 30, 5], [12, 0, 0], [0, 7, 0]])
LABELS = ["a", "b", "c"]


def test_edges_are_the_strongest_pairs_and_pairs_without_any_are_none() -> None:
    assert charts_transfers.strongest(MOVED) == [(0, 1), (0, 2), (1, 0), (2, 1)]
    assert charts_transfers.strongest(MOVED, 2) == [(0, 1), (1, 0)]
    assert charts_transfers.strongest(np.zeros((3, 3), dtype=int)) == []


def test_the_flow_goes_from_givers_to_receivers_with_the_admitted_responses() -> None:
    series = charts_transfers.sankey(LABELS, LIGHT, MOVED)["series"][0]
    flows = {(link["source"], link["target"]): link["value"] for link in series["links"]}
    assert flows[("b gives", "a receives")] == 30
    assert ("b gives", "b receives") not in flows
    assert sum(flows.values()) == MOVED.sum()
    names = [node["name"] for node in series["data"]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("members", [2, 12, 32])
def test_places_in_the_network_depend_on_the_slot_alone(members: int) -> None:
    labels = [f"m{slot}" for slot in range(members)]
    rng = np.random.default_rng(0)
    one, other = (rng.integers(0, 50, (members, members)) for _ in range(2))
    drawn = [charts_transfers.network(labels, DARK, moved, height=500)["series"][0]["data"] for moved in (one, other)]
    assert [(node["x"], node["y"]) for node in drawn[0]] == [(node["x"], node["y"]) for node in drawn[1]]
    assert [node["itemStyle"]["color"] for node in drawn[0]] == [member_colour(DARK, slot) for slot in range(members)]
    assert all(0 <= node["x"] <= 500 and 0 <= node["y"] <= 500 for node in drawn[0])


@pytest.mark.parametrize("members", [13, 32])
def test_labels_of_many_members_lie_along_the_rays_and_none_is_upside_down(members: int) -> None:
    for place in charts_transfers.circle(members, 500):
        label = place.label(members, 20)
        assert abs(label["rotate"]) <= 90
        x, y = (at - 10 for at in label["position"])
        # Outside the symbol, in the direction from the middle of the circle.
        assert np.hypot(x, y) == pytest.approx(15)
        assert x * (place.y - 250) - y * (place.x - 250) == pytest.approx(0, abs=1e-6)
        assert x * (place.x - 250) + y * (place.y - 250) > 0
        assert (label["align"] == "left") == (abs(np.degrees(np.arctan2(-y, x)) - label["rotate"]) < 1)
    assert charts_transfers.circle(12, 500)[0].label(12, 20) == {"position": "top"}


def test_the_drawing_is_said_in_words() -> None:
    assert charts_transfers.described(LABELS, MOVED).startswith("Admitted responses: b to a 30, a to b 12")
    assert charts_transfers.described(LABELS, np.zeros((3, 3), dtype=int)) == "No response was admitted"


def test_every_pairs_numbers_are_those_of_the_raw_rows(tmp_path: Path) -> None:
    url = fill(tmp_path, Showcase(steps=8), 8, evaluate_every=0)
    with open_reader(url) as reader:
        info = reader.run("latest")
        names = [member.name for member in info.members]
        newest = reader.newest_transfers(info.uid, 3, 7)
        table = pair_table(names, reader.pair_counts(info.uid, 3, 7), newest).set_index(["Receiver", "Source"])
    database = sqlite3.connect(tmp_path / "store.db")
    raw = database.execute(
        "select receiver, source, count(*), sum(held_out), sum(case when admitted > 0 then 1 else 0 end), "
        "sum(responses), sum(admitted), sum(refused_floor), sum(refused_other), sum(sum_s), sum(n_s), sum(sum_w) "
        "from transfers where step between 3 and 7 group by receiver, source"
    ).fetchall()
    assert raw
    for receiver, source, chosen, held, grafted, responses, admitted, floor, other, sum_s, n_s, sum_w in raw:
        row = table.loc[(names[receiver], names[source])]
        assert row["Routed"] == chosen - held
        assert (row["Held out"], row["Grafted"], row["Responses"], row["Admitted"]) == (
            held,
            grafted,
            responses,
            admitted,
        )
        assert (row["Floor"], row["Other"]) == (floor, other)
        if n_s:
            assert row["Mean s"] == pytest.approx(sum_s / n_s)
        if admitted:
            assert row["Mean w"] == pytest.approx(sum_w / admitted)
            assert row["Admitted %"] == pytest.approx(100 * admitted / responses)
    fails = database.execute(
        "select count(*) from groups f join groups s on f.run = s.run and f.step = s.step and f.prompt = s.prompt "
        "where f.member = 0 and s.member = 1 and f.successes = 0 and f.errors = 0 and f.step between 3 and 7"
    ).fetchone()[0]
    assert table.loc[(names[0], names[1])]["All-fail"] == fails


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return fill_each(tmp_path_factory, SHAPES)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("shape", ["flow", "network"])
def test_the_page_draws_over_every_kind_of_run(stores: dict[str, str], opened, kind: str, shape: str) -> None:
    page: AppTest = opened(stores[kind], "transfers", shape=shape)
    said = texts(page)
    assert "could not be drawn" not in said
    if kind == "grpo":
        assert "Nothing moves between members" in said
    elif kind != "no step":
        assert "Every pair" in said
