"""What only a store on a server has: its URL and passwords, a folder of shards the run records, roles, absences."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from server.store import postgresql
from server.store.access import grant_reader
from server.store.connections import locate, readable_errors, without_password
from server.store.postgresql import PostgresLocation
from server.store.reader import open_reader
from server.store.records import EventRecord, StoreError, UnreachableError
from server.store.writer import open_writer
from tests.postgres import Server
from tests.store.audit import audit
from tests.store.synthetic import Scenario, make_store

SCENARIO = Scenario(steps=4, prompts=6, n=4)
SECRET = "postgresql+psycopg://me:pa%2Fss@db.example:5433/graft?sslmode=require&password=pa%2Fss&trajectories=/data/t"


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    name = postgres.new_database()
    yield name
    postgres.drop(name)


def test_a_url_keeps_its_password_to_itself() -> None:
    found = locate(SECRET)
    assert isinstance(found, PostgresLocation)
    bare = "postgresql+psycopg://me@db.example:5433/graft?sslmode=require"
    assert (found.shown, found.url, found.mounted) == (bare, f"{bare}&trajectories=%2Fdata%2Ft", Path("/data/t"))
    assert found.target.password == "pa/ss"
    assert locate(found.url).url == found.url
    assert without_password(SECRET) == f"{bare}&trajectories=%2Fdata%2Ft"
    assert without_password("runs/graft.db") == "runs/graft.db"
    assert locate("postgresql://me@db.example/graft").shown == "postgresql+psycopg://me@db.example/graft"


def test_urls_that_name_no_database_or_two_folders_are_refused_without_their_password() -> None:
    for wrong, why in (
        ("postgresql://me:secret@host", "names no database"),
        (f"{SECRET}&trajectories=/b", "trajectories twice"),
        ("postgresql+psycopg2://me:secret@host/db", "cannot hold a run"),
        ("postgresql://me:secret@host:port/db", "cannot be read"),
    ):
        with pytest.raises(StoreError, match=why) as caught:
            locate(wrong)
        assert "secret" not in str(caught.value)
        assert "pa/ss" not in str(caught.value)


def test_a_run_records_its_folder_and_a_plain_url_finds_it(postgres: Server, database: str, tmp_path: Path) -> None:
    url, group = postgres.url(database), SCENARIO.step(1).groups[0]
    with open_writer(url) as writer, pytest.raises(StoreError, match=r"add \?trajectories=FOLDER to the URL"):
        writer.start_run(SCENARIO.run())
    for uid, folder in (("synthetic", tmp_path / "a"), ("second", tmp_path / "b")):
        with open_writer(url, trajectories=folder) as writer:
            writer.start_run(replace(SCENARIO.run(), uid=uid))
            writer.commit(SCENARIO.step(1))
        assert len(list((folder / uid).glob("*.arrow"))) == 3
    with open_reader(url) as reader:
        for uid in ("synthetic", "second"):
            assert len(reader.trajectory(uid, 1, group.prompt, group.member).own.responses) == 4
    (tmp_path / "a").rename(tmp_path / "moved")
    with open_reader(url) as reader, pytest.raises(StoreError, match="the trajectory folder of run synthetic, is not"):
        reader.trajectory("synthetic", 1, group.prompt, group.member)
    with open_writer(url) as writer, pytest.raises(StoreError, match="is not on this machine"):
        writer.resume_run("synthetic", 1)
    elsewhere = postgres.url(database, trajectories=tmp_path / "moved")
    with open_reader(elsewhere) as reader:
        assert reader.trajectory("synthetic", 1, group.prompt, group.member).own.member == group.member
    with open_writer(elsewhere) as writer:
        writer.resume_run("synthetic", 1)
        writer.commit(SCENARIO.step(2))
    with open_reader(url) as reader:
        assert len(reader.groups("synthetic", 2, group.member)) == 6


def test_a_reading_role_reads_everything_and_writes_nothing(postgres: Server, database: str, tmp_path: Path) -> None:
    url = make_store(postgres.url(database, trajectories=tmp_path), steps=2, prompts=4, n=2)
    role = f"read er%{database}"
    assert grant_reader(url, role)
    assert not grant_reader(url, role)
    with open_reader(postgres.url(database, user="read%20er%25" + database, trajectories=tmp_path)) as reader:
        assert reader.run("latest").last_step == 2
        assert reader.size()["groups"] == 2 * 3 * 4
        assert reader.groups("latest", 1, SCENARIO.names[0])
    with postgres.connect(database, user=role) as connection:
        connection.execute("SET default_transaction_read_only = off")
        for statement in ("DELETE FROM runs", "CREATE TABLE mine (x int)", "UPDATE runs SET name = ''"):
            with pytest.raises(Exception, match="permission denied"):
                connection.execute(statement)
        # A table that a later upgrade makes anew can be read too.
        with postgres.connect(database) as owner:
            owner.execute("CREATE TABLE later (x int)")
        assert connection.execute("SELECT * FROM later").fetchall() == []
    with postgres.connect() as connection:
        postgres.drop(database)
        connection.execute(f'DROP ROLE "{role}"')
    with pytest.raises(StoreError, match="has no roles"):
        grant_reader(str(tmp_path / "store.db"), "reader")


def test_absent_databases_servers_and_roles_are_named_without_any_password(
    postgres: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.store.writer.PATIENCE_S", 0.0)
    silent = f"postgresql+psycopg://me:secret@/x?host={tmp_path}"
    for url, why, kind in (
        (postgres.url("nothing").replace("//postgres@", "//postgres:secret@"), "createdb nothing", StoreError),
        (silent, "cannot be reached", UnreachableError),
        (postgres.url(database, user="stranger:secret"), "role .*stranger", StoreError),
    ):
        for opening in (open_reader, open_writer):
            with pytest.raises(kind, match=why) as caught:
                opening(url)
            assert "secret" not in str(caught.value)


def test_a_server_that_ends_every_connection_costs_a_run_nothing(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    url = postgres.url(database, trajectories=tmp_path)
    end_all = f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{database}'"
    with open_writer(url) as writer, open_reader(url) as reader, postgres.connect() as admin:
        writer.start_run(SCENARIO.run())
        for step in (1, 2):
            admin.execute(end_all)
            assert writer.commit(SCENARIO.step(step))
            assert reader.run("latest").last_step == step
        admin.execute(end_all)
        assert writer.heartbeat()
    assert audit(url) == []


def test_a_server_that_is_away_is_waited_for_and_the_step_is_stored_once(
    postgres: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url(database, trajectories=tmp_path)
    with open_writer(url) as writer, postgres.connect() as admin:
        writer.start_run(SCENARIO.run())
        writer.commit(SCENARIO.step(1))

        def away() -> None:
            admin.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
            admin.execute(f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{database}'")

        monkeypatch.setattr(postgresql, "_kind", lambda fault: "away")
        away()
        assert not writer.heartbeat()
        monkeypatch.setattr("server.store.writer.PATIENCE_S", 0.0)
        with pytest.raises(UnreachableError, match="cannot be reached"):
            writer.commit(SCENARIO.step(2))
        monkeypatch.setattr("server.store.writer.PATIENCE_S", 120.0)
        back = threading.Timer(1.0, admin.execute, [f"ALTER DATABASE {database} ALLOW_CONNECTIONS true"])
        back.start()
        assert writer.commit(SCENARIO.step(2))
        back.join(60)
        writer.event(EventRecord("info", "there again"))
    assert audit(url) == []
    assert len(list(tmp_path.rglob("*.arrow"))) == 6


def test_a_reader_is_cut_off_after_its_time_and_reads_one_state(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    url = make_store(postgres.url(database, trajectories=tmp_path), steps=1, prompts=2, n=2)
    with open_reader(url) as reader, reader._connection() as connection:
        settings = {
            name: connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("statement_timeout", "transaction_read_only", "transaction_isolation")
        }
        connection.rollback()
        connection.exec_driver_sql("SET statement_timeout = 1")
        with pytest.raises(StoreError, match=r"is busy .*statement timeout"), readable_errors("reading", locate(url)):
            connection.exec_driver_sql("SELECT pg_sleep(60)")
    assert list(settings.values()) == ["1min", "on", "repeatable read"]


def test_the_lease_runs_by_the_servers_clock(
    postgres: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url(database, trajectories=tmp_path)
    with open_writer(url) as writer:
        writer.start_run(SCENARIO.run())
        now = time.time()
        with monkeypatch.context() as patched:
            # A machine whose clock is a day ahead does not think that the lease has run out.
            patched.setattr("time.time", lambda: now + 86_400)
            with open_writer(url) as other, pytest.raises(StoreError, match="is being written by process"):
                other.resume_run("synthetic", 0)
