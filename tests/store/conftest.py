"""A store that tests may read but not change, and an empty one to write; each on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.store.reader import Reader, open_reader
from server.store.writer import Writer, open_writer
from tests.postgres import Server
from tests.store.synthetic import make_store

SHARED_STEPS = 24
BACKENDS = ("sqlite", "postgresql")


def _place(backend: str, folder: Path, request: pytest.FixtureRequest) -> tuple[str, Server | None, str]:
    """(URL of a store that is not there yet, its server and database)."""
    if backend == "sqlite":
        return f"sqlite:///{folder / 'store.db'}", None, ""
    server: Server = request.getfixturevalue("postgres")
    name = server.new_database()
    return server.url(name, trajectories=folder / "store_trajectories"), server, name


@pytest.fixture(scope="session", params=BACKENDS)
def shared_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a finished run "synthetic": 3 members, 24 steps of 16 prompts, a loss that is no number at step 5."""
    url, _, _ = _place(request.param, tmp_path_factory.mktemp("store"), request)
    return make_store(url, steps=SHARED_STEPS, prompts=16, nan_loss_at=5)


@pytest.fixture
def reader(shared_store: str) -> Iterator[Reader]:
    with open_reader(shared_store) as reader:
        yield reader


@pytest.fixture(params=BACKENDS)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Gives the URL of a new store in a folder of this name under tmp_path."""
    made: list[tuple[Server, str]] = []

    def new(name: str) -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        url, server, database = _place(request.param, folder, request)
        if server is not None:
            made.append((server, database))
        return url

    yield new
    for server, database in made:
        server.drop(database)


@pytest.fixture
def url(new_url: Callable[[str], str]) -> str:
    """The URL of a store that is not there yet; what it leaves lies in tmp_path."""
    return new_url(".")


@pytest.fixture
def writer(url: str) -> Iterator[Writer]:
    with open_writer(url) as writer:
        yield writer
