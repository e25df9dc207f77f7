"""The warm start: reproducible to the byte, cached by its configuration, and named in every error."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from population.demo import parallel, warmstart
from population.demo.models import build_tokenizer
from population.demo.parallel import prepare_all
from population.demo.warmstart import IGNORED, Recipe, WarmStartError, encode, prepare, recipe_for


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("member", ["qwen3", "llama", "neox"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(member: str, tmp_path: Path) -> None:
    one = contents(prepare(member, seed=3, steps=4, cache_dir=tmp_path / "a"))
    threads = torch.get_num_threads()
    assert one == contents(prepare(member, seed=3, steps=4, cache_dir=tmp_path / "b"))
    assert torch.get_num_threads() == threads
    other = contents(prepare(member, seed=4, steps=4, cache_dir=tmp_path / "a"))
    assert one["model.safetensors"] != other["model.safetensors"]
    assert one["tokenizer.json"] == other["tokenizer.json"]


def test_progress_is_told_every_step_and_the_cache_is_silent(tmp_path: Path) -> None:
    told: list[tuple[int, int, float]] = []
    for _ in range(2):
        prepare("llama", seed=0, steps=5, cache_dir=tmp_path, progress=lambda *report: told.append(report))
    assert [(step, total) for step, total, _ in told] == [(step, 5) for step in range(1, 6)]
    assert all(0 < loss < 10 for _, _, loss in told)


def test_a_warm_start_learns(tmp_path: Path) -> None:
    losses: list[float] = []
    folder = prepare("llama", seed=0, steps=40, cache_dir=tmp_path, progress=lambda _s, _t, loss: losses.append(loss))
    assert losses[-1] < 0.6 * losses[0]
    assert not AutoModelForCausalLM.from_pretrained(folder).training


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"steps": 499},
        {"size": "large"},
        {"learning_rate": 3e-3},
        {"batch_rows": 16},
        {"betas": (0.9, 0.99)},
    ],
)
def test_every_part_of_the_recipe_changes_its_configuration(change: dict) -> None:
    recipe = recipe_for("qwen3", seed=0)
    assert dataclasses.replace(recipe, **change).configuration() != recipe.configuration()


def test_configurations_are_the_same_each_time_and_of_one_member_each() -> None:
    configurations = [recipe_for(member, seed=0).configuration() for member in ("qwen3", "llama", "neox")]
    assert configurations[0] == recipe_for("qwen3", seed=0).configuration()
    assert len({str(configuration["readings"]) for configuration in configurations}) == 3
    assert len({configuration["tokenizer"] for configuration in configurations}) == 3


def test_a_member_of_the_second_suite_is_warm_started_like_the_others(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra gym")
    one = contents(prepare("gym-smollm3", seed=3, steps=2, cache_dir=tmp_path / "a"))
    assert one == contents(prepare("gym-smollm3", seed=3, steps=2, cache_dir=tmp_path / "b"))
    configurations = [recipe_for(f"gym-{family}", seed=3).configuration() for family in ("qwen3", "smollm3")]
    assert configurations[0]["readings"] != configurations[1]["readings"]
    assert recipe_for("qwen3", seed=3).configuration()["tokenizer"] != configurations[0]["tokenizer"]


def test_the_learning_rate_warms_up_and_ends_near_zero() -> None:
    recipe = Recipe("qwen3", seed=0, steps=500, learning_rate=1.0, warmup_steps=50)
    assert recipe.rate(1) == pytest.approx(1 / 50)
    assert recipe.rate(50) == pytest.approx((1 - 49 / 500) ** 0.5)
    assert recipe.rate(500) == pytest.approx((1 / 500) ** 0.5)


def test_only_responses_are_targets_and_nothing_is_lost_in_a_batch() -> None:
    tokenizer = build_tokenizer("neox")
    pairs = [
        ("top 1 9 2?", "max 1 9 2: 9:9,2:9 so \\boxed{9}"),
        ("fall 1 2 3 4?", "rev 1 2 3 4: 4,3,2,1 so \\boxed{4321}"),
    ]
    (batch,) = encode(pairs, tokenizer, rows=2)
    for row, (prompt, response) in enumerate(pairs):
        kept = batch.targets[row][batch.targets[row] != IGNORED].tolist()
        assert kept == [*tokenizer.encode(response, add_special_tokens=False), tokenizer.eos_token_id]
        assert tokenizer.decode(batch.ids[row], skip_special_tokens=True) == prompt + response
    assert [len(batch.ids) for batch in encode(pairs * 3, tokenizer, rows=4)] == [4, 2]


def test_a_loss_that_is_no_number_stops_the_warm_start_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmstart, "_step", lambda *_: float("nan"))
    with pytest.raises(WarmStartError, match="warm start of llama: the loss is nan at step 1 of 3"):
        prepare("llama", seed=0, steps=3, cache_dir=tmp_path)
    assert not list(tmp_path.glob("llama-*"))


def test_an_interrupted_warm_start_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    def interrupt(step: int, _total: int, _loss: float) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("neox", seed=0, steps=3, cache_dir=tmp_path, progress=interrupt)
    assert not list(tmp_path.glob("neox-*"))
    assert prepare("neox", seed=0, steps=3, cache_dir=tmp_path).is_dir()


@pytest.mark.parametrize("model", ["demo:gpt", "demo:", "qwen3", "demo:llama:huge", "other:llama"])
def test_a_model_that_the_demo_does_not_have_is_refused_with_what_it_has(model: str) -> None:
    with pytest.raises(ValueError, match="use one of demo:qwen3, demo:llama, demo:neox"):
        warmstart.parse(model)


def test_model_names_of_the_configuration_are_told_apart() -> None:
    assert warmstart.is_demo("demo:qwen3")
    assert not warmstart.is_demo("Qwen/Qwen3-0.6B")
    assert warmstart.parse("demo:neox") == ("neox", "tiny")
    assert warmstart.parse("demo:neox:large") == ("neox", "large")
    assert warmstart.parse("demo:gym-neox") == ("gym-neox", "tiny")


def test_no_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one step"):
        prepare("llama", seed=0, steps=0, cache_dir=tmp_path)


def test_processes_of_their_own_give_the_bytes_of_this_process(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    folders = prepare_all(
        ["neox", "llama"],
        seed=0,
        cache_dir=tmp_path / "a",
        workers=2,
        steps=3,
        deadline_s=120,
        progress=lambda member, step, total, _loss: told.append((member, step, total)),
    )
    assert list(folders) == ["neox", "llama"]
    assert sorted(told) == [("llama", 3, 3), ("neox", 3, 3)]
    assert contents(folders["llama"]) == contents(prepare("llama", seed=0, steps=3, cache_dir=tmp_path / "b"))


def test_what_the_cache_has_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert warmstart.find("llama", seed=0, steps=2, cache_dir=tmp_path) is None
    folder = prepare("llama", seed=0, steps=2, cache_dir=tmp_path)
    monkeypatch.setattr(parallel, "_start", lambda *_: pytest.fail("a process was started"))
    assert prepare_all(["llama"], seed=0, steps=2, cache_dir=tmp_path) == {"llama": folder}


def test_a_failing_member_is_named_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    reports, sender = multiprocessing.Pipe(duplex=False)
    parallel._work("llama", {"seed": 0, "steps": 1, "cache_dir": tmp_path / "cache"}, sender)
    job = parallel._Job("llama", multiprocessing.get_context("spawn").Process(), reports)
    with pytest.raises(WarmStartError, match=r"warm start of llama failed: (FileExists|NotADirectory)Error"):
        parallel._receive(job, None)


def test_an_unknown_member_is_refused_before_any_process_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'demo:gpt:tiny' is no demo model"):
        prepare_all(["gpt"], seed=0, cache_dir=tmp_path)


def test_a_late_member_is_named_and_its_process_ended(tmp_path: Path) -> None:
    with pytest.raises(WarmStartError, match="warm start of llama not ready after 0 s"):
        prepare_all(["llama"], seed=0, cache_dir=tmp_path, deadline_s=0.3)
    assert not list(tmp_path.glob("llama-*"))


def test_a_killed_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = parallel._start

    def start_and_kill(member: str, arguments: dict) -> parallel._Job:
        job = start(member, arguments)
        os.kill(job.process.pid, signal.SIGKILL)
        return job

    monkeypatch.setattr(parallel, "_start", start_and_kill)
    with pytest.raises(WarmStartError, match="warm start of llama: its process ended with exit code -9"):
        prepare_all(["llama"], seed=0, cache_dir=tmp_path, deadline_s=60)
