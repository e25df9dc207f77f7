"""The main job as a user starts it, with fewer steps: `make demo`, and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from server.store.reader import open_reader
from tests.commands import ROOT, made, run, runnable

STEPS = 4


def small(folder: Path, *more: str) -> str:
    settings = (
        f"folder={folder}",
        f"store=sqlite:///{folder / 'demo.db'}",
        f"steps={STEPS}",
        "evaluation.benchmarks.heldout.limit=48",
        *more,
    )
    return " ".join(f"--set {setting}" for setting in settings)


def test_make_demo_trains_three_members(warm_folder: Path) -> None:
    (command,) = made("demo", small(warm_folder) + " --port 0")
    done = run(command, deadline_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"dashboard: http://127\.0\.0\.1:\d+", done.stdout)
    for text in (
        "held-out before",
        "held-out after",
        "all-fail groups",
        "rescued by a peer",
        "responses admitted",
        "make demo-compare",
    ):
        assert text in done.stdout
    with open_reader(f"sqlite:///{warm_folder / 'demo.db'}") as reader:
        run_info = reader.run("latest")
        assert (run_info.status, run_info.last_step) == ("finished", STEPS)
        assert [member.family for member in run_info.members] == ["qwen3", "llama", "gpt_neox"]
        assert len({member.tokenizer_sha for member in run_info.members}) == 3
        pairs = reader.pair_counts(run_info.uid, 1, STEPS)
        assert pairs["admitted"].sum() > 0
        assert {(e.step, e.member) for e in reader.evaluations(run_info.uid)} == {
            (step, member.name) for step in (0, STEPS) for member in run_info.members
        }
        numerator, denominator = reader.metric(run_info.uid, "clip_peer", 1, STEPS)
        assert (denominator > 0).all()
        assert (numerator <= denominator).all()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for member in run_info.members:
        folder = warm_folder / run_info.uid / "members" / member.name
        assert sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).parameters()) == member.parameters
        assert AutoTokenizer.from_pretrained(folder).chat_template


def test_the_dashboard_answers_while_training_and_ends_with_the_run(warm_folder: Path) -> None:
    (command,) = made("demo", small(warm_folder, "steps=400", "name=live") + " --port 0")
    process = subprocess.Popen(
        runnable(command), cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step "):
                break
        address = re.search(r"http://127\.0\.0\.1:\d+", "".join(lines))
        assert address, lines
        with urllib.request.urlopen(address.group() + "/_stcore/health", timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)  # as a scheduler stops a job; Ctrl-C takes the same way
        assert process.wait(timeout=120) == 130
    finally:
        process.kill()
    with open_reader(f"sqlite:///{warm_folder / 'demo.db'}") as reader:
        assert reader.run("latest").status == "interrupted"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address.group() + "/_stcore/health", timeout=5)


def test_independent_members_learn_the_same_alone_and_beside_others(warm_folder: Path) -> None:
    url = f"sqlite:///{warm_folder / 'alone.db'}"
    for name, members in (("three", "[qwen3, llama, neox]"), ("one", "[llama]")):
        listed = "[" + ", ".join(f"{{name: {m}, model: 'demo:{m}'}}" for m in members.strip("[]").split(", ")) + "]"
        settings = [
            "method=grpo",
            f"members={listed}",
            f"folder={warm_folder}",
            f"store={url}",
            "steps=2",
            "evaluation.benchmarks=[]",
        ]
        command = [".venv/bin/graft", "train", "configs/demo.yaml", "--quiet", "--run", name]
        done = run([*command, *(part for setting in settings for part in ("--set", setting))], deadline_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
    with open_reader(url) as reader:
        for metric in ("loss", "grad_norm", "response_tokens"):
            _, beside, _ = reader.metric_series("three", metric, 1, 2)
            _, alone, _ = reader.metric_series("one", metric, 1, 2)
            np.testing.assert_array_equal(beside[:, 1], alone[:, 0])


def test_exported_members_can_be_evaluated(warm_folder: Path) -> None:
    url = f"sqlite:///{warm_folder / 'exported.db'}"
    settings = [
        "--set",
        f"folder={warm_folder}",
        "--set",
        f"store={url}",
        "--set",
        "evaluation.benchmarks.heldout.limit=24",
    ]
    trained = run(
        [
            ".venv/bin/graft",
            "train",
            "configs/demo_pair.yaml",
            "--quiet",
            "--run",
            "exported",
            "--set",
            "steps=1",
            *settings,
        ],
        deadline_s=300,
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    members = str(warm_folder / "exported" / "members")
    done = run(
        [".venv/bin/graft", "evaluate", "configs/demo_pair.yaml", "--members", members, *settings], deadline_s=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with open_reader(url) as reader:
        for evaluation in reader.evaluations("exported"):
            if evaluation.step == 1:
                assert f"{evaluation.mean:.1%}" in done.stdout


def test_make_demo_compare_prints_both_with_their_cost(warm_folder: Path) -> None:
    sizes = "--set steps=2 --set evaluation.benchmarks.heldout.limit=24"
    (command,) = made("demo-compare", f"--folder {warm_folder / 'compare'} {sizes}")
    shared = warm_folder / "compare" / "warm-start"
    shared.parent.mkdir(exist_ok=True)
    if not shared.exists():
        shared.symlink_to(warm_folder / "warm-start")
    done = run(command, deadline_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("grpo", "graft", "CPU s", "against grpo", "independent GRPO, n = 8"):
        assert text in done.stdout
