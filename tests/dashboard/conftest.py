"""What the dashboard's tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import source
from dashboard.launch import STORE_VARIABLE
from tests.dashboard import numbers_store
from tests.dashboard.raw_rows import Run
from tests.dashboard.test_pages import page_script


@pytest.fixture(autouse=True)
def own_main_module() -> Iterator[None]:
    """Streamlit's AppTest leaves its script as ``__main__``; later tests that start processes need pytest's own."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(scope="session")
def numbers_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with something of everything, written once."""
    return numbers_store.fill(tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="session")
def counted(numbers_url: str) -> Run:
    """The raw rows of its newest run."""
    return Run(numbers_url, "counted-0")


@pytest.fixture(scope="session")
def page_of(numbers_url: str) -> Callable[..., AppTest]:
    """A page of that run as (path, **address); each is drawn once."""

    @cache
    def draw(path: str, query: tuple[tuple[str, str], ...]) -> AppTest:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(STORE_VARIABLE, numbers_url)
            page = AppTest.from_function(page_script, args=(path,), default_timeout=60)
            page.query_params.update({"run": "counted-0", **dict(query)})
            page.run()
        source.reader.clear()
        assert not page.exception, page.exception
        return page

    return lambda path, **query: draw(path, tuple(query.items()))


class View(NamedTuple):
    """What a page is asked for in the address, and what it then is about: steps, and the members that are drawn."""

    query: dict[str, str]
    first: int
    last: int
    slots: list[int]


@pytest.fixture(params=["whole", "window", "member"])
def view(request: pytest.FixtureRequest, counted: Run) -> View:
    """The whole run, a window of it, and one member alone."""
    whole, every = (1, numbers_store.STEPS), list(counted.members)
    return {
        "whole": View({}, *whole, every),
        "window": View({"freeze": "true", "from": "3", "to": "9"}, 3, 9, every),
        "member": View({"m": counted.names[1]}, *whole, [1]),
    }[request.param]
