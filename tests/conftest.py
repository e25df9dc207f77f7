"""What every test shares: how a missing browser or database server is reported."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.postgres import Server

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """The path of an installed Chromium, or None."""
    return next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a browser its tests are skipped with the reason; GRAFT_REQUIRE_BROWSER=1 lets them fail instead."""
    if find_chromium() or os.environ.get("GRAFT_REQUIRE_BROWSER") == "1":
        return
    skip = pytest.mark.skip(reason="no Chromium on this machine: apt-get install chromium")
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser for tests marked `browser`."""
    path = find_chromium()
    assert path, "no Chromium on this machine: apt-get install chromium"
    return path


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of this session's own; skipped where there is none, unless GRAFT_REQUIRE_POSTGRES=1."""
    from tests import postgres as installed

    if installed.find_binaries() is None:
        (pytest.fail if os.environ.get("GRAFT_REQUIRE_POSTGRES") == "1" else pytest.skip)(installed.REASON)
    with installed.running_server() as server:
        yield server


@pytest.fixture(scope="session")
def warm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose demo members (seed 0) are warm-started, once for all tests.

    GRAFT_WARM_FOLDER names a run folder whose warm starts are taken over, which saves a minute.
    """
    from population.demo.parallel import prepare_all

    folder = tmp_path_factory.mktemp("warm")
    named = os.environ.get("GRAFT_WARM_FOLDER")
    if named:
        shutil.copytree(Path(named) / "warm-start", folder / "warm-start")
    prepare_all(["qwen3", "llama", "neox"], seed=0, cache_dir=folder / "warm-start")
    return folder
