"""The pages over a store on a PostgreSQL server, read by a role that may only read, with steps that were pruned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import source
from dashboard.app import PAGES
from dashboard.launch import STORE_VARIABLE
from server.store.access import grant_reader
from server.store.prune import prune
from server.store.reader import open_reader
from server.store.writer import open_writer
from tests.dashboard.exporting import exported_here
from tests.dashboard.showcase import Showcase, write
from tests.dashboard.test_pages import page_script
from tests.postgres import Server


@pytest.fixture(scope="module")
def store(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the reading role, with a password in it."""
    name, role = postgres.new_database(), "dashboard_reader"
    url = postgres.url(name)
    with open_writer(url, trajectories=tmp_path_factory.mktemp("shards")) as writer:
        write(writer, Showcase(steps=9), 6, 0)
        writer.finish("finished")
    grant_reader(url, role)
    yield postgres.url(name, user=f"{role}:topsecret")
    source.reader.clear()
    postgres.drop(name)
    with postgres.connect() as connection:
        connection.execute(f"DROP ROLE {role}")


def _opened(url: str, path: str, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setenv(STORE_VARIABLE, url)
    page = AppTest.from_function(page_script, args=(path,), default_timeout=120)
    page.query_params.update(query)
    page.run()
    assert not page.exception, page.exception
    return page


def _texts(page: AppTest) -> str:
    kinds = (page.markdown, page.caption, page.error, page.warning, page.info)
    return " ".join(element.value for kind in kinds for element in kind)


@pytest.mark.parametrize("path", [entry.path for entry in PAGES])
def test_every_page_draws_over_a_server_without_its_password(
    store: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "topsecret" not in _texts(_opened(store, path, monkeypatch))


def test_a_group_whose_words_were_pruned_is_said_to_be(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_reader(store) as reader:
        (row, *_), _ = reader.transfers("latest", 1, 6, limit=1)
        prune(store.replace("dashboard_reader:topsecret@", "postgres@"), keep_steps=0)
        with pytest.raises(Exception, match=f"step {row.step} .* was pruned"):
            reader.trajectory("latest", row.step, row.prompt, row.receiver)
    place = {"step": str(row.step), "prompt": str(row.prompt), "receiver": row.receiver}
    page = _opened(store, "trajectories", monkeypatch, **place)
    assert "was pruned" in _texts(page)


def test_a_reading_role_exports_pages_and_rows_without_its_password(store: str, tmp_path: Path) -> None:
    done = exported_here(store, tmp_path / "run", "--page", "transfers", "--rows")
    assert done.returncode == 0, done.stderr
    pairs = pd.read_parquet(tmp_path / "run" / "tables" / "transfers_pairs.parquet")
    moved = pd.read_parquet(tmp_path / "run" / "rows" / "transfers.parquet")
    assert pairs["admitted"].sum() == moved["admitted"].sum() > 0
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(written) > 40
    assert not any(b"topsecret" in one for one in written)
