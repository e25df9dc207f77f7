"""Runs & health: what each run is doing, events that can be searched, and a configuration without its secrets."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.configuration import MASK, MOST_KEYS, flat
from server.store.records import EventRecord
from server.store.writer import open_writer
from tests.dashboard.showcase import MODELS, Showcase, write
from tests.dashboard.test_pages import fill, opened, texts

__all__ = ["opened"]


def test_every_leaf_of_a_configuration_is_a_row_and_secrets_are_masked() -> None:
    rows = dict(
        flat(
            {
                "store": "postgresql+psycopg://ada:hunter2@db:5432/graft",
                "rollouts": {"sglang": {"api_key_env": "SGLANG_KEY"}, "max_response_tokens": 64, "api_key": "hunter2"},
                "members": [{"name": "a", "password": "hunter2"}, {"name": "b", "password": None}],
                "betas": [0.9, 0.999],
                "lora": None,
            }
        )
    )
    assert "hunter2" not in str(rows)
    assert rows["store"] == f"postgresql+psycopg://ada:{MASK}@db:5432/graft"
    assert rows["rollouts.sglang.api_key_env"] == "SGLANG_KEY"
    assert rows["rollouts.max_response_tokens"] == "64"
    assert rows["rollouts.api_key"] == rows["members.0.password"] == MASK
    assert rows["members.1.password"] == rows["lora"] == "null"
    assert rows["betas"] == "[0.9, 0.999]"


def test_a_huge_configuration_is_cut() -> None:
    assert len(flat({f"key{i}": i for i in range(3 * MOST_KEYS)})) == MOST_KEYS


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two runs in one store: one that failed, and a newer one with events."""
    url = fill(tmp_path_factory.mktemp("runs"), Showcase(steps=4, uid="old", name="older"), 2, "failed", 0)
    with open_writer(url) as writer:
        write(writer, Showcase(steps=4, uid="new", name="newer"), 3, 0)
        writer.event(EventRecord("warning", "engine lost in sample", "Qwen3-1.7B", 2))
        writer.event(EventRecord("error", "disk full", None, 3))
        writer.finish("finished")
    return url


def test_every_run_is_listed_with_its_status_and_why_it_ended(several: str, opened) -> None:
    page: AppTest = opened(several, "runs")
    rows = page.table[0].value
    assert [row["Run"].strip("*") for _, row in rows.iterrows()] == ["newer", "older"]
    assert "finished" in rows["Status"][0]
    assert "failed" in rows["Status"][1]
    assert "CUDA out of memory" in rows["Message"][1].replace("\\", "")
    assert rows["Steps"].tolist() == ["3 of 4", "2 of 4"]


@pytest.mark.parametrize(
    ("query", "there", "gone"),
    [
        ({}, ("engine lost", "disk full"), ()),
        ({"level": "warning"}, ("engine lost",), ("disk full",)),
        ({"find": "DISK"}, ("disk full",), ("engine lost",)),
        ({"find": "nothing like it"}, ("No such event",), ("disk full",)),
    ],
)
def test_events_are_filtered_by_level_and_text(
    several: str, opened, query: dict[str, str], there: tuple[str, ...], gone: tuple[str, ...]
) -> None:
    said = texts(opened(several, "runs", **query)).replace("\\", "")
    assert all(text in said for text in there)
    assert not any(text in said for text in gone)


def test_the_size_of_the_record_is_that_of_its_rows(several: str, opened) -> None:
    page: AppTest = opened(several, "runs")
    values = {metric.label: metric.value for metric in page.metric}
    database = sqlite3.connect(several.removeprefix("sqlite:///"))
    (steps,) = database.execute("select count(*) from steps").fetchone()
    (responses,) = database.execute("select count(*) from responses").fetchone()
    assert values["Steps"] == str(steps)
    assert values["Responses"] == f"{responses:,}"


@pytest.mark.parametrize("members", [1, 12])
def test_the_page_draws_for_one_member_and_for_many(tmp_path: Path, opened, members: int) -> None:
    url = fill(tmp_path, Showcase(members=MODELS[:members], steps=1, prompts=4), 1, "finished", 0)
    assert "could not be drawn" not in texts(opened(url, "runs"))


def test_a_run_without_a_step_has_a_page(tmp_path: Path, opened) -> None:
    url = fill(tmp_path, Showcase(steps=3), 0, "running", 0)
    assert "could not be drawn" not in texts(opened(url, "runs"))
