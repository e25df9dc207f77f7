"""A whole run's configuration, and how it is read.

``load(path, overrides)`` reads YAML, applies ``a.b=value`` overrides and returns a :class:`RunConfig`, or raises
:class:`ConfigError` with one line that names the key, what is wrong and the nearest valid name.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import quote

from pydantic import Field, ValidationError, model_validator

from graft.admission import one_success, random_admission
from graft.methods import METHODS
from graft.selection import exchange, random_prompts
from population.config.cluster import ClusterConfig
from population.config.data import EvaluationConfig, MemberConfig, TrainDataConfig
from population.config.section import PositiveInt, Section
from population.config.sglang import SglangConfig
from population.config.trackers import TrackerConfig, Trackers
from population.config.training import (
    CheckpointConfig,
    DeadlineConfig,
    ExchangeConfig,
    RewardConfig,
    RolloutConfig,
    UpdateConfig,
)
from population.errors import ConfigError
from population.layers import read_layer, refuse_unknown, stack
from server.store.connections import without_password

# Rules that rank complementary candidates, so that a measured value changes what they choose.
CHOOSING = (exchange, random_prompts)
# Rules of admission whose weights are a draw, which measures no candidate.
DRAWING = (one_success, random_admission)


class RunConfig(Section):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    method: str = "graft"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    steps: PositiveInt | None = Field(default=None, description="training steps; give steps or epochs")
    epochs: PositiveInt | None = None
    folder: Path = Field(default=Path("runs"), description="checkpoints, exported members and caches of all runs")
    store: str | None = Field(default=None, description="database URL; default: SQLite file graft.db in the folder")
    warm_start_seed: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="seed of demo: members; default: seed"
    )
    members: Annotated[tuple[MemberConfig, ...], Field(min_length=1)]
    data: TrainDataConfig
    rollouts: RolloutConfig = RolloutConfig()
    update: UpdateConfig = UpdateConfig()
    exchange: ExchangeConfig = ExchangeConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    rewards: RewardConfig = RewardConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    trackers: Trackers = Field(default=(), description="experiment trackers that are shown the run")
    cluster: ClusterConfig = ClusterConfig()

    @property
    def store_url(self) -> str:
        """The database URL of the run."""
        return self.store or f"sqlite:///{quote(str(self.folder / 'graft.db'))}"

    @property
    def trained(self) -> tuple[MemberConfig, ...]:
        """The members that are models: they sample, receive and learn."""
        return tuple(member for member in self.members if member.source is None)

    @property
    def member_seed(self) -> int:
        """Seed of the demo members' warm start."""
        return self.seed if self.warm_start_seed is None else self.warm_start_seed

    def servers_of(self, member: MemberConfig) -> SglangConfig:
        """The section rollouts.sglang as it holds for one member."""
        return self.rollouts.sglang.with_overrides(member.sglang)

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.method not in METHODS:
            near = difflib.get_close_matches(self.method, METHODS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(METHODS)}"
            raise ValueError(f"method: there is no method {self.method!r}; {hint}")
        if METHODS[self.method].exchanges and len(self.members) < 2:
            raise ValueError(
                f"members: method {self.method!r} exchanges groups and needs at least two members; "
                "add one or use method: grpo"
            )
        if METHODS[self.method].exchanges and self.rollouts.dynamic_sampling:
            raise ValueError(
                f"rollouts.dynamic_sampling: it leaves out the all-fail groups that method {self.method!r} exchanges; "
                "use it with method: grpo"
            )
        which, admit = METHODS[self.method].which, METHODS[self.method].how.admit
        if self.exchange.router == "scored" and which is not None and (which not in CHOOSING or admit in DRAWING):
            raise ValueError(
                f"exchange.router: scored measures which candidate is best, and method {self.method!r} does not choose "
                "by that; set estimated"
            )
        names = [member.name for member in self.members]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"members: two members are named {name!r}; give each its own name")
        self._check_recorded()
        if self.rollouts.engine == "sglang":
            self._check_servers()
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("steps: give either steps or epochs, not both and not neither")
        size, whole = self.update.prompts_per_minibatch, self.data.prompts_per_step
        if size > whole or whole % size:
            raise ValueError(
                f"update.prompts_per_minibatch: {size} does not divide data.prompts_per_step = {whole}; "
                f"choose a divisor of {whole}"
            )
        return self

    def _check_servers(self) -> None:
        """Every member's servers are its own."""
        taken: dict[str, str] = {}
        for member in self.trained:
            try:
                servers = self.servers_of(member)
            except ValueError as error:
                raise ValueError(f"members: {member.name!r}: sglang over rollouts.sglang: {error}") from None
            ports = range(servers.port, servers.port + servers.replicas) if servers.port else ()
            for address in (*servers.urls, *(f"{servers.host}:{port}" for port in ports)):
                if address in taken:
                    raise ValueError(
                        f"rollouts.sglang: {address} would serve both {taken[address]!r} and {member.name!r}; give "
                        "each member its own in members[].sglang"
                    )
                taken[address] = member.name

    def _check_recorded(self) -> None:
        """What a recorded member cannot do: receive, be scored anew, or follow a batch that sampling decides."""
        recorded = [member for member in self.members if member.source is not None]
        if not recorded:
            if self.method == "stored":
                raise ValueError("members: method 'stored' needs a recorded member; give one a source")
            return
        name = recorded[0].name
        if not self.trained:
            raise ValueError("members: all are recorded, none is trained; add a member with a model")
        if METHODS[self.method].exchanges and self.exchange.balance != "none":
            raise ValueError(
                f"exchange.balance: {self.exchange.balance} makes members give as much as they receive, but the "
                f"recorded member {name!r} never receives; set exchange.balance: none, or method: stored"
            )
        if self.exchange.source_logprobs == "trainer":
            raise ValueError(
                f"exchange.source_logprobs: trainer would score the recorded member {name!r} with its model, which is "
                "not loaded; set auto or engine"
            )


def load(path: str | Path, overrides: Sequence[str] = (), overlays: Sequence[str | Path] = ()) -> RunConfig:
    """Read a YAML file, lay overlays and ``key.path=value`` overrides (values in YAML syntax) over it, and validate.

    Raises :class:`ConfigError` (one line) for a missing file, bad YAML, an unknown key, a wrong type or an
    inconsistency, naming the file that has it.
    """
    layers = [(str(place), read_layer(Path(place))) for place in (path, *overlays)]
    for source, layer in layers:
        refuse_unknown(layer, RunConfig, (), source)
    return _validated(stack(layers, overrides), " + ".join(source for source, _ in layers))


def with_trackers(config: RunConfig, kinds: Sequence[str]) -> RunConfig:
    """The configuration with further trackers by name; those it has keep their settings. Raises ConfigError."""
    known = get_args(TrackerConfig.model_fields["kind"].annotation)
    for kind in kinds:
        if kind not in known:
            near = difflib.get_close_matches(kind, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
            raise ConfigError(f"--tracker: there is no tracker {kind!r}; {hint}")
    named = {tracker.kind for tracker in config.trackers}
    more = tuple(TrackerConfig.model_validate({"kind": kind}) for kind in dict.fromkeys(kinds) if kind not in named)
    return config.model_copy(update={"trackers": (*config.trackers, *more)})


def parse(tree: Mapping[str, Any], source: str = "configuration") -> RunConfig:
    """Validate a nested mapping; errors as in :func:`load`."""
    return _validated(stack([(source, tree)], ()), source)


def _validated(tree: Mapping[str, Any], source: str) -> RunConfig:
    refuse_unknown(tree, RunConfig, (), source)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        given = "" if first["type"] in ("value_error", "missing") else f" (got {first['input']!r})"
        raise ConfigError(f"{source}: {place + ': ' if place else ''}{message}{given}") from None


def as_dict(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain JSON values, as the store keeps it."""
    return config.model_dump(mode="json")


def as_recorded(config: RunConfig) -> dict[str, Any]:
    """As :func:`as_dict`, without the passwords of database URLs."""
    tree = as_dict(config)
    for part in (tree, *(member["source"] for member in tree["members"] if member["source"])):
        if part["store"]:
            part["store"] = without_password(part["store"])
    return tree


# What a resumed run may change: its length, where it runs, and where and how often it writes.
FREE_KEYS = ("steps", "epochs", "folder", "store", "checkpoint", "deadlines", "name", "cluster", "trackers")


def course(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration (as from :func:`as_dict`) that decides the course of a run."""
    kept = {key: value for key, value in tree.items() if key not in FREE_KEYS}
    return kept | {
        "rollouts": _without_places(tree.get("rollouts", {})),
        "members": [_without_places(member) for member in tree.get("members", ())],
    }


def _without_places(section: Mapping[str, Any]) -> dict[str, Any]:
    """Where servers run, how many, and what follows a loss is free; other flags may change what is computed."""
    section = {key: value for key, value in section.items() if key != "failure"}
    return {**section, "sglang": {"flags": (section.get("sglang") or {}).get("flags", {})}}


def digest(tree: Mapping[str, Any]) -> str:
    """Hash of the course of a run."""
    return hashlib.sha256(json.dumps(course(tree), sort_keys=True).encode()).hexdigest()[:16]


def differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys under which two configurations (as from :func:`as_dict`) differ."""
    keys = []
    for key in sorted(set(first) | set(second)):
        a, b = first.get(key), second.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            keys += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            keys.append(f"{prefix}{key}")
    return keys
