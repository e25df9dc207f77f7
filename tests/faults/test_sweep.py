"""A sweep that is killed leaves no process behind and goes on where it was; a run that fails stops no other."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from population.compare.command import compare
from population.errors import RunError
from population.sweep.command import check
from population.sweep.command import run as run_sweep
from population.sweep.manifest import SweepError
from population.sweep.spec import load_sweep
from server.store.connections import has_store, locate
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
    """A sweep of the run `second-0` and of `a-0`, which it needs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(path, "--arm", "second"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # A suite that was started in the background hands down an ignored Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def recorded(folder: Path, uid: str) -> RunInfo | None:
    store = folder / uid / "graft.db"
    if not has_store(locate(str(store))):
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
def test_a_sweep_survives_kills_stops_cleanly_and_reports_what_failed(warm_folder: Path) -> None:
    folder = warm_folder / "killed-sweep"
    arms: list[dict[str, object]] = [
        {"name": "broken", "settings": {"members.llama.model": str(warm_folder / "none")}},
        {"name": "after", "needs": "broken"},
        {"name": "a"},
        {"name": "second", "needs": "a", "settings": {"members.llama.model": "{needs.members}/llama"}},
    ]
    path = sweep_file(warm_folder, folder.name, arms)
    killed_leaves_no_process(path, folder)
    interrupted_stops_cleanly(path, folder)

    # A length that the record allows lets it finish.
    enough = f"steps={steps(folder, 'a-0') + 1}"
    done = run(command(path, "--set", enough), deadline_s=300)
    assert done.returncode == 1, done.stdout + done.stderr
    for text in (
        "a-0: goes on",
        "a-0: finished",
        "second-0: started",
        "second-0: finished",
        "mean of the members",
        "broken-0: FAILED, exit code 2",
        f"error: member 'llama': model folder {warm_folder / 'none'} does not exist",  # the last line of its log
        "after-0: FAILED, not started: it needs broken-0, which did not finish",
        "2 of 4 runs FAILED: broken-0, after-0",
    ):
        assert text in done.stdout
    found = compare([str(folder)], store="")
    assert [(arm.name, list(arm.runs)) for arm in found.arms] == [("a", [0]), ("second", [0])]
    assert found.notes == ("not run: broken-0, after-0",)
    before, after = found.before(found.arm("second"), "llama"), found.after(found.arm("a"), "llama")
    assert before.by_seed == after.by_seed  # the second stage began with the weights of the first
    assert (folder / "comparison.json").is_file()

    checked = check(load_sweep(path, None, [enough]))
    assert checked.states == {"broken-0": "new", "after-0": "new", "a-0": "finished", "second-0": "finished"}
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SweepError, match="another sweep is running there"):
            run_sweep(Console(quiet=True), checked, 1)


def killed_leaves_no_process(path: Path, folder: Path) -> None:
    process = start(path)
    try:
        wait_for(lambda: steps(folder, "a-0") >= 1, "the first step")
        assert processes_of(folder)
    finally:
        process.kill()  # as the kernel does when memory runs out: no code of ours runs
        process.communicate(timeout=60)
    wait_for(lambda: not processes_of(folder), "the end of the runs")
    assert recorded(folder, "second-0") is None


def interrupted_stops_cleanly(path: Path, folder: Path) -> None:
    reached = steps(folder, "a-0")
    process = start(path)
    try:
        wait_for(lambda: steps(folder, "a-0") > reached, "a further step")
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


def test_a_mistake_in_any_run_stops_the_sweep_before_the_first(tmp_path: Path) -> None:
    (tmp_path / "warm-start").mkdir()
    missing = tmp_path / "no.csv"
    path = sweep_file(tmp_path, "mistaken", [{"name": "a"}, {"name": "b", "settings": {"data.source": str(missing)}}])
    with pytest.raises(RunError, match=re.escape(str(missing))) as refused:
        check(load_sweep(path))
    assert "\n" not in str(refused.value)
    assert [entry.name for entry in (tmp_path / "mistaken").iterdir()] == ["warm-start"]
