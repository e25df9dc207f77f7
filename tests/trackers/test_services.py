"""The services' own packages, kept on this machine; skipped where a package is not installed (the extra: trackers)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.synthetic import Scenario, make_store

ROOT = Path(__file__).parents[2]
NAME = Scenario().names[0]
# Each in a process of its own, as in a run: the packages leave threads, processes and settings behind.
SEND = """
import sys
from pathlib import Path
from server.store.reader import open_reader
from server.trackers.exporter import Exporter
from server.trackers.tracker import Settings, open_tracker
url, kind, folder, first, last = sys.argv[1:]
with open_reader(url) as reader:
    info = reader.run("latest")
    tracker = open_tracker(Settings(kind, Path(folder), "a project"), info, int(first))
    exporter = Exporter(reader, info.uid, tracker, int(first))
    reader_run = reader.run
    if last != "all":
        from dataclasses import replace
        reader.run = lambda run: replace(reader_run(run), last_step=int(last))
    exporter.skip_evaluations()
    exporter.advance()
    tracker.finish("finished" if last == "all" else "interrupted")
"""


def _send_in_two_parts(kind: str, url: str, folder: Path, **environment: str) -> None:
    """Steps 1 and 2 by one process, the rest by another, as after a resume."""
    for first, last in (("0", "2"), ("2", "all")):
        done = subprocess.run(
            [sys.executable, "-c", SEND, url, kind, str(folder), first, last],
            cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_mlflow_has_one_run_with_every_step_and_the_configuration(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    url = make_store(tmp_path, steps=4, prompts=2, n=2, nan_loss_at=3)
    place = {"MLFLOW_TRACKING_URI": f"file://{tmp_path / 'mlruns'}", "MLFLOW_ALLOW_FILE_STORE": "true"}
    _send_in_two_parts("mlflow", url, tmp_path / "out", **place)
    os.environ.update(place)
    client = MlflowClient(place["MLFLOW_TRACKING_URI"])
    experiment = client.get_experiment_by_name("a project")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("synthetic", "FINISHED")
    assert run.data.params["exchange.floor"] == "0.8"
    assert [one.step for one in client.get_metric_history(run.info.run_id, f"{NAME}/loss")] == [1, 2, 4]
    assert [one.step for one in client.get_metric_history(run.info.run_id, "population/union_solved")] == [1, 2, 3, 4]


def test_wandb_offline_takes_a_run_in_two_parts(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    url = make_store(tmp_path, steps=4, prompts=2, n=2, nan_loss_at=3)
    _send_in_two_parts("wandb", url, tmp_path / "out", WANDB_MODE="offline", WANDB_SILENT="true")
    files = sorted((tmp_path / "out" / "wandb").glob("offline-run-*/run-synthetic.wandb"))
    assert len(files) == 2
    assert all(f"{NAME}/loss".encode() in file.read_bytes() for file in files)


def test_trackio_takes_a_run_in_two_parts(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    url = make_store(tmp_path, steps=4, prompts=2, n=2, nan_loss_at=3)
    place = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    _send_in_two_parts("trackio", url, tmp_path / "out", **place)
    read = (
        "import trackio, json\n"
        "from trackio.sqlite_storage import SQLiteStorage\n"
        "print(json.dumps([row['step'] for row in SQLiteStorage.get_logs('a project', 'synthetic')]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", read],
        env={**os.environ, **place}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(set(json.loads(done.stdout.splitlines()[-1]))) == [1, 2, 3, 4]
