"""What trackers are shown: every committed step once, with the values that the raw rows give."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from population.cli import app
from server.store.reader import open_reader
from server.store.writer import open_writer
from server.trackers import exporter as exporter_module
from server.trackers.exporter import Exporter, export
from server.trackers.tracker import TrackerError
from tests.store.synthetic import BENCHMARKS, Scenario, make_store, write_run

SCENARIO = Scenario(steps=7, prompts=6, n=4, nan_loss_at=3)
NAME = SCENARIO.names[0]


class Notebook:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.steps.append((step, dict(values)))

    def finish(self, outcome: str) -> None:
        self.steps.append((-1, {outcome: 0.0}))


def test_a_step_has_every_finite_metric_as_a_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "CHUNK", 3)
    url, notebook = make_store(tmp_path, steps=7, prompts=6, n=4, nan_loss_at=3), Notebook()
    with open_reader(url) as reader:
        assert Exporter(reader, "synthetic", notebook).advance() == 7
    values: dict[int, dict[str, float]] = {}
    for step, part in notebook.steps:
        values.setdefault(step, {}).update(part)
    assert sorted(values) == [0, 1, 2, 3, 4, 5, 6, 7]
    for step in range(1, 8):
        record = SCENARIO.step(step)
        expected = {
            f"{one.member or 'population'}/{one.name}": one.numerator / one.denominator
            for one in record.metrics
            if math.isfinite(one.numerator)
        }
        for name in SCENARIO.names:
            own = [group for group in record.groups if group.member == name]
            expected[f"{name}/solved"] = sum(group.successes for group in own) / sum(group.n for group in own)
            expected[f"{name}/all_fail"] = sum(group.all_fail for group in own) / len(own)
        found = {key: value for key, value in values[step].items() if "evaluation" not in key and "received" not in key}
        assert found == pytest.approx(expected)
    assert f"{NAME}/loss" not in values[3]
    assert {f"{NAME}/evaluation/{benchmark}" for benchmark in BENCHMARKS} <= set(values[5])


def test_a_live_run_is_sent_step_by_step_and_nothing_twice(tmp_path: Path) -> None:
    url, notebook = str(tmp_path / "store.db"), Notebook()
    with open_writer(url) as writer, open_reader(_begun(writer, url)) as reader:
        exporter = Exporter(reader, "synthetic", notebook)
        assert exporter.advance() == 0
        for step in (1, 2):
            writer.commit(SCENARIO.step(step))
            assert exporter.advance() == 1
            assert exporter.advance() == 0
        # The evaluation of a step comes after its commit.
        for record in SCENARIO.evaluations(1):
            writer.record_evaluation(record)
        exporter.advance()
        exporter.advance()
    assert [step for step, _ in notebook.steps] == [1, 2, 1]
    assert set(notebook.steps[2][1]) == {f"{m}/evaluation/{b}" for m in SCENARIO.names for b in BENCHMARKS}


def _begun(writer, url: str) -> str:
    writer.start_run(SCENARIO.run())
    return url


def test_a_resumed_run_sends_only_what_is_new(tmp_path: Path) -> None:
    url, notebook = str(tmp_path / "store.db"), Notebook()
    with open_writer(url) as writer:
        write_run(writer, SCENARIO, until=5, evaluate_every=2)
    with open_reader(url) as reader:
        exporter = Exporter(reader, "synthetic", notebook, done=4)
        exporter.skip_evaluations()
        exporter.advance()
    assert [step for step, _ in notebook.steps] == [5]


def test_a_finished_run_is_exported_by_command(tmp_path: Path) -> None:
    url = make_store(tmp_path, steps=3, prompts=2, n=2)
    words = ["store", "export", url, "--to", "tensorboard", "--into", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, "tensorboard: 3 steps\n")
    (file,) = (tmp_path / "out" / "synthetic").iterdir()
    assert f"{NAME}/loss".encode() in file.read_bytes()
    done = CliRunner().invoke(app, ["store", "export", url, "--to", "tensorbord"])
    assert (done.exit_code, done.stderr) == (
        2,
        "error: there is no tracker 'tensorbord'; did you mean 'tensorboard'?\n",
    )


def test_a_package_that_is_not_there_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = make_store(tmp_path, steps=1, prompts=2, n=2)
    for kind, package in (("wandb", "wandb"), ("mlflow", "mlflow-skinny"), ("trackio", "trackio")):
        monkeypatch.setitem(sys.modules, kind, None)
        with pytest.raises(TrackerError, match=f"tracker {kind}: {kind} is not installed; pip install {package}"):
            export(url, "latest", kind, tmp_path, "graft")
