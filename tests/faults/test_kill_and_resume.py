"""A run that is killed again and again and resumed is the run that was never killed."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.store.reader import Reader, open_reader
from tests.commands import ROOT, run

STEPS = 6
# Metrics of time, which no two runs share.
NOT_KEPT = ("seconds_", "idle_", "step_seconds", "tokens_per_second")
DYING = ROOT / "tests" / "faults" / "dying_run.py"
# (phase, step, longest delay in s): every phase of a step, and all writes; checkpoints fall on steps 2, 4 and 6,
# evaluations on 3 and 6.
MOMENTS = [
    ("sample", 1, 0.2),
    ("update", 2, 0.3),
    ("commit", 2, 0.05),
    ("checkpoint", 2, 0.05),
    ("exchange", 3, 0.1),
    ("keep", 3, 0.03),
    ("commit", 4, 0.03),
    ("checkpoint", 4, 0.1),
    ("sample", 5, 0.3),
    ("sync", 5, 0.03),
    ("keep", 6, 0.03),
    ("checkpoint", 6, 0.05),
    ("again", 6, 0.3),
]


def arguments(warm_folder: Path, uid: str) -> list[str]:
    settings = {
        "folder": warm_folder,
        "store": f"sqlite:///{warm_folder / f'{uid}.db'}",
        "steps": STEPS,
        "data.prompts_per_step": 12,
        "update.prompts_per_minibatch": 3,
        "checkpoint.every_steps": 2,
        "evaluation.every_steps": 3,
        "evaluation.repeats": 2,
        "evaluation.benchmarks.heldout.limit": 24,
        "exchange.router": "scored",
    }
    return [
        "train",
        "configs/demo.yaml",
        "--quiet",
        "--run",
        uid,
        *(p for k, v in settings.items() for p in ("--set", f"{k}={v}")),
    ]


def weights(warm_folder: Path, uid: str, of: str) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in (warm_folder / uid / of).glob("*/*.safetensors")}


def kept(warm_folder: Path, uid: str) -> list[str]:
    folder = warm_folder / uid / "kept"
    return sorted(str(p.relative_to(folder)) for p in folder.glob("*/*"))


def everything(reader: Reader, uid: str, steps: int = STEPS) -> dict[str, Any]:
    """All that must not depend on kills: prompts, counts, transfers, losses, evaluations."""
    names = [n for n in reader.metric_names(uid) if not n.startswith(NOT_KEPT)]
    return {
        "transfers": reader.transfers(uid, 1, steps, limit=10_000),
        "counts": {k: v.tolist() for k, v in reader.member_history(uid, range(steps + 1)).items()},
        "pairs": {k: v.tolist() for k, v in reader.pair_history(uid, range(steps + 1)).items()},
        "patterns": reader.patterns(uid, 1, steps, limit=100),
        "evaluations": reader.evaluations(uid),
        "best": reader.best(uid),
        "repeats": reader.repeats(uid),
        "metrics": {
            n: [np.nan_to_num(part, nan=-1.0).tolist() for part in reader.metric_series(uid, n, 1, steps)]
            for n in names
        },
    }


@pytest.mark.slow
def test_thirteen_kills_leave_the_same_prompts_transfers_losses_and_weights(warm_folder: Path) -> None:
    straight = run([sys.executable, "-m", "population", *arguments(warm_folder, "straight")], deadline_s=300)
    assert straight.returncode == 0, straight.stderr
    delays = random.Random(20260)
    resume: list[str] = []
    for phase, step, longest in MOMENTS:
        command = [
            str(DYING),
            phase,
            str(step),
            f"{delays.uniform(0, longest):.3f}",
            "--",
            *arguments(warm_folder, "killed"),
            *resume,
        ]
        done = run([sys.executable, *command], deadline_s=300)
        assert done.returncode == -9, done.stdout + done.stderr
        resume = ["--resume"]
    done = run([sys.executable, "-m", "population", *arguments(warm_folder, "killed"), "--resume"], deadline_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    with (
        open_reader(f"sqlite:///{warm_folder / 'straight.db'}") as a,
        open_reader(f"sqlite:///{warm_folder / 'killed.db'}") as b,
    ):
        assert a.run("straight").status == b.run("killed").status == "finished"
        expected, found = everything(a, "straight"), everything(b, "killed")
    for key in expected:
        assert found[key] == expected[key], key
    assert len(expected["repeats"]) == 2 * 3
    for of in ("members", "best"):
        assert len(weights(warm_folder, "straight", of)) == 3
        assert weights(warm_folder, "killed", of) == weights(warm_folder, "straight", of)
    assert kept(warm_folder, "killed") == kept(warm_folder, "straight")
    left_over = [p.name for p in (warm_folder / "killed" / "checkpoints").iterdir()]
    assert sorted(left_over) == ["step_00000004", "step_00000006"]


def test_a_resumed_run_refuses_another_configuration(warm_folder: Path) -> None:
    first = arguments(warm_folder, "other")
    cut = subprocess.run(
        [sys.executable, str(DYING), "sample", "2", "0", "--", *first],
        cwd=ROOT,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert cut.returncode == -9
    done = run([sys.executable, "-m", "population", *first, "--resume", "--set", "exchange.floor=0.5"], deadline_s=120)
    assert done.returncode == 2
    assert "configuration differs in exchange.floor" in done.stderr
    assert done.stderr.count("\n") == 1


def stopped_at_three(warm_folder: Path, uid: str) -> list[str]:
    """Arguments of a run that was killed in step 4, with checkpoints of steps 1 to 3 asked for and two kept."""
    first = [*arguments(warm_folder, uid), "--set", "checkpoint.every_steps=1", "--set", "evaluation.benchmarks=[]"]
    command = [sys.executable, str(DYING), "sample", "4", "0", "--", *first]
    cut = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, check=False)
    assert cut.returncode == -9
    return first


def recorded(warm_folder: Path, uid: str) -> tuple[str, int | None]:
    with open_reader(f"sqlite:///{warm_folder / f'{uid}.db'}") as reader:
        run_info = reader.run(uid)
    return run_info.status, run_info.last_step


def test_resuming_without_checkpoints_or_with_fewer_steps_never_gives_up_the_record(
    warm_folder: Path, tmp_path: Path
) -> None:
    first = stopped_at_three(warm_folder, "guarded")
    shutil.copytree(warm_folder / "warm-start", tmp_path / "warm-start")
    elsewhere = run(
        [sys.executable, "-m", "population", *first, "--resume", "--set", f"folder={tmp_path}"], deadline_s=120
    )
    assert elsewhere.returncode == 2
    assert "recorded to step 3, but" in elsewhere.stderr
    assert "holds no checkpoint" in elsewhere.stderr
    shorter = run([sys.executable, "-m", "population", *first, "--resume", "--set", "steps=2"], deadline_s=120)
    assert shorter.returncode == 2
    assert "is recorded to step 3; steps = 2 would cut it" in shorter.stderr
    assert recorded(warm_folder, "guarded") == ("running", 3)


def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before(warm_folder: Path) -> None:
    first = stopped_at_three(warm_folder, "damaged")
    newest = max((warm_folder / "damaged" / "checkpoints").iterdir())
    assert newest.name == "step_00000003"
    for path in (newest / "llama").rglob("*.pt"):
        path.write_bytes(path.read_bytes()[:100])
    done = run([sys.executable, "-m", "population", *first, "--resume", "--set", "steps=4"], deadline_s=300)
    assert done.returncode == 0, done.stderr
    assert recorded(warm_folder, "damaged") == ("finished", 4)


def test_changed_problems_are_another_run(warm_folder: Path, tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    rows = [{"prompt": f"flip {a} {b} 7?", "answer": f"7{b}{a}"} for a in range(1, 5) for b in range(5, 7)]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = [
        "data.prompts_per_step=8",
        "update.prompts_per_minibatch=4",
        f"data.source={problems}",
        "evaluation.benchmarks=[]",
    ]
    first = [*arguments(warm_folder, "changed"), *(part for size in sizes for part in ("--set", size))]
    command = [sys.executable, str(DYING), "sample", "2", "0", "--", *first]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, check=False).returncode == -9
    problems.write_text(problems.read_text().replace("75", "57", 1))
    done = run([sys.executable, "-m", "population", *first, "--resume"], deadline_s=120)
    assert done.returncode == 2
    assert "configuration differs in problems.train" in done.stderr


def test_a_run_that_is_being_trained_is_not_resumed_by_another_process(warm_folder: Path) -> None:
    first = [*arguments(warm_folder, "held"), "--set", "steps=500", "--set", "evaluation.benchmarks=[]"]
    alive = subprocess.Popen([sys.executable, "-m", "population", *first], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (warm_folder / "held.db").exists() or (recorded(warm_folder, "held")[1] or 0) < 1:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        done = run([sys.executable, "-m", "population", *first, "--resume"], deadline_s=120)
        assert done.returncode == 2
        assert f"is being written by process {alive.pid}" in done.stderr
        assert alive.poll() is None
    finally:
        alive.kill()
        alive.wait(timeout=60)
