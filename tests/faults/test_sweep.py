"""A sweep that is killed leaves no process behind and goes on where it was; a run that fails stops no other."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from population.compare.command import compare
from server.store.connections import is_empty, locate
from server.store.reader import RunInfo, open_reader
from tests.commands import ROOT, run

PAIR = {
    "base": "configs/demo_pair.yaml",
    "seeds": [0],
    "settings": {
        "steps": 400,
        "data.prompts_per_step": 4,
        "update.prompts_per_minibatch": 2,
        "rollouts.rollouts_per_prompt": 4,
        "evaluation.benchmarks.heldout.limit": 6,
        "checkpoint.every_steps": 1,
    },
}


def sweep_file(folder: Path, name: str, arms: list[dict[str, object]]) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"name": name, "arms": arms, "folder": str(folder / name), **PAIR}))
    (folder / name).mkdir()
    shutil.copytree(folder / "warm-start", folder / name / "warm-start")
    return path


def command(path: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "population", "sweep", str(path), *more]


def start(path: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(path), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def recorded(folder: Path, uid: str) -> RunInfo | None:
    store = folder / uid / "graft.db"
    if not store.is_file() or is_empty(locate(str(store))):
        return None
    with open_reader(str(store)) as reader:
        return next((one for one in reader.runs() if one.uid == uid), None)


def steps(folder: Path, uid: str) -> int:
    info = recorded(folder, uid)
    return (info.last_step or 0) if info else 0


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder: the sweep's runs."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended while we looked
            continue
        if f"{folder}/" in line:
            found.append(line)
    return found


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = 180.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_process_and_the_same_command_goes_on(warm_folder: Path) -> None:
    folder = warm_folder / "killed-sweep"
    second: dict[str, object] = {"name": "second", "needs": "a"}
    second["settings"] = {"members.llama.model": "{needs.members}/llama"}
    path = sweep_file(warm_folder, folder.name, [{"name": "a"}, second])

    process = start(path)
    try:
        wait_for(lambda: steps(folder, "a-0") >= 1, "the first step")
        assert processes_of(folder)
    finally:
        process.kill()  # as the kernel does when memory runs out: no code of ours runs
        process.communicate(timeout=30)
    wait_for(lambda: not processes_of(folder), "the end of the runs", 30)
    reached = steps(folder, "a-0")
    assert recorded(folder, "second-0") is None

    process = start(path)
    try:
        wait_for(lambda: steps(folder, "a-0") > reached, "a further step")
        refused = run(command(path), deadline_s=120)
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "a-0: goes on" in printed
    assert "interrupted; the same command goes on" in said
    assert not processes_of(folder)
    info = recorded(folder, "a-0")
    assert info is not None
    assert info.status == "interrupted"
    assert refused.returncode == 2
    assert "another sweep is running there" in refused.stderr

    # A length that the record allows lets it finish.
    enough = f"steps={steps(folder, 'a-0') + 1}"
    done = run(command(path, "--set", enough), deadline_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("a-0: goes on", "a-0: finished", "second-0: started", "second-0: finished", "mean of the members"):
        assert text in done.stdout
    found = compare([str(folder)], store="")
    assert [(arm.name, list(arm.runs)) for arm in found.arms] == [("a", [0]), ("second", [0])]
    before, after = found.before(found.arm("second"), "llama"), found.after(found.arm("a"), "llama")
    assert before.by_seed == after.by_seed  # the second stage began with the weights of the first
    assert (folder / "comparison.json").is_file()

    again = run(command(path, "--set", enough), deadline_s=120)
    assert again.returncode == 0
    assert "started" not in again.stdout
    assert "goes on" not in again.stdout
    listed = run(command(path, "--set", enough, "--plan"), deadline_s=120)
    assert listed.returncode == 0
    assert "2 runs in" in listed.stdout


def test_a_failed_run_is_shown_with_its_log_and_stops_only_what_needs_it(warm_folder: Path) -> None:
    folder = warm_folder / "failing-sweep"
    arms: list[dict[str, object]] = [
        {"name": "broken", "settings": {"members.llama.model": str(warm_folder / "none")}},
        {"name": "after", "needs": "broken"},
        {"name": "whole"},
    ]
    path = sweep_file(warm_folder, folder.name, arms)
    done = run(command(path, "--jobs", "1", "--set", "steps=1"), deadline_s=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "broken-0: FAILED, exit code 2" in done.stdout
    assert f"member 'llama': {warm_folder / 'none'}" in done.stdout  # the last line of its log
    assert "after-0: FAILED, not started: it needs broken-0, which did not finish" in done.stdout
    assert "whole-0: finished" in done.stdout
    assert "2 of 3 runs FAILED: broken-0, after-0" in done.stdout
    assert "not run: broken-0, after-0" in " ".join(done.stdout.split())


def test_a_mistake_in_any_run_stops_the_sweep_before_the_first(warm_folder: Path, tmp_path: Path) -> None:
    arms: list[dict[str, object]] = [
        {"name": "a"},
        {"name": "b", "settings": {"data.source": str(tmp_path / "no.csv")}},
    ]
    path = sweep_file(warm_folder, "mistaken-sweep", arms)
    done = run(command(path), deadline_s=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "no.csv") in done.stderr
    assert [entry.name for entry in (warm_folder / "mistaken-sweep").iterdir()] == ["warm-start"]
