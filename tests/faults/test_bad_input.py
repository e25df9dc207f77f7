"""Bad input is one line that names place and remedy, exit code 2, and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import shutil
import socket
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from typer.testing import CliRunner

from population.cli import app
from server.store import commit, trajectories
from server.store.connections import locate
from server.store.reader import open_reader
from server.store.schema import VERSIONS
from server.store.writer import open_writer
from tests.commands import run
from tests.store.synthetic import make_store


def train(
    folder: Path, *settings: str, config: str = "configs/demo.yaml", more: tuple[str, ...] = ()
) -> tuple[int, str]:
    """Exit code and standard error of `graft train`."""
    places = (f"folder={folder}", f"store=sqlite:///{folder / 'store' / 'graft.db'}")
    arguments = ["train", config, *more, *(part for setting in (*places, *settings) for part in ("--set", setting))]
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr


def refused(folder: Path, message: str, *settings: str, **options: object) -> None:
    """The command ends with code 2 and one line holding the message; the folder is as it was."""
    before = sorted(folder.rglob("*"))
    code, stderr = train(folder, *settings, **options)  # type: ignore[arg-type]
    assert code == 2
    assert message in stderr
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["update.lerning_rate=1"], "unknown key 'update.lerning_rate'; did you mean 'learning_rate'?"),
        (["steps=many"], "steps: Input should be a valid integer"),
        (
            ["members=[{name: a, model: 'demo:qwen3'}]"],
            "exchanges groups and needs at least two members; add one or use method: grpo",
        ),
        (["members.1.name=qwen3"], "two members are named 'qwen3'; give each its own name"),
        (
            ["members.1.model=./no/such/model"],
            "member 'llama': model folder ./no/such/model does not exist; check members.llama.model",
        ),
        (["members.1.model=demo:gpt"], "member 'llama': 'demo:gpt' is no demo model"),
        (["data.source=missing.jsonl"], "missing.jsonl: no such file"),
        (["store=mysql://x"], "'mysql://x' cannot hold a run; give a database file"),
        (["rollouts.max_response_tokens=0"], "rollouts.max_response_tokens: Input should be greater than 0"),
        (
            ["data.prompts_per_step=1024", "update.prompts_per_minibatch=256"],
            "768 problems are fewer than data.prompts_per_step",
        ),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else "",
)
def test_a_bad_setting_is_refused_before_anything_is_written(tmp_path: Path, settings: list[str], message: str) -> None:
    refused(tmp_path, message, *settings)


def test_an_unparsable_answer_is_named_and_counted_or_skipped_as_configured(tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    rows = [{"prompt": f"sort {i} 1 7?", "answer": str(i)} for i in range(4)] + [
        {"prompt": "draw it", "answer": r"\frac{"}
    ]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = ("data.prompts_per_step=4", "update.prompts_per_minibatch=4", f"data.source={problems}")
    refused(
        tmp_path,
        r"1 of 5 answers cannot be verified: '\\frac{' of 'draw it'; mend them or set unparsable: skip",
        *sizes,
    )
    planned = CliRunner().invoke(
        app, ["plan", "configs/demo.yaml", *(p for s in (*sizes, "data.unparsable=skip") for p in ("--set", s))]
    )
    assert planned.exit_code == 0, planned.stderr
    assert " 4 " in planned.stdout


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path, warm_folder: Path) -> None:
    source = next((warm_folder / "warm-start").glob("llama*/config.json")).parent
    model = tmp_path / "model"
    shutil.copytree(source, model)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (model / name).exists():
            held = json.loads((model / name).read_text())
            held.pop("eos_token", None)
            (model / name).write_text(json.dumps(held))
    (model / "generation_config.json").write_text("{}")
    refused(tmp_path, "member 'llama': tokenizer", f"members.1.model={model}")


def broken_member(tmp_path: Path, warm_folder: Path, name: str, content: str) -> str:
    """A copy of the llama member with one file replaced; the setting that uses it."""
    model = tmp_path / "model"
    shutil.copytree(next((warm_folder / "warm-start").glob("llama*/config.json")).parent, model)
    (model / name).write_text(content)
    return f"members.1.model={model}"


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json", "config.json"])
def test_a_broken_file_of_a_model_folder_is_named_before_anything_is_written(
    tmp_path: Path, warm_folder: Path, name: str
) -> None:
    setting = broken_member(tmp_path, warm_folder, name, "{")
    refused(tmp_path, "model", setting)


def test_weights_that_are_not_whole_are_one_line(tmp_path: Path, warm_folder: Path) -> None:
    setting = broken_member(tmp_path, warm_folder, "model.safetensors", "cut off")
    shutil.copytree(warm_folder / "warm-start", tmp_path / "warm-start")
    code, stderr = train(tmp_path, setting)
    assert code == 2
    assert stderr.count("\n") == 1
    assert "its weights cannot be loaded" in stderr
    planned = CliRunner().invoke(app, ["plan", "configs/demo.yaml", "--set", setting])
    assert planned.exit_code == 2
    assert "is not a whole safetensors file" in planned.stderr


def test_evaluating_without_benchmarks_is_refused_before_models_are_loaded(tmp_path: Path) -> None:
    arguments = ["evaluate", "configs/demo.yaml", "--members", str(tmp_path), "--set", "evaluation.benchmarks=[]"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "evaluation.benchmarks: there are none" in done.stderr


def test_a_store_of_a_newer_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store' / 'graft.db'}"
    open_writer(url).close()
    with create_engine(url).begin() as connection:
        connection.execute(text("UPDATE graft_alembic_version SET version_num = '9999'"))
    code, stderr = train(tmp_path)
    assert code == 2
    assert "9999" in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "warm-start").exists()
    with create_engine(url).connect() as connection:
        assert connection.execute(text("SELECT version_num FROM graft_alembic_version")).scalar_one() == "9999"
    assert locate(url).database.exists()


@pytest.mark.parametrize(
    "command",
    [
        ["train", "configs/demo.yaml", "--set", "store={url}", "--set", "folder={folder}"],
        ["train", "configs/demo.yaml", "--set", "store={url}", "--set", "folder={folder}", "--resume"],
        ["compare", "{path}"],
        ["compare", "*", "--store", "{url}"],
        ["summary", "configs/demo.yaml", "--set", "store={url}"],
        ["replay", "latest", "--store", "{url}"],
        ["store", "info", "{url}"],
        ["store", "verify", "{url}"],
        ["store", "prune", "{url}", "--keep-steps", "1"],
        ["store", "export", "{url}", "--to", "tensorboard"],
    ],
    ids=" ".join,
)
def test_a_store_of_an_older_schema_is_left_as_it_is_and_every_command_names_the_upgrade(
    tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "store" / "graft.db"
    url, older, newest = f"sqlite:///{path}", *VERSIONS[-2:]
    make_store(url, steps=1, prompts=2, n=2)
    with create_engine(url).begin() as connection:
        connection.execute(text(f"UPDATE graft_alembic_version SET version_num = '{older}'"))
    done = CliRunner().invoke(app, [part.format(url=url, path=path, folder=tmp_path) for part in command])
    assert done.exit_code == 2, done.output
    said = f"{path} has schema {older}, this program needs {newest}; run: graft db upgrade {url}"
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["store"]
    with create_engine(url).connect() as connection:
        assert connection.execute(text("SELECT version_num FROM graft_alembic_version")).scalar_one() == older


def test_a_port_in_use_is_refused_before_any_work(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ["--set", f"folder={tmp_path}", "--set", f"store=sqlite:///{tmp_path / 'graft.db'}"]
        done = run(
            [".venv/bin/graft", "train", "configs/demo.yaml", "--dashboard", "--port", str(port), *settings],
            deadline_s=120,
        )
    assert done.returncode == 2
    assert f"port {port}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_resuming_what_is_not_there_is_refused(tmp_path: Path) -> None:
    code, stderr = train(tmp_path, more=("--resume",))
    assert code == 2
    assert "start a run first" in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "warm-start").exists()


def test_a_full_disk_during_a_commit_leaves_whole_steps_and_the_run_can_go_on(
    tmp_path: Path, warm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(warm_folder / "warm-start", tmp_path / "warm-start")
    small = (
        "steps=3",
        "data.prompts_per_step=8",
        "update.prompts_per_minibatch=8",
        "evaluation.benchmarks=[]",
        "checkpoint.every_steps=1",
    )
    written = trajectories.write_shard
    calls = []

    def full(*arguments: object, **options: object) -> object:
        calls.append(1)
        if len(calls) > 4:  # three members: in the middle of step 2
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "write_shard", full)
    code, stderr = train(tmp_path, *small, more=("--quiet", "--run", "r"))
    assert code == 2
    assert stderr.count("\n") == 1
    assert "step 2" in stderr
    assert "space" in stderr
    url = f"sqlite:///{tmp_path / 'store' / 'graft.db'}"
    with open_reader(url) as reader:
        assert (reader.run("r").status, reader.run("r").last_step) == ("failed", 1)
    monkeypatch.setattr(commit, "write_shard", written)
    code, stderr = train(tmp_path, *small, more=("--quiet", "--run", "r", "--resume"))
    assert (code, stderr) == (0, "")
    with open_reader(url) as reader:
        assert (reader.run("r").status, reader.run("r").last_step) == ("finished", 3)
