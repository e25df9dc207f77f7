"""What a replay is asked: the settings a run was recorded under, and those to route and gate it under again."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graft.methods import METHODS
from population.config import ExchangeConfig, RunConfig, parse
from population.errors import ReplayError
from population.layers import apply_override
from server.store.reader import RunInfo

# The source's side of s is what was recorded: another source of it needs the models.
FIXED = {"source_logprobs"}
KEYS = ("method", "seed", *(f"exchange.{name}" for name in ExchangeConfig.model_fields if name not in FIXED))


@dataclass(frozen=True, slots=True)
class Settings:
    """The recorded configuration, the one to replay under, and who takes part."""

    recorded: RunConfig
    wanted: RunConfig
    members: tuple[str, ...]

    @property
    def receivers(self) -> tuple[str, ...]:
        """Members that may receive: one that was itself a record did not."""
        trained = {member.name for member in self.recorded.trained}
        return tuple(name for name in self.members if name in trained)


def settings_of(run: RunInfo, overrides: Sequence[str], without: Sequence[str]) -> Settings:
    """The settings of a replay. ReplayError for a key that a replay does not read, for a member that is not there, and
    for fewer than two members left; ConfigError for a value that makes no sense.
    """
    for text in overrides:
        check_key(text)
    names = [member.name for member in run.members]
    for name in without:
        if name not in names:
            raise ReplayError(f"--without {name}: run {run.uid} has no such member; it has {', '.join(names)}")
    left = tuple(name for name in names if name not in without)
    if len(left) < 2:
        raise ReplayError(
            f"--without {' '.join(without)}: leaves {len(left)} of {len(names)} members; leave two or more"
        )
    tree = recorded_tree(run.config)
    place = f"the recorded configuration of run {run.uid}"
    return Settings(parse(tree, place), parse(overridden(tree, overrides), place), left)


def check_key(text: str) -> None:
    """ReplayError for an override of what a replay does not read, with the nearest key that it does."""
    key = text.partition("=")[0]
    if key in KEYS:
        return
    if key == "exchange.source_logprobs":
        raise ReplayError(f"--set {text}: the record holds the source's log-probabilities of one kind; leave it out")
    near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(KEYS)}"
    raise ReplayError(f"--set {text}: a replay routes and gates, it does not train; {hint}")


def overridden(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The tree under other settings; what a method's row fixes of the exchange comes with its name."""
    changed = copy.deepcopy(dict(tree))
    for text in overrides:
        apply_override(changed, text)
    if changed["method"] == tree["method"] or changed["method"] not in METHODS:
        return changed
    given = {text.partition("=")[0] for text in overrides}
    for key, value in METHODS[changed["method"]].settings.items():
        section, _, name = key.partition(".")
        if section != "exchange":
            continue
        if key in given and changed[section][name] != value:
            raise ReplayError(f"--set {key}: method {changed['method']} fixes it to {value}; leave one of the two out")
        changed[section][name] = value
    return changed


def recorded_tree(config: Mapping[str, Any]) -> dict[str, Any]:
    """The run's own configuration out of what the store keeps of it."""
    return {key: copy.deepcopy(value) for key, value in config.items() if key in RunConfig.model_fields}
