"""Trackers beside a run: what they miss, break or delay is a warning of the run and nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from population import trackers
from population.config import ConfigError, TrackerConfig, load, with_trackers
from population.trackers import followed
from server.store.reader import open_reader
from server.store.writer import Writer, open_writer
from tests.store.synthetic import Scenario

SCENARIO = Scenario(steps=5, prompts=4, n=2)
TENSORBOARD = TrackerConfig(kind="tensorboard")
DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "FINISH_S", 600.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


def _train(writer: Writer, first: int = 1, last: int = 3) -> None:
    for step in range(first, last + 1):
        writer.commit(SCENARIO.step(step))


def _train_and_fail(writer: Writer) -> None:
    _train(writer)
    raise ZeroDivisionError


def _warnings(url: str) -> list[str]:
    with open_reader(url) as reader:
        return [event.message for event in reader.events("latest") if event.level == "warning"]


def _written(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("events.*")))


def test_a_run_is_shown_to_its_last_step_and_goes_on_after_a_resume(url: str, tmp_path: Path) -> None:
    with open_writer(url) as writer:
        writer.start_run(SCENARIO.run())
        with followed([TENSORBOARD], tmp_path / "shown", url, writer, 0):
            _train(writer)
        first = _written(tmp_path / "shown")
        assert first.count(b"qwen-0.5b/loss") == 3
        writer.finish("interrupted")
        writer.resume_run("synthetic", 2)
        with followed([TENSORBOARD], tmp_path / "shown", url, writer, 2):
            _train(writer, 3, 5)
    assert _written(tmp_path / "shown").count(b"qwen-0.5b/loss") == 6
    assert _warnings(url) == []


def test_a_tracker_that_fails_is_one_warning_with_the_reason_and_the_remedy(url: str, tmp_path: Path) -> None:
    (tmp_path / "shown").write_text("a file where the folder should be")
    with open_writer(url) as writer:
        writer.start_run(SCENARIO.run())
        with followed([TENSORBOARD], tmp_path / "shown", url, writer, 0):
            _train(writer)
        assert writer.last_step == 3
    (warning,) = _warnings(url)
    assert warning.startswith("tracker tensorboard: ")
    assert "Error: " in warning
    assert warning.endswith("send it later: graft store export --to tensorboard --run synthetic")


def test_a_tracker_that_hangs_is_ended_after_the_run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "FINISH_S", 0.5)
    begin = trackers._Follower.__init__

    def stopped(self, *arguments) -> None:
        begin(self, *arguments)
        os.kill(self._process.pid, signal.SIGSTOP)

    monkeypatch.setattr(trackers._Follower, "__init__", stopped)
    with open_writer(url) as writer:
        writer.start_run(SCENARIO.run())
        with followed([TENSORBOARD], tmp_path / "shown", url, writer, 0):
            _train(writer)
        (warning,) = _warnings(url)
    assert "was not done" in warning


def test_a_fault_of_the_run_passes_through(url: str, tmp_path: Path) -> None:
    with open_writer(url) as writer:
        writer.start_run(SCENARIO.run())
        with pytest.raises(ZeroDivisionError), followed([TENSORBOARD], tmp_path / "shown", url, writer, 0):
            _train_and_fail(writer)
    assert _written(tmp_path / "shown").count(b"qwen-0.5b/loss") == 3
    assert _warnings(url) == []


def test_trackers_are_named_in_the_configuration_or_on_the_command_line() -> None:
    config = load(DEMO, ["trackers=[mlflow, {kind: wandb, project: mine}]"])
    assert [(one.kind, one.project) for one in config.trackers] == [("mlflow", "graft"), ("wandb", "mine")]
    both = with_trackers(config, ["tensorboard", "wandb", "tensorboard"])
    assert [(one.kind, one.project) for one in both.trackers] == [
        ("mlflow", "graft"), ("wandb", "mine"), ("tensorboard", "graft"),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="there is no tracker 'wanbd'; did you mean 'wandb'"):
        with_trackers(config, ["wanbd"])
    with pytest.raises(ConfigError, match=r"trackers\.0\.kind"):
        load(DEMO, ["trackers=[nothing]"])
