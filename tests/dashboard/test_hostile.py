"""Hostile text in every text column, on every page that is registered: it is drawn, and stays text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import safe_text, source
from dashboard.app import PAGES
from dashboard.launch import STORE_VARIABLE
from dashboard.responses import MATH_CHARACTERS, RAW_CHARACTERS
from server.store.reader import PlaceFilter, open_reader
from server.store.writer import open_writer
from tests.dashboard.hostile_store import LONG, NAMES, write_hostile
from tests.dashboard.showcase import Showcase, write
from tests.dashboard.test_pages import page_script

PATHS = [entry.path for entry in PAGES]
# Markdown that would do something: a link or an image not of ours, an icon or colour, a formula, HTML, a bare address.
LIVE = re.compile(
    r"(?<!\\)\]\((?!trajectories\?|\?|compare|training|evaluation|runs|transfers|complementarity)"
    r"|(?<!\\)<(?!br>)[a-z/!]|https?:(?!\u2060)|(?<!\\)!\[|www\.|[a-z]@evil",
    re.IGNORECASE,
)
SHOWN_AS_MARKDOWN = ("markdown", "caption", "subheader", "header", "title", "error", "warning", "info", "success")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"sqlite:///{tmp_path_factory.mktemp('hostile') / 'store.db'}"
    with open_writer(url) as writer:
        write(writer, Showcase(steps=3, uid="plain", name="plain"), 2, 0)
        writer.finish("finished")
    yield write_hostile(url)
    source.reader.clear()


@pytest.fixture
def opened(hostile: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    def open_page(path: str, **query: str) -> AppTest:
        monkeypatch.setenv(STORE_VARIABLE, hostile)
        page = AppTest.from_function(page_script, args=(path,), default_timeout=120)
        page.query_params.update(query)
        page.run()
        assert not page.exception, page.exception
        return page

    return open_page


def markdown_of(page: AppTest) -> list[str]:
    found = [str(element.value) for name in SHOWN_AS_MARKDOWN for element in getattr(page, name)]
    # Tables show their cells and their headings as Markdown.
    for table in page.table:
        frame: pd.DataFrame = table.value
        found += [str(name) for name in frame.columns] + [str(cell) for cell in frame.to_numpy().ravel()]
    # So do the texts of buttons and the options of button groups.
    found += [str(button.label) for button in page.button]
    found += [str(option.content) for group in page.button_group for option in group.proto.options]
    return found


@pytest.mark.parametrize(
    ("path", "query"),
    [
        *((path, {}) for path in PATHS),
        ("complementarity", {"graph": "one member", "matrix": "compatibility", "over": "true"}),
        ("complementarity", {"graph": "one prompt", "matrix": "uptake"}),
        ("transfers", {"shape": "network"}),
    ],
)
def test_no_page_raises_and_none_hands_on_live_markdown(opened: Any, path: str, query: dict[str, str]) -> None:
    page = opened(path, **query)
    texts = markdown_of(page)
    assert not [text for text in texts if "could not be drawn" in text]
    assert any("evil" in text for text in texts)
    for text in texts:
        # A formula is what it says, and was let through by safe_text, whose own tests say which.
        outside = re.sub(r"\$\$?[^$]*\$\$?", "", text)
        assert not LIVE.search(outside), text[:400]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ufeff]", text)


@pytest.mark.parametrize("path", PATHS)
def test_no_page_sends_a_megabyte_of_one_text(opened: Any, path: str) -> None:
    for text in markdown_of(opened(path)):
        assert len(text) < 6 * MATH_CHARACTERS


@pytest.mark.parametrize("view", ["Math", "Raw"])
def test_a_megabyte_is_cut_with_its_length_and_can_be_had_whole(opened: Any, hostile: str, view: str) -> None:
    with open_reader(hostile) as store:
        place = store.places("hostile", 1, 4, wanted=PlaceFilter(transfers=False, text="evil " * 100)).places[0]
        written = store.trajectory("hostile", place.step, place.prompt, place.receiver).own.responses[0].text
    slot = str(NAMES.index(place.receiver))
    page = opened(
        "trajectories", show="all groups", view=view, step=str(place.step), prompt=str(place.prompt), receiver=slot
    )
    limit = RAW_CHARACTERS if view == "Raw" else MATH_CHARACTERS
    assert len(written) > len(LONG)
    assert f"{limit:,} of {len(written):,} characters" in [caption.value for caption in page.caption]
    assert [button for button in page.get("download_button") if button.proto.label == "All of it"]
    assert all(len(block.value) < 2 * RAW_CHARACTERS for block in page.code)


def test_raw_text_shows_hidden_characters_by_their_number(opened: Any) -> None:
    page = opened("trajectories", view="Raw")
    shown = "".join(block.value for block in page.code)
    assert "⟨U+202E⟩evil" in shown
    assert "⟨U+001B⟩[31m" in shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", shown)
    assert safe_text.visible("a\tb\r\nc\u200b") == "a\tb\nc⟨U+200B⟩"
