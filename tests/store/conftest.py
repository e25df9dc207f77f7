"""A store that tests may read but not change, and an empty one to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.store.reader import Reader, open_reader
from server.store.writer import Writer, open_writer
from tests.store.synthetic import make_store

SHARED_STEPS = 24


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a finished run "synthetic": 3 members, 24 steps of 16 prompts, a loss that is no number at step 5."""
    return make_store(tmp_path_factory.mktemp("store"), steps=SHARED_STEPS, prompts=16, nan_loss_at=5)


@pytest.fixture
def reader(shared_store: str) -> Iterator[Reader]:
    with open_reader(shared_store) as reader:
        yield reader


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def writer(url: str) -> Iterator[Writer]:
    with open_writer(url) as writer:
        yield writer
