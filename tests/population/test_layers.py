"""Layers of a configuration: overlays over a file, --set over both, and what a method row fixes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from graft.methods import METHODS
from population.config import ConfigError, load, parse

BASE = {
    "name": "base",
    "steps": 3,
    "members": [{"name": "a", "model": "demo:qwen3"}, {"name": "b", "model": "demo:llama"}],
    "data": {"source": "demo:train", "prompts_per_step": 32},
    "exchange": {"floor": 0.8, "holdout": 0.0},
}


def written(folder: Path, name: str, tree: object) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return written(tmp_path, "base.yaml", BASE)


def test_an_overlay_changes_its_keys_and_leaves_their_neighbours(base: Path, tmp_path: Path) -> None:
    overlay = written(tmp_path, "over.yaml", {"exchange": {"balance": "none"}, "name": "over"})
    config = load(base, ["exchange.ties=false"], [overlay])
    assert (config.name, config.exchange.balance, config.exchange.floor, config.exchange.ties) == (
        "over",
        "none",
        0.8,
        False,
    )


def test_later_layers_win_and_lists_are_replaced_whole(base: Path, tmp_path: Path) -> None:
    first = written(tmp_path, "first.yaml", {"steps": 4, "members": [{"name": "c", "model": "m"}], "method": "grpo"})
    second = written(tmp_path, "second.yaml", {"steps": 5})
    config = load(base, ["members.c.learning_rate=1e-4"], [first, second])
    assert (config.steps, [m.name for m in config.members], config.members[0].learning_rate) == (5, ["c"], 1e-4)


def test_an_unknown_key_names_the_overlay_that_has_it(base: Path, tmp_path: Path) -> None:
    overlay = written(tmp_path, "over.yaml", {"exchange": {"flor": 0.7}})
    with pytest.raises(ConfigError, match=r"over\.yaml: unknown key 'exchange\.flor'; did you mean 'floor'\?"):
        load(base, (), [overlay])


def test_a_method_row_replaces_what_lower_layers_say_of_the_settings_it_fixes(base: Path, tmp_path: Path) -> None:
    row = written(tmp_path, "row.yaml", {"method": "graft-floor-0.7"})
    assert load(base, (), [row]).exchange.floor == 0.7
    assert load(base, ["method=graft-floor-0.9"]).exchange.floor == 0.9
    assert load(base, ["method=grpo-16"]).rollouts.rollouts_per_prompt == 16
    assert load(base).exchange.floor == 0.8


def test_contradicting_the_row_in_its_own_layer_or_above_is_refused(base: Path, tmp_path: Path) -> None:
    row = written(tmp_path, "row.yaml", {"method": "graft-floor-0.7", "exchange": {"floor": 0.6}})
    with pytest.raises(ConfigError, match=r"row\.yaml: exchange\.floor: method 'graft-floor-0\.7' is this row"):
        load(base, (), [row])
    with pytest.raises(ConfigError, match=r"--set: exchange\.floor"):
        load(base, ["method=graft-floor-0.7", "exchange.floor=0.6"])
    assert load(base, ["method=graft-floor-0.7", "exchange.floor=0.7"]).exchange.floor == 0.7


def test_a_fixed_number_may_be_repeated_in_the_notation_that_yaml_reads_as_text(base: Path, tmp_path: Path) -> None:
    row = tmp_path / "row.yaml"
    row.write_text("method: hacpo\nupdate: {clip_low: 3e-4, clip_high: 4e-4}\n")
    assert load(base, (), [row]).update.clip_low == 3e-4
    row.write_text("method: hacpo\nupdate: {clip_low: 2e-4}\n")
    with pytest.raises(ConfigError, match=r"update\.clip_low: method 'hacpo' is this row"):
        load(base, (), [row])


@pytest.mark.parametrize("method", METHODS)
def test_every_row_s_fixed_settings_are_keys_of_the_configuration_and_take_effect(method: str) -> None:
    tree = {key: value for key, value in BASE.items() if key != "exchange"} | {"method": method}
    if method == "stored":
        recorded = {"name": "b", "source": {"store": "sqlite:///x.db", "run": "r", "member": "b"}}
        tree["members"] = [{"name": "a", "model": "demo:qwen3"}, recorded]
    config = parse(tree)
    for key, value in METHODS[method].settings.items():
        node: object = config
        for part in key.split("."):
            node = getattr(node, part)
        assert node == value


def test_dynamic_sampling_is_refused_where_all_fail_groups_are_exchanged() -> None:
    with pytest.raises(ConfigError, match="leaves out the all-fail groups that method 'graft' exchanges"):
        parse(BASE | {"rollouts": {"dynamic_sampling": True}})
