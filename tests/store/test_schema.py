"""Schema versions: another one is named and left alone; an upgrade backs up first and changes everything or nothing."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from server.store import backup, connections, schema, sqlite, upgrade
from server.store.backup import client_environment, find_program
from server.store.connections import locate
from server.store.reader import open_reader
from server.store.records import LeaseError, SchemaError, StoreError
from server.store.writer import open_writer
from tests.store.audit import audit
from tests.store.backends import file_of, raw
from tests.store.synthetic import make_store

ROOT = Path(__file__).parents[2]
NEWEST = schema.VERSIONS[-1]
NEXT = f"""
import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{NEWEST}"


def upgrade() -> None:
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("note", sa.Text(), nullable=False, server_default="none"))
        table.alter_column("message", nullable=True)
"""
BROKEN = NEXT + '    op.execute("INSERT INTO no_such_table VALUES (1)")\n'


def _migrated(path: Path) -> Engine:
    engine = locate(str(path)).writer_engine(references=False)
    with engine.begin() as connection:
        command.upgrade(upgrade.migration_config(connection), "head")
    return engine


def _tables(connection: Connection) -> list[tuple[str, tuple[tuple[object, ...], ...]]]:
    names = (
        connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").scalars().all()
    )
    return [
        (name, tuple(tuple(row) for row in connection.exec_driver_sql(f"PRAGMA table_info({name})"))) for name in names
    ]


def _indexes(connection: Connection) -> list[tuple[object, ...]]:
    return [
        tuple(row)
        for row in connection.exec_driver_sql(
            "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' ORDER BY name"
        )
    ]


def test_the_migrations_make_exactly_the_tables_that_a_new_store_gets(tmp_path: Path) -> None:
    open_writer(str(tmp_path / "new.db")).close()
    new, migrated = locate(str(tmp_path / "new.db")).writer_engine(), _migrated(tmp_path / "migrated.db")
    with new.begin() as one, migrated.begin() as other:
        assert _tables(one) == _tables(other)
        assert _indexes(one) == _indexes(other)
        context = MigrationContext.configure(other, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, schema.metadata) == []
        assert connections.schema_version(one) == connections.schema_version(other) == schema.VERSIONS[-1]
    new.dispose()
    migrated.dispose()
    assert open_writer(str(tmp_path / "migrated.db")).close() is None


def test_every_version_has_its_script_in_order(tmp_path: Path) -> None:
    engine = locate(str(tmp_path / "x.db")).writer_engine()
    with engine.begin() as connection:
        scripts = ScriptDirectory.from_config(upgrade.migration_config(connection)).walk_revisions()
        assert tuple(script.revision for script in scripts)[::-1] == schema.VERSIONS
    engine.dispose()


def test_a_new_store_has_exactly_the_tables_of_the_schema(url: str) -> None:
    open_writer(url).close()
    engine = locate(url).writer_engine()
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, schema.metadata) == []
        assert connections.schema_version(connection) == NEWEST
    engine.dispose()


@pytest.fixture
def older(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of today's schema under a program that has one more."""
    make_store(url, steps=2, prompts=3, n=2)
    scripts = tmp_path / "migrations"
    shutil.copytree(upgrade.MIGRATIONS, scripts)
    (scripts / "versions" / "9000_note.py").write_text(NEXT)
    monkeypatch.setattr(upgrade, "MIGRATIONS", scripts)
    for module in (upgrade, connections):
        monkeypatch.setattr(module, "VERSIONS", (*schema.VERSIONS, "9000"))
    return url


def test_an_older_store_is_left_alone_and_the_upgrade_command_named(older: str) -> None:
    with raw(older) as database:
        before = database.dump()
    for opening in (open_reader, open_writer):
        with pytest.raises(
            SchemaError,
            match=re.escape(f"has schema {NEWEST}, this program needs 9000; run: graft db upgrade {locate(older).url}"),
        ):
            opening(older)
    with raw(older) as database:
        assert database.dump() == before


def test_an_upgrade_backs_up_and_then_migrates(older: str, tmp_path: Path, new_url: Callable[[str], str]) -> None:
    with raw(older) as database:
        before = database.dump()
    done = upgrade.upgrade(older, folder=tmp_path)
    assert done.backup is not None
    assert done.backup.parent == tmp_path
    assert f".schema-{NEWEST}." in done.backup.name
    assert str(done).startswith(f"upgraded from schema {NEWEST} to 9000; the former database is kept as {done.backup}")
    with open_reader(older) as reader:
        assert reader.run("latest").last_step == 2
    assert audit(older) == []
    with raw(older) as upgraded, raw(_restored(done.backup, new_url)) as kept:
        assert upgraded.rows("SELECT note FROM runs") == [{"note": "none"}]
        assert kept.dump() == before
        assert len(upgraded.rows("SELECT id FROM groups")) == len(before["groups"])
    again = upgrade.upgrade(older)
    assert (str(again), again.backup) == ("already of this program's schema (9000)", None)


def _restored(backup: Path, new_url: Callable[[str], str]) -> str:
    """The URL of a store made from a backup."""
    if backup.suffix != ".dump":
        return str(backup)
    url = new_url("restored")
    target = locate(url)
    program = find_program("pg_restore", 10)
    assert program is not None
    command = [program, "--no-owner", "--exit-on-error", "--dbname", str(target.target.database), str(backup)]
    done = subprocess.run(command, env=client_environment(target.target), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return url


def test_without_a_backup_program_the_upgrade_says_how_to_go_on(
    older: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "find_program", lambda name, at_least: None)
    if older.startswith("postgresql"):
        with pytest.raises(StoreError, match=r"no pg_dump of version \d+ .* upgrade with --no-backup"):
            upgrade.upgrade(older, folder=tmp_path)
        with pytest.raises(SchemaError, match="this program needs 9000"):
            open_reader(older)
    done = upgrade.upgrade(older, backup=False)
    assert str(done) == f"upgraded from schema {NEWEST} to 9000, without a backup"
    assert not [*tmp_path.glob("*.backup"), *tmp_path.glob("*.dump")]
    open_reader(older).close()


def _older_schema(path: Path, like: Path, version: str = "0001") -> None:
    """A store of an older schema with the rows of a present one, whose places have one source each."""
    engine = locate(str(path)).writer_engine(references=False)
    with engine.begin() as connection:
        command.upgrade(upgrade.migration_config(connection), version)
    engine.dispose()
    database = sqlite3.connect(path)
    database.execute("ATTACH ? AS newer", (str(like),))
    for table in schema.metadata.sorted_tables:
        names = ", ".join(f'"{row[1]}"' for row in database.execute(f"PRAGMA main.table_info({table.name})"))
        if not names:
            continue  # added by a later schema
        database.execute(f"INSERT INTO main.{table.name} ({names}) SELECT {names} FROM newer.{table.name}")
    database.commit()
    database.close()


@pytest.mark.parametrize("version", schema.VERSIONS[:-1])
def test_a_store_of_every_older_schema_is_upgraded_with_all_its_rows(tmp_path: Path, version: str) -> None:
    make_store(tmp_path / "new", members=3, steps=4, prompts=12, n=4, nan_loss_at=2)
    (tmp_path / "old").mkdir()
    database = tmp_path / "old" / "store.db"
    _older_schema(database, tmp_path / "new" / "store.db", version)
    shutil.copytree(tmp_path / "new" / "store_trajectories", tmp_path / "old" / "store_trajectories")
    with pytest.raises(SchemaError, match=f"has schema {version}, this program needs {NEWEST}"):
        open_reader(str(database))
    assert upgrade.upgrade(str(database)).before == version
    assert audit(database) == []
    old, new = sqlite3.connect(database), sqlite3.connect(tmp_path / "new" / "store.db")
    for table in schema.metadata.sorted_tables:
        rows = [one.execute(f"SELECT * FROM {table.name}").fetchall() for one in (old, new)]
        assert sorted(map(repr, rows[0])) == sorted(map(repr, rows[1])), table.name
    assert old.execute("SELECT count(*) FROM grafted").fetchone()[0] > 50
    made = [one.execute("SELECT sql FROM sqlite_master WHERE name = 'grafted'").fetchone()[0] for one in (old, new)]
    assert all(sql.rstrip().endswith("WITHOUT ROWID") for sql in made)
    old.close()
    new.close()


def test_a_response_without_its_transfer_stops_the_upgrade(tmp_path: Path) -> None:
    make_store(tmp_path / "new", steps=1, prompts=12, n=4)
    database = tmp_path / "store.db"
    _older_schema(database, tmp_path / "new" / "store.db")
    broken = sqlite3.connect(database)
    broken.execute("DELETE FROM transfers")
    broken.commit()
    before = broken.execute("SELECT count(*) FROM grafted").fetchone()
    with pytest.raises(StoreError, match=r"grafted\.source"):
        upgrade.upgrade(str(database))
    assert broken.execute("SELECT count(*) FROM grafted").fetchone() == before
    broken.close()


def test_an_upgrade_that_fails_changes_nothing(older: str, tmp_path: Path) -> None:
    (tmp_path / "migrations" / "versions" / "9000_note.py").write_text(BROKEN)
    with pytest.raises(StoreError, match=r"no such table: no_such_table|\"no_such_table\" does not exist"):
        upgrade.upgrade(older, folder=tmp_path)
    with raw(older) as database:
        assert database.rows(f"SELECT version_num FROM {schema.VERSION_TABLE}") == [{"version_num": NEWEST}]
        assert "note" not in database.columns("runs")


def test_an_upgrade_is_refused_while_a_run_is_being_written(older: str, tmp_path: Path) -> None:
    with raw(older) as database:
        database.execute("UPDATE runs SET lease_until = lease_until + 1e12")
    with pytest.raises(LeaseError, match="is being written by process"):
        upgrade.upgrade(older, folder=tmp_path)
    assert not [*tmp_path.glob("*.backup"), *tmp_path.glob("*.dump")]


def test_a_newer_store_is_refused_by_version(url: str) -> None:
    make_store(url, steps=1, prompts=2, n=2)
    with raw(url) as database:
        database.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    for opening in (open_reader, open_writer, upgrade.upgrade):
        with pytest.raises(SchemaError, match=f"has schema 9999, newer than this program's {NEWEST}; update graft"):
            opening(url)


def test_a_database_that_is_no_store_is_left_alone(url: str, tmp_path: Path) -> None:
    if url.startswith("sqlite"):
        file_of(url).touch()
    with raw(url) as database:
        # Another tool's Alembic version must not be taken for ours.
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES ('0001')")
    for opening in (open_reader, open_writer, upgrade.upgrade):
        with pytest.raises(SchemaError, match="holds other tables"):
            opening(url)


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("this is no database, and long enough to be looked at as one" * 20)
    for opening in (open_reader, open_writer, upgrade.upgrade):
        with pytest.raises(StoreError, match="damaged or no SQLite database"):
            opening(str(text))


def test_a_missing_store_is_made_only_when_asked(tmp_path: Path) -> None:
    url = str(tmp_path / "deep" / "store.db")
    for opening in (lambda: open_writer(url, create=False), lambda: upgrade.upgrade(url)):
        with pytest.raises(StoreError, match="does not exist"):
            opening()
    assert not list(tmp_path.iterdir())
    open_writer(url).close()
    open_writer(url, create=False).close()


def test_a_path_may_hold_any_character(tmp_path: Path) -> None:
    folder = tmp_path / "a b?c#d%20é;&"
    url = make_store(folder, steps=1, prompts=2, n=2)
    with open_reader(url) as reader:
        assert reader.run("latest").last_step == 1
    assert {"store.db", "store_trajectories"} <= {path.name for path in folder.iterdir()}
    # In a URL a bare question mark begins options; a plain path takes it as it is.
    with pytest.raises(StoreError, match="options after '\\?'"):
        open_writer(f"sqlite:///{tmp_path}/what?.db")
    open_writer(f"{tmp_path}/what?.db").close()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["what?.db"]


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "filesystem", lambda folder: "nfs4")
    with pytest.raises(StoreError, match="nfs4 file system"):
        open_writer(str(tmp_path / "store.db"))


def test_the_file_system_of_a_folder_is_that_of_its_deepest_mount(tmp_path: Path) -> None:
    assert sqlite.filesystem(Path("/proc/self")) == "proc"
    assert sqlite.filesystem(tmp_path) not in {"", "proc"}


def test_a_finished_store_in_a_folder_nobody_may_write_can_be_read(tmp_path: Path) -> None:
    url = make_store(tmp_path, steps=2, prompts=2, n=2)
    program = f"from server.store.reader import open_reader; print(open_reader({url!r}).run('latest').last_step)"
    mount = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}"
    unshared = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*unshared, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system of its own")
    done = subprocess.run(
        [*unshared, sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


def test_the_store_is_imported_without_training_software() -> None:
    heavy = {"torch", "deepspeed", "transformers", "sglang", "ray", "streamlit"}
    modules = "server.store.writer, server.store.reader, server.store.upgrade"
    program = f"import sys, {modules}; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr
