"""The README's session, command by command as it stands there, made smaller by further options."""

from __future__ import annotations

import os
import shlex
import subprocess
import urllib.request
from pathlib import Path

from server.store.reader import open_reader
from tests.commands import ROOT, run, runnable, session_commands


def test_train_resume_summary_dashboard_replay_and_export_follow_one_another(warm_folder: Path) -> None:
    url = f"sqlite:///{warm_folder / 'readme.db'}"
    places = ["--set", f"folder={warm_folder}", "--set", f"store={url}"]
    small = [*places, "--set", "evaluation.benchmarks.heldout.limit=24", "--set", "checkpoint.every_steps=1"]
    train, resume, summary, dashboard, replay, export = (shlex.split(command) for command in session_commands())

    first = run([*train, "--port", "0", *small, "--set", "steps=1"], deadline_s=300)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "dashboard: http://127.0.0.1:" in first.stdout

    second = run([*resume, *small, "--set", "steps=2"], deadline_s=300)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "steps 2 to 2" in second.stdout
    with open_reader(url) as reader:
        assert [(r.status, r.last_step, r.total_steps) for r in reader.runs()] == [("finished", 2, 2)]
        rates, _ = reader.metric("latest", "learning_rate", 1, 1)
        assert rates[1] < rates[0]  # the override of one member

    third = run([*summary, *places], deadline_s=300)
    assert third.returncode == 0, third.stderr
    assert "graft, 2 of 2 steps, finished" in third.stdout

    words = runnable([*dashboard, "--store", url, "--port", "0"])
    server = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ.copy())
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with urllib.request.urlopen(f"{address}/_stcore/health", timeout=60) as answer:
            assert answer.status == 200
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0

    fourth = run([*replay, "--store", url], deadline_s=300)
    assert fourth.returncode == 0, fourth.stderr
    assert "exchange.floor" in fourth.stdout

    fifth = run([*export, "--store", url, "--to", str(warm_folder / "export")], deadline_s=600)
    assert fifth.returncode == 0, fifth.stderr
    assert "1 file of report" in fifth.stdout
