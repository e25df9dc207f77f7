"""What every test shares: how a missing browser is reported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

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
