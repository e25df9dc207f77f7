"""Controls that pages share: in the address, safe from what stands there, and never losing what was chosen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import source
from dashboard.controls import Choice
from dashboard.launch import STORE_VARIABLE
from server.store.reader import Reader, open_reader
from server.store.records import EventRecord
from server.store.writer import open_writer
from tests.dashboard.showcase import MODELS, Showcase, write
from tests.dashboard.test_pages import fill, page_script, texts


def controls_page(options: list[str]) -> None:
    import streamlit as st

    from dashboard.controls import pick, pick_several, search, switch

    one = pick("One", options, key="one")
    row = pick("Row", ("step", "tokens"), key="row", segments=True, default="tokens")
    some = pick_several("Some", options, key="some", most=2)
    st.text(f"{one}|{row}|{','.join(some)}|{search('Text', key='q')}|{switch('On', key='on')}")


def shown(options: list[str], **query: Any) -> AppTest:
    page = AppTest.from_function(controls_page, args=(options,), default_timeout=60)
    page.query_params.update(query)
    page.run()
    assert not page.exception
    return page


def test_without_an_address_controls_stand_at_their_defaults() -> None:
    page = shown(["a", "b"])
    assert page.text[0].value == "a|tokens|||False"
    assert not page.caption


def test_controls_take_what_the_address_says() -> None:
    page = shown(["a", "b"], one="b", row="step", some=["b", "a"], q=" x ", on="true")
    assert page.text[0].value == "b|step|a,b|x|True"
    assert not page.caption


def test_a_value_that_is_no_option_is_refused_with_a_note_until_something_is_chosen() -> None:
    page = shown(["a", "b"], one="<b>", row="wall", some=["z"], on="perhaps")
    assert page.text[0].value == "a|tokens|||False"
    notes = [caption.value for caption in page.caption]
    assert len(notes) == 4
    assert "one = “\\<b\\>”" in notes[0]
    page.run()
    assert len(page.caption) == 4
    page.selectbox[0].set_value("b").run()
    assert len(page.caption) == 3


def test_a_choice_stays_when_options_come_and_go() -> None:
    other = AppTest.from_function(controls_page, args=(["c", "a"],), default_timeout=60)
    other.session_state["one"] = "b"
    other.session_state["some"] = ["b"]
    other.run()
    assert not other.exception
    assert other.text[0].value == "b|tokens|b||False"
    assert other.selectbox[0].options == ["c", "a", "b"]


def opened(url: str, monkeypatch: pytest.MonkeyPatch, path: str = "", **query: str) -> AppTest:
    monkeypatch.setenv(STORE_VARIABLE, url)
    page = AppTest.from_function(page_script, args=(path,), default_timeout=60)
    page.query_params.update(query)
    page.run()
    assert not page.exception
    return page


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with open_writer(url) as writer:
        write(writer, Showcase(members=MODELS[:4], steps=9), 6, 0)
    return url


def test_members_are_chosen_by_name_and_keep_their_place(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = opened(store, monkeypatch, m=MODELS[2])
    assert list(page.dataframe[0].value["Member"]) == [MODELS[2]]
    assert "m" in page.query_params
    page.sidebar.multiselect[0].set_value([]).run()
    assert len(page.dataframe[0].value) == 4
    with open_reader(store) as reader:
        info = reader.run("latest")
    assert Choice("latest", None, None, None, (MODELS[3], MODELS[1])).slots(info) == [1, 3]
    assert Choice("latest", None, None, None, ("of another run",)).slots(info) == [0, 1, 2, 3]


@pytest.mark.parametrize("query", [{"live": "5s"}, {"last": "3"}, {"m": "Nobody"}, {"freeze": "maybe"}])
def test_a_senseless_choice_in_the_address_is_said(
    store: str, monkeypatch: pytest.MonkeyPatch, query: dict[str, str]
) -> None:
    page = opened(store, monkeypatch, **query)
    name, value = next(iter(query.items()))
    assert f"asks for {name} = “{value}”" in texts(page)
    assert "steps 1–6" in texts(page)


@pytest.mark.parametrize(("first", "last", "steps"), [("x", "4", "steps 1–4"), ("3", "-1", "steps 3–6")])
def test_a_senseless_end_of_the_range_is_said(
    store: str, monkeypatch: pytest.MonkeyPatch, first: str, last: str, steps: str
) -> None:
    page = opened(store, monkeypatch, **{"freeze": "true", "from": first, "to": last})
    assert steps in texts(page)
    assert "no step number" in texts(page)


def test_the_slider_and_the_numbers_of_the_range_are_one(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = opened(store, monkeypatch, **{"freeze": "true", "from": "2", "to": "5"})
    slider = page.sidebar.slider(key="range_slider")
    assert (slider.min, slider.max, slider.value) == (1, 9, (2, 5))
    slider.set_value((3, 4)).run()
    assert [box.value for box in page.sidebar.number_input] == [3, 4]
    assert "steps 3–4" in texts(page)
    page.sidebar.number_input[1].set_value(6).run()
    assert page.sidebar.slider(key="range_slider").value == (3, 6)


def test_a_frozen_window_asks_the_store_nothing_about_its_steps_again(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = Reader.pair_counts

    def counted(self: Reader, *arguments: Any) -> Any:
        asked.append(f"{arguments[1:]}")
        return real(self, *arguments)

    monkeypatch.setattr(Reader, "pair_counts", counted)
    page = opened(store, monkeypatch, "complementarity", **{"freeze": "true", "from": "2", "to": "5"})
    assert asked == ["(2, 5)"]
    scenario = Showcase(members=MODELS[:4], steps=9)
    with open_writer(store) as writer:
        writer.resume_run("showcase", 6)
        writer.commit(scenario.step(7))
        writer.event(EventRecord("info", "step 7"))
        page.run()
        assert asked == ["(2, 5)"]
        assert "steps 2–5" in texts(page)
    with open_writer(store) as writer:
        writer.resume_run("showcase", 4)
        writer.commit(scenario.step(5))
    page.run()
    assert asked == ["(2, 5)", "(2, 5)"]


def test_the_age_of_the_data_and_a_silent_writer_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = opened(fill(tmp_path, Showcase(steps=3), 2, "running", 0), monkeypatch)
    assert re.search(r"newest step .+? ago · heartbeat .+? ago · revision", texts(page))
    monkeypatch.setattr("dashboard.parts.SILENT_S", -1.0)
    page.run()
    assert "writer silent since" in texts(page)
    source.reader.clear()


def test_a_fresh_run_of_other_members_does_not_break_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = fill(tmp_path, Showcase(members=MODELS[:3], steps=3, uid="old", name="old"), 2, "finished", 0)
    page = opened(url, monkeypatch, m=MODELS[1])
    writer = open_writer(url)
    write(writer, Showcase(members=("x", "y", "z"), steps=3, uid="new", name="new"), 2, 0)
    writer.finish("finished")
    writer.close()
    page.run()
    assert not page.exception
    assert list(page.dataframe[0].value["Member"]) == ["x", "y", "z"]
