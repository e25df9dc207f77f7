"""Selectors find runs, and runs without a named arm are grouped by what their configurations say."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from population.compare import arms
from population.compare.arms import CompareError, select
from population.compare.command import compare
from population.config import as_dict, load
from population.sweep.manifest import Manifest, ManifestArm, ManifestRun, write_manifest
from server.store.best import rule_of
from server.store.reader import open_reader
from server.store.results import read_result
from server.store.writer import open_writer
from tests.store.synthetic import Scenario


def add(store: Path, uid: str, seed: int, method: str = "graft", status: Any = "finished", **exchange: Any) -> None:
    """One recorded run of four steps, evaluated at 0, 2 and 4."""
    scenario = Scenario(members=2, steps=4, prompts=4, n=2, seed=seed, uid=uid, method=method)
    names = [{"name": name, "model": f"org/{name}"} for name in scenario.names]
    config = {"seed": seed, "method": method, "members": names, "exchange": {"floor": 0.8} | exchange}
    config |= {"folder": f"runs/{uid}", "name": uid}
    with open_writer(str(store)) as writer:
        writer.start_run(replace(scenario.run(), name="shared", config=config))
        for step in range(5):
            if step:
                writer.commit(scenario.step(step))
            for one in scenario.evaluations(step) if step % 2 == 0 else ():
                writer.record_evaluation(one)
        writer.finish(status)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    for seed in (0, 1):
        add(path, f"a-{seed}", seed, "grpo")
        add(path, f"b-{seed}", seed)
        add(path, f"c-{seed}", seed, floor=0.5)
    add(path, "b-2", 2, status="interrupted")
    return path


def arms_of(*selectors: str, store: Path | str = "", **options: Any) -> Mapping[str, list[str]]:
    selection = select(selectors, str(store), **options)
    return {arm.name: [run.uid for run in arm.runs.values()] for arm in selection.finish()}


def test_runs_are_grouped_by_configuration_and_named_by_what_differs(store: Path) -> None:
    expected = {"grpo": ["a-0", "a-1"], "graft": ["b-0", "b-1"], "graft exchange.floor=0.5": ["c-0", "c-1"]}
    assert arms_of(str(store)) == expected
    assert arms_of("shared", store=store) == expected
    assert arms_of(f"sqlite:///{store}:[ac]-*") == {k: v for k, v in expected.items() if k != "graft"}


def test_arms_can_be_named_and_added_to(store: Path) -> None:
    assert arms_of(f"x={store}:a-0", "x=a-1", "latest", store=store, unfinished=True) == {
        "x": ["a-0", "a-1"], "graft": ["b-2"],
    }  # fmt: skip


def test_unfinished_runs_are_left_out_and_named(store: Path) -> None:
    selection = select(["b-*"], str(store))
    assert selection.notes == ["left out: b-2 is interrupted at step 4 of 4"]
    with pytest.raises(CompareError, match="no finished run to compare: left out: b-2 is interrupted"):
        select(["b-2"], str(store))


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("d-*", "d-*: no run in {store} has such a uid or name; the newest: "),
        ("x=", "x=: expected ARM=SELECTOR"),
        ("x=a-0 x=c-0", "arm 'x' has two runs of seed 0: a-0 and c-0; select one by its uid"),
        ("{folder}", "{folder}: is a folder without sweep.json"),
        ("{folder}/none", "{folder}/none: there is no such folder or file; check the path"),
        ("none.json", "none.json: there is no such folder or file; check the path"),
    ],
)
def test_selectors_that_mean_nothing_are_refused(store: Path, selector: str, said: str) -> None:
    places = {"store": store, "folder": store.parent}
    with pytest.raises(CompareError, match=re.escape(said.format(**places))) as refused:
        select(selector.format(**places).split(), str(store))
    assert "\n" not in str(refused.value)


def test_a_sweeps_folder_gives_its_arms_baselines_and_what_is_not_run(store: Path, tmp_path: Path) -> None:
    def runs(arm: str) -> tuple[ManifestRun, ...]:
        place = os.path.relpath(store, tmp_path)
        return tuple(ManifestRun(f"{arm}-{seed}", seed, place) for seed in (0, 1, 5))

    arms = (ManifestArm("plain", "by itself", runs("a")), ManifestArm("gated", "", runs("b")))
    write_manifest(tmp_path, Manifest("tiny", ("gated",), "rollouts", arms))
    found = compare([str(tmp_path)], store="")
    assert [(arm.name, list(arm.runs)) for arm in found.arms] == [("plain", [0, 1]), ("gated", [0, 1])]
    assert (found.baselines, found.cost, found.arms[0].description) == (("gated",), "rollouts", "by itself")
    assert found.notes == ("not run: a-5, b-5",)


def test_a_result_equals_a_recount_of_the_record(store: Path) -> None:
    with open_reader(str(store)) as reader:
        result = read_result(reader, reader.run("b-1"), str(store))
        evaluations = reader.evaluations("b-1")
        counts = reader.member_counts("b-1", 1, 2)["rollouts"]
        tokens = reader.metric("b-1", "response_tokens", 1, 4)[0]
        wall = reader.run_metric("b-1", "step_seconds", 1, 4)[0]
    assert result.steps == (0, 2, 4)
    for one in evaluations:
        assert result.accuracy[one.benchmark][one.step][one.member] == one.mean
    assert [result.spent("rollouts", 2, [name]) for name in result.members] == counts.tolist()
    assert result.total("rollout_tokens", result.members) == tokens.sum()
    assert result.total("wall_seconds", result.members) == pytest.approx(wall)
    assert result.total("wall_seconds", result.members[:1]) == pytest.approx(wall / 2)
    assert "cpu_seconds" not in result.cost  # the scenario records none


def test_the_rule_for_best_checkpoints_is_read_from_a_configuration_as_it_is_recorded() -> None:
    chosen = ["evaluation.best.rule=last", "evaluation.best.split=test"]
    assert rule_of(as_dict(load("configs/demo.yaml", chosen))) == ("last", "test", ("heldout",))


def test_recorded_partners_are_not_compared_and_cost_nothing(store: Path) -> None:
    with open_reader(str(store)) as reader:
        info = reader.run("b-0")
        first, second = (dict(entry) for entry in info.config["members"])
        second["source"] = {"store": "elsewhere.db", "run": "a-0", "member": second["name"]}
        info = replace(info, config={**info.config, "members": [first, second]})
        result = read_result(reader, info, str(store))
        wall = reader.run_metric("b-0", "step_seconds", 1, 4)[0]
    assert result.members == (first["name"],)
    assert result.total("wall_seconds", result.members) == pytest.approx(wall)


@pytest.mark.parametrize(
    ("selector", "store", "glob"),
    [
        ("postgresql+psycopg://me@db.example:5432/graft", "postgresql+psycopg://me@db.example:5432/graft", "*"),
        ("postgresql://me:pa@db/graft:demo-*", "postgresql://me:pa@db/graft", "demo-*"),
        ("postgresql://me@/graft?host=/var/run:latest", "postgresql://me@/graft?host=/var/run", "latest"),
        ("sqlite:///runs/graft.db", "sqlite:///runs/graft.db", "*"),
        ("runs/graft.db:[ac]-*", "runs/graft.db", "[ac]-*"),
        ("demo-1", "default", "demo-1"),
    ],
)
def test_a_store_is_told_apart_from_the_glob_behind_it(selector: str, store: str, glob: str) -> None:
    assert arms._store_and_glob(selector, "default") == (store, glob)
    assert arms._arm_and_selector(selector) == (None, selector)
    assert arms._arm_and_selector(f"mine={selector}") == ("mine", selector)
