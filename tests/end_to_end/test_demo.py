"""The main job as a user starts it, with fewer steps: `make demo`, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from population.evaluation_report import scores_of
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
        with urllib.request.urlopen(address.group() + "/_stcore/health", timeout=60) as answer:
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


def benchmark(name: str, **more: object) -> dict[str, object]:
    shared = {"source": "demo:heldout", "responses_per_prompt": 4, "temperature": 1.0, "top_p": 1.0, "limit": 24}
    return {"name": name, **shared, **more}


def test_the_best_checkpoint_is_selected_on_held_out_problems_and_measured_again(warm_folder: Path) -> None:
    url = f"sqlite:///{warm_folder / 'best.db'}"
    benchmarks = [
        benchmark("select", role="validation"), benchmark("tests", skip=24), benchmark("hard", skip=48, limit=12)
    ]  # fmt: skip
    values = {
        "folder": warm_folder, "store": url, "steps": 3, "data.prompts_per_step": 16, "evaluation.every_steps": 1,
        "evaluation.repeats": 2, "evaluation.k": [2, 4], "evaluation.benchmarks": json.dumps(benchmarks),
    }  # fmt: skip
    settings = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    graft = [".venv/bin/graft"]
    trained = run([*graft, "train", "configs/demo_pair.yaml", "--run", "best", *settings], deadline_s=300)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "Best checkpoints, evaluated again" in trained.stdout
    assert "held-out problems (role: validation): select" in trained.stdout
    again = run([*graft, "evaluate", "configs/demo_pair.yaml", "--run", "best", "--json", *settings], deadline_s=300)
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)["members"]
    with open_reader(url) as reader:
        best, course = reader.best("best"), reader.evaluations("best")
        names = [name for name in reader.metric_names("best") if name.startswith("seconds_")]
        recorded = scores_of(reader.repeats("best"), (2, 4))
    # Training alone is cost: neither evaluation nor keeping weights is in any clock of a step.
    assert set(names) == {
        f"seconds_{what}"
        for what in ("sample", "grade", "route", "score", "exchange", "update", "sync", "commit", "cpu")
    }
    for chosen in best:
        select = {e.step: e.mean for e in course if (e.member, e.benchmark) == (chosen.member, "select")}
        assert chosen.step == max((1, 2, 3), key=lambda step: (select[step], -step))
        assert found[chosen.member]["checkpoint"]["step"] == chosen.step
        assert (warm_folder / "best" / "best" / chosen.member).resolve().name == f"step_{chosen.step:08d}"
    # Other random numbers in every repeat, the same ones in every process: two ways to one figure.
    assert [(s.member, s.benchmark) for s in recorded if s.benchmarks == 1] == [
        (name, test) for name in ("qwen3", "llama") for test in ("hard", "tests")
    ]
    for score in recorded:
        own = found[score.member]
        shown = own["mean"] if score.benchmarks > 1 else own["benchmarks"][score.benchmark]
        assert shown["pass@1"]["repeats"] == pytest.approx(score.passes)
        assert shown["pass@1"]["low"] == pytest.approx(score.pass1.low)
        assert shown["maj@k"] == pytest.approx({str(k): value.mean for k, value in score.majority_at.items()})
        assert score.majority_at.keys() == {2, 4}
        assert f"{100 * score.pass1.mean:.1f} [{100 * score.pass1.low:.1f}" in trained.stdout
    # Repeat 0 is the evaluation in the course of training, from the exported members too.
    members = ["--members", str(warm_folder / "best" / "members"), "--repeats", "0", "--json"]
    last = run([*graft, "evaluate", "configs/demo_pair.yaml", *members, *settings], deadline_s=300)
    assert last.returncode == 0, last.stderr
    for e in course:
        if e.step == 3:
            assert json.loads(last.stdout)["members"][e.member]["benchmarks"][e.benchmark]["pass@1"]["mean"] == e.mean


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


def test_make_demo_methods_runs_rows_and_prints_their_tables(warm_folder: Path) -> None:
    sizes = (
        "--set steps=1 --set evaluation.benchmarks.heldout.limit=12 --set data.prompts_per_step=8 "
        "--set update.prompts_per_minibatch=4 --set evaluation.repeats=0 --seed 0"
    )
    arms = " ".join(f"--arm {arm}" for arm in ("grpo", "graft", "hacpo", "stored"))
    folder = warm_folder / "methods"
    folder.mkdir(exist_ok=True)
    (folder / "warm-start").symlink_to(warm_folder / "warm-start")
    (command,) = made("demo-methods", f"--folder {folder} {sizes} {arms}")
    done = run(command, deadline_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("grpo", "graft", "hacpo", "stored", "heldout", "against graft"):
        assert text in done.stdout
