"""A sweep file is expanded into validated configurations, or refused in one line that says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from graft.methods import METHODS
from population.config import as_dict, load
from population.errors import RunError
from population.sweep.command import chosen
from population.sweep.manifest import MANIFEST, SweepError, read_manifest, write_manifest
from population.sweep.spec import Sweep, load_sweep
from server.store.connections import locate

SWEEPS = Path("configs/sweeps")
MINIMAL: dict[str, Any] = {"name": "tiny", "base": "configs/demo.yaml", "seeds": [3, 4]}


def written(folder: Path, **keys: Any) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | keys, sort_keys=False))
    return path


def expanded(folder: Path, **keys: Any) -> Sweep:
    return load_sweep(written(folder, **keys))


def test_a_grid_is_the_product_of_its_values_and_arms_are_named_by_them(tmp_path: Path) -> None:
    sweep = expanded(tmp_path, grid={"method": ["grpo", "graft"], "exchange.floor": [0.7, 0.9]})
    assert [arm.name for arm in sweep.arms] == [
        "grpo-floor-0.7",
        "grpo-floor-0.9",
        "graft-floor-0.7",
        "graft-floor-0.9",
    ]
    assert [run.uid for run in sweep.runs[:5]] == [
        "grpo-floor-0.7-3", "grpo-floor-0.9-3", "graft-floor-0.7-3", "graft-floor-0.9-3", "grpo-floor-0.7-4",
    ]  # fmt: skip
    last = sweep.runs[-1].config
    assert (last.method, last.exchange.floor, last.seed) == ("graft", 0.9, 4)


def test_settings_come_in_the_order_sweep_arm_seed_command_line(tmp_path: Path) -> None:
    arms = [{"name": "a", "settings": {"update.learning_rate": "3e-4", "exchange.floor": 0.5}}]
    path = written(
        tmp_path, arms=arms, settings={"exchange.floor": 0.1, "steps": 5}, seed_keys=["seed", "warm_start_seed"]
    )
    first = load_sweep(path, Path("elsewhere"), ["steps=7"]).runs[0]
    config = first.config
    assert (config.exchange.floor, config.steps, config.update.learning_rate) == (0.5, 7, 3e-4)
    assert (config.seed, config.warm_start_seed) == (3, 3)
    assert (config.folder, config.store_url) == (Path("elsewhere"), "sqlite:///elsewhere/a-3/graft.db")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=7", "--set seed=7: the seed sets seed, and every run would get the same; "),
        ("method=grpo", "--set method=grpo: arm 'a' sets method, and "),
        ("exchange={floor: 0.5}", "arm 'b' sets exchange.floor, and "),
    ],
)
def test_what_tells_runs_apart_is_not_overridden(tmp_path: Path, override: str, said: str) -> None:
    arms = [
        {"name": "a", "settings": {"method": "graft-no-gate"}},
        {"name": "b", "settings": {"exchange.floor": 0.7}},
    ]
    with pytest.raises(SweepError, match=re.escape(said)):
        load_sweep(written(tmp_path, arms=arms), None, [override])


def test_a_folders_name_may_hold_anything(tmp_path: Path) -> None:
    sweep = load_sweep(written(tmp_path, arms=[{"name": "a"}]), tmp_path / "50%25 ?#")
    assert locate(sweep.runs[0].config.store_url).database == tmp_path / "50%25 ?#" / "a-3" / "graft.db"


def test_overlays_of_the_sweep_and_the_arm_lie_under_the_settings(tmp_path: Path) -> None:
    for name, floor, steps in (("all", 0.1, 3), ("one", 0.2, 4)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"exchange": {"floor": floor}, "steps": steps}))
    arms = [{"name": "a"}, {"name": "b", "overlays": [str(tmp_path / "one.yaml")], "settings": {"steps": 5}}]
    sweep = expanded(tmp_path, arms=arms, overlays=[str(tmp_path / "all.yaml")])
    first = [(run.config.exchange.floor, run.config.steps) for run in sweep.runs[:2]]
    assert first == [(0.1, 3), (0.2, 5)]


def test_an_arm_may_refer_to_the_run_that_it_needs(tmp_path: Path) -> None:
    second = {
        "name": "second",
        "needs": "first",
        "settings": {"members": [{"name": "x", "model": "{needs.members}/qwen3"}], "name": "{needs.run}"},
    }
    sweep = expanded(tmp_path, arms=[second, {"name": "first"}], settings={"method": "grpo"})
    run = sweep.runs[0]
    assert (run.uid, run.needs) == ("second-3", "first-3")
    assert run.config.members[0].model == "runs/tiny/first-3/members/qwen3"
    assert run.config.name == "first-3"
    assert [run.uid for run in chosen(sweep, ["second"], [4])] == ["second-4", "first-4"]


def test_a_resolved_configuration_is_a_configuration(tmp_path: Path) -> None:
    for run in expanded(tmp_path, grid={"method": ["grpo", "graft-no-gate"]}).runs:
        path = tmp_path / "resolved.yaml"
        path.write_text(yaml.safe_dump(as_dict(run.config), sort_keys=False))
        assert load(path) == run.config


def test_the_manifest_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    sweep = expanded(tmp_path, arms=[{"name": "a", "description": "one"}, {"name": "b"}], baselines=["b"])
    write_manifest(tmp_path, sweep.manifest)
    assert read_manifest(tmp_path) == sweep.manifest
    assert sweep.manifest.arms[0].runs[1].store == "a-4/graft.db"
    (tmp_path / MANIFEST).write_text('{"format": "else"}')
    with pytest.raises(SweepError, match=r"sweep\.json: is no sweep of this program"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "there is no arm; give grid or arms"),
        ({"arms": 5}, "arms: Input should be a valid"),
        ({"grid": {"method": [["grpo"]]}}, "arm 'grpo': configs/demo.yaml: method: Input should be a valid string"),
        ({"arms": [{"name": "a"}], "seed": [0]}, "unknown key 'seed'; did you mean 'seeds'?"),
        ({"arms": [{"name": "a", "set": {}}]}, "arm 'a': unknown key 'set'; there are: name, description"),
        ({"arms": [{"name": "a b"}]}, "arms.0.name: String should match pattern"),
        ({"arms": [{"name": "a"}, {"name": "a"}]}, "arms 'a' and 'a' would share a run a-3; rename one"),
        (
            {"arms": [{"name": "a"}, {"name": "a-3"}], "seeds": [3, "3-3"]},
            "seeds.1: Input should be a valid integer",
        ),
        ({"arms": [{"name": "a", "needs": "aa"}]}, "arm 'a': needs: there is no arm 'aa'; did you mean 'a'?"),
        (
            {"arms": [{"name": "a", "needs": "b"}, {"name": "b", "needs": "a"}]},
            "arm 'a': needs itself through a -> b -> a",
        ),
        ({"arms": [{"name": "ab"}], "baselines": ["abc"]}, "baselines: there is no arm 'abc'; did you mean 'ab'?"),
        ({"arms": [{"name": "a"}], "cost": "cpu"}, "cost: there is no cost 'cpu'; there are: rollouts"),
        ({"grid": {"method": []}}, "grid.method: List should have at least 1 item"),
        ({"grid": {"data.template": ["x" * 80]}}, "is too long or not plain enough to name an arm"),
        ({"grid": {"method": ["grp"]}}, "arm 'grp': configs/demo.yaml: method: there is no method 'grp'; did you mean"),
        ({"arms": [{"name": "a", "settings": {"exchange.flor": 1}}]}, "unknown key 'exchange.flor'; did you mean"),
        ({"arms": [{"name": "a", "settings": {"name": "{needs.run}"}}]}, "name: {needs.run} is there, but"),
        (
            {"arms": [{"name": "a"}, {"name": "b", "needs": "a", "settings": {"name": "{needs.uid}"}}]},
            "name: {needs.uid} is unknown; ",
        ),
        ({"arms": [{"name": "a", "base": "configs/none.yaml"}]}, "configs/none.yaml: cannot read the configuration"),
    ],
)  # fmt: skip
def test_a_bad_sweep_is_refused_in_one_line(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    path = written(tmp_path, **keys)
    with pytest.raises(SweepError, match=re.escape(said)) as refused:
        load_sweep(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    for text, said in (("- a", "expected keys and values"), ("a: [", "not valid YAML")):
        path.write_text(text)
        with pytest.raises(SweepError, match=said):
            load_sweep(path)
    with pytest.raises(SweepError, match="cannot read the sweep"):
        load_sweep(tmp_path / "none.yaml")


def test_only_known_arms_and_seeds_can_be_chosen(tmp_path: Path) -> None:
    sweep = expanded(tmp_path, arms=[{"name": "a"}, {"name": "b"}])
    assert [run.uid for run in chosen(sweep, ["b"], [])] == ["b-3", "b-4"]
    with pytest.raises(RunError, match="--arm c: the sweep has no such arm; it has a, b"):
        chosen(sweep, ["c"], [])
    with pytest.raises(RunError, match="--seed 9: the sweep has no such seed; it has 3, 4"):
        chosen(sweep, [], [9])


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_sweep_expands(path: Path) -> None:
    sweep = load_sweep(path)
    assert len(sweep.runs) == len(sweep.arms) * len(sweep.spec.seeds)
    assert {run.config.seed for run in sweep.runs} == set(sweep.spec.seeds)


def test_the_sweep_of_methods_has_every_row_of_the_table() -> None:
    sweep = load_sweep(SWEEPS / "demo_methods.yaml")
    assert [arm.name for arm in sweep.arms] == list(METHODS)
    assert all(run.config.method == run.arm for run in sweep.runs)
    assert sweep.spec.seeds == (0, 1)


def test_the_study_has_the_arms_whose_results_are_recorded() -> None:
    from population.compare.saved import load_saved

    recorded = load_saved(Path("docs/demo_study.json"))
    sweep = load_sweep(SWEEPS / "demo_study.yaml")
    assert [(arm.name, arm.description) for arm in sweep.arms] == [(arm.name, arm.description) for arm in recorded.arms]
    assert recorded.baselines == sweep.spec.baselines
    for run in sweep.runs:
        saved = next(arm for arm in recorded.arms if arm.name == run.arm).runs[run.seed]
        assert (saved.uid, saved.method, saved.total_steps) == (run.uid, run.config.method, run.config.steps)
        assert saved.members == tuple(member.name for member in run.config.members)
