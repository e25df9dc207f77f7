"""The panel of replays: recorded and replayed counts of every pair, and what was asked otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import charts_replays, frames_replays
from dashboard.frames_replays import Row, Side
from dashboard.palette import DARK
from server.store.reader import ReplayRecord, open_reader
from server.store.replays import record_replay
from tests.dashboard.showcase import FLOOR, MODELS, Showcase
from tests.dashboard.test_pages import HOSTILE, fill, opened, texts

__all__ = ["opened"]


def side(transfers: int, admitted: int, known: int, unknown: int = 0) -> dict[str, Any]:
    return {
        "selected": transfers,
        "admitted": {"numerator": admitted, "denominator": known},
        "unknown": unknown,
    }


def result(edges: Mapping[tuple[str, str], tuple[dict, dict, int]], steps: int = 4, exact: int = 2) -> dict[str, Any]:
    rows = [
        {"receiver": receiver, "source": source, "then": then, "now": now, "both": both}
        for (receiver, source), (then, now, both) in edges.items()
    ]
    total = {
        name: side(*(sum(getattr(Side.of(row[name]), part) for row in rows) for part in Side.__slots__))
        for name in ("then", "now")
    }
    return {"steps": steps, "exact_steps": exact, "reproduced": False, "edges": rows, "total": total}


PAIRS = result(
    {
        (MODELS[0], MODELS[1]): (side(5, 20, 40), side(6, 25, 40, 8), 4),
        (MODELS[1], MODELS[0]): (side(3, 9, 24), side(0, 0, 0), 0),
    }
)


def test_rows_are_pairs_with_both_sides_and_the_total_comes_first_in_the_table() -> None:
    rows, pooled = frames_replays.rows_of(PAIRS, {MODELS[0]: "a", MODELS[1]: "b"})
    assert not pooled
    assert rows == [
        Row("a ← b", Side(5, 20, 40, 0), Side(6, 25, 40, 8), 4),
        Row("b ← a", Side(3, 9, 24, 0), Side(0, 0, 0, 0), 0),
    ]
    table = frames_replays.table(rows, pooled)
    assert table["Receiver ← source"].tolist() == ["all", "a ← b", "b ← a"]
    assert table.iloc[0].tolist()[1:4] == ["8", "6", "4"]
    assert table["Admitted, recorded"][0] == "29 of 64 responses (45.3\u00a0%)"
    assert table["Admitted, replayed"][1] == "25 of 40 responses (62.5\u00a0%), 8 unknown"
    assert table["Admitted, replayed"][2] == "no responses"


def test_unknown_responses_are_drawn_from_none_admitted_to_all() -> None:
    rows, _ = frames_replays.rows_of(PAIRS, {})
    frames = frames_replays.drawn(rows, responses=True)
    assert frames["points"]["value"].tolist() == [20, 25, 9, 0]
    spans = frames["spans"]
    assert spans[["recorded", "replayed", "most", "end"]].values.tolist() == [[20, 25, 33, 33], [9, 0, 0, 9]]
    assert spans["text"].tolist() == ["20 → 25 to 33", "9 → 0"]
    transfers = frames_replays.drawn(rows, responses=False)["spans"]
    assert transfers["text"].tolist() == ["5 → 6", "3 → 0"]
    assert transfers["most"].tolist() == [6, 0]


def test_frames_have_the_columns_that_the_chart_reads() -> None:
    spec = charts_replays.change(DARK, 2, title="transfers")
    frames = frames_replays.drawn(frames_replays.rows_of(PAIRS, {})[0], responses=True)
    for layer in spec["layer"]:
        read = {channel["field"] for channel in layer["encoding"].values() if "field" in channel}
        assert read <= set(frames[layer["data"]["name"]].columns)
        # Vega refuses data with a property of this name.
        assert "then" not in frames[layer["data"]["name"]].columns


def test_many_pairs_are_one_row_a_receiver() -> None:
    names = [f"m{slot}" for slot in range(5)]
    edges = {(i, j): (side(1, 2, 8), side(2, 3, 8, 1), 1) for i in names for j in names if i != j}
    rows, pooled = frames_replays.rows_of(result(edges), {})
    assert pooled
    assert rows == [Row(name, Side(4, 8, 32, 0), Side(8, 12, 32, 4), 4) for name in names]


def asked(**more: Any) -> dict[str, Any]:
    exchange = {"floor": 0.5, "balance": "circulation", "normaliser": "own", "ties": True}
    return {"set": ["exchange.floor=0.5"], "without": [], "method": "graft", "seed": 0, "exchange": exchange} | more


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = fill(tmp_path_factory.mktemp("replays"), Showcase(steps=4), 4, "finished", 0)
    record_replay(url, ReplayRecord("showcase", 1, 4, asked(without=[HOSTILE]), PAIRS))
    record_replay(url, ReplayRecord("showcase", 2, 2, asked(set=[], exchange={"floor": FLOOR}), PAIRS))
    return url


def test_settings_that_differ_are_those_the_run_recorded_or_that_were_asked_for(store: str) -> None:
    with open_reader(store) as reader:
        info, (newest, first) = reader.run("latest"), reader.replays("latest")
    table = frames_replays.settings_that_differ(info, first.record)
    assert table.values.tolist()[0] == ["exchange.floor", json.dumps(FLOOR), "0.5"]
    # `ties` is not in this run's record: it may have been the same.
    assert table["Setting"].tolist() == ["exchange.floor", "members left out"]
    assert frames_replays.settings_that_differ(info, newest.record).empty


def test_the_page_draws_the_chosen_replay_and_lists_the_others(store: str, opened) -> None:
    page: AppTest = opened(store, "transfers", replay="1")
    said = texts(page).replace("\\", "")
    assert "could not be drawn" not in said
    assert "Settings that differ" in said
    assert "8 responses that did not move in the record" in said
    assert "Steps 1–4 · " in said
    assert "routing is exact in the first 2 of 4 steps" in said
    lists = [frame.value for frame in page.dataframe if "Changed" in frame.value]
    assert [table["Replay"].tolist() for table in lists] == [["2", "1"]]
    newest = texts(opened(store, "transfers"))
    assert "Replayed under the recorded settings" in newest
    assert "Step 2 · " in newest


def test_a_run_without_replays_has_no_such_panel(tmp_path: Path, opened) -> None:
    url = fill(tmp_path, Showcase(steps=2), 1, "finished", 0)
    assert "Replay" not in texts(opened(url, "transfers"))
