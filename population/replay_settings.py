"""What a replay is asked: the settings a run was recorded under, and those to route and gate it under again."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from population.config import ExchangeConfig, RunConfig, parse
from population.errors import ReplayError
from population.layers import stack
from server.store.reader import RunInfo

# The source's side of s is what was recorded: another needs the models. Capability only weighs advantages.
FIXED = {"source_logprobs", "capability_batches"}
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
    settings = Settings(parse(tree, place), parse(stack([(place, tree)], overrides), place), left)
    if settings.wanted.exchange.router == "scored":
        raise ReplayError(
            "exchange.router: scored measures candidates with the members' models, which a replay does not load; "
            "add --set exchange.router=estimated"
        )
    return settings


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


def recorded_tree(config: Mapping[str, Any]) -> dict[str, Any]:
    """The run's own configuration out of what the store keeps of it."""
    return {key: copy.deepcopy(value) for key, value in config.items() if key in RunConfig.model_fields}
