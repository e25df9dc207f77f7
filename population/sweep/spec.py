"""The file that describes a sweep, and the runs it stands for.

Every run is an ordinary configuration: a base file with the settings of the sweep, of the arm and of the seed on top,
in this order. Nothing is started here.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import yaml
from pydantic import Field, ValidationError

from graft.methods import METHODS
from population.config import ConfigError, RunConfig, Section, load
from population.sweep.manifest import Manifest, ManifestArm, ManifestRun, SweepError
from server.store.results import COSTS

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]
PLACEHOLDER = re.compile(r"\{needs\.(\w*)\}")


class ArmSpec(Section):
    """One arm by name."""

    name: Name
    description: str = ""
    base: Path | None = Field(default=None, description="another base configuration than the sweep's")
    overlays: tuple[Path, ...] = ()
    settings: dict[str, Any] = Field(default_factory=dict, description="{dotted key: value}")
    needs: Name | None = Field(default=None, description="an arm whose run of the same seed must have finished before")


class SweepSpec(Section):
    """A whole sweep."""

    name: Name
    description: str = ""
    base: Path
    folder: Path | None = Field(default=None, description="default: runs/<name>")
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    seed_keys: Annotated[tuple[str, ...], Field(min_length=1)] = ("seed",)
    overlays: tuple[Path, ...] = ()
    settings: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    arms: tuple[ArmSpec, ...] = ()
    baselines: tuple[Name, ...] = ()
    cost: str | None = None
    deadline_s: Annotated[float, Field(gt=0)] = Field(default=14 * 86400, description="the longest one run may take")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: its configuration, the folder of its store and log, and the run it waits for."""

    arm: str
    seed: int
    config: RunConfig
    home: Path
    needs: str | None

    @property
    def uid(self) -> str:
        """The run's uid, unique in the sweep."""
        return run_uid(self.arm, self.seed)


@dataclass(frozen=True)
class Sweep:
    """An expanded sweep; runs in the order in which they are started: seed by seed, arms as listed."""

    spec: SweepSpec
    folder: Path
    arms: tuple[ArmSpec, ...]
    runs: tuple[PlannedRun, ...]

    @property
    def manifest(self) -> Manifest:
        """What its folder says about it."""
        arms = []
        for arm in self.arms:
            runs = [run for run in self.runs if run.arm == arm.name]
            places = (ManifestRun(run.uid, run.seed, f"{run.home.name}/graft.db") for run in runs)
            arms.append(ManifestArm(arm.name, arm.description, tuple(places)))
        return Manifest(self.spec.name, self.spec.baselines, self.spec.cost, tuple(arms))


def run_uid(arm: str, seed: int) -> str:
    """The uid of an arm's run."""
    return f"{arm}-{seed}"


def load_sweep(path: Path, folder: Path | None = None, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file, expand it and validate every configuration; ``overrides`` hold for every run.

    Raises SweepError or ConfigError, one line that names the file, the arm and what is wrong.
    """
    spec = _read(path)
    arms = (*_grid_arms(spec, path), *spec.arms)
    _check_arms(spec, arms, path)
    _check_overrides(spec, arms, overrides)
    place = folder or spec.folder or Path("runs") / spec.name
    runs = tuple(
        _planned(path, spec, arm, seed, place, overrides) for seed in dict.fromkeys(spec.seeds) for arm in arms
    )
    return Sweep(spec, place, arms, runs)


def _read(path: Path) -> SweepSpec:
    try:
        tree = yaml.safe_load(path.read_text())
    except OSError as error:
        raise SweepError(f"{path}: cannot read the sweep ({error.strerror}); give the path of a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SweepError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise SweepError(f"{path}: expected keys and values at the top level, found {type(tree).__name__}")
    _refuse_unknown(path, "", tree, SweepSpec.model_fields)
    listed = tree.get("arms")
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict):
            _refuse_unknown(path, f"arm {entry.get('name')!r}: ", entry, ArmSpec.model_fields)
    try:
        return SweepSpec.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SweepError(f"{path}: {place}: {first['msg']} (got {first['input']!r})") from None


def _refuse_unknown(path: Path, where: str, tree: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key in tree:
        if key not in known:
            raise SweepError(f"{path}: {where}unknown key {key!r}; {_hint(str(key), list(known))}")


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"


def _grid_arms(spec: SweepSpec, path: Path) -> Iterator[ArmSpec]:
    """One arm for each combination of the grid, named by its values: the method, then key and value of the others."""
    if not spec.grid:
        return
    for values in itertools.product(*spec.grid.values()):
        settings = dict(zip(spec.grid, values, strict=True))
        parts = [
            _slug(value) if key == "method" else f"{key.rpartition('.')[2]}-{_slug(value)}"
            for key, value in settings.items()
        ]
        name = "-".join(parts)
        if not re.fullmatch(NAME, name):
            raise SweepError(
                f"{path}: grid: {name!r} is too long or not plain enough to name an arm; list such arms under arms"
            )
        method = METHODS.get(str(settings.get("method")))
        yield ArmSpec(name=name, description=method.description if method else "", settings=settings)


def _slug(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_")


def _check_arms(spec: SweepSpec, arms: Sequence[ArmSpec], path: Path) -> None:
    """Names are unique and known where they are referred to; arms need each other in no circle; the cost is known."""
    names = [arm.name for arm in arms]
    if not arms:
        raise SweepError(f"{path}: there is no arm; give grid or arms")
    uids: dict[str, str] = {}
    for name, seed in itertools.product(names, dict.fromkeys(spec.seeds)):
        other = uids.setdefault(run_uid(name, seed), name)
        if other != name or names.count(name) > 1:
            raise SweepError(f"{path}: arms {other!r} and {name!r} would share a run {run_uid(name, seed)}; rename one")
    needs = {arm.name: arm.needs for arm in arms}
    wanted = [(f"arm {arm.name!r}: needs", arm.needs) for arm in arms if arm.needs]
    for where, name in [*wanted, *(("baselines", name) for name in spec.baselines)]:
        if name not in names:
            raise SweepError(f"{path}: {where}: there is no arm {name!r}; {_hint(name, names)}")
    for name in names:
        seen, current = [name], needs[name]
        while current:
            if current in seen:
                raise SweepError(f"{path}: arm {name!r}: needs itself through {' -> '.join([*seen, current])}")
            seen.append(current)
            current = needs[current]
    if spec.cost is not None and spec.cost not in COSTS:
        raise SweepError(f"{path}: cost: there is no cost {spec.cost!r}; {_hint(spec.cost, list(COSTS))}")


def _check_overrides(spec: SweepSpec, arms: Sequence[ArmSpec], overrides: Sequence[str]) -> None:
    """What makes runs different is not overridden: they would no longer be what their names say."""
    owners = {key: "the seed" for key in spec.seed_keys}
    owners |= {key: f"arm {arm.name!r}" for arm in arms for key in arm.settings}
    for override in overrides:
        key = override.partition("=")[0]
        own = next((own for own in owners if own == key or own.startswith(f"{key}.")), None)
        if own is not None:
            raise SweepError(
                f"--set {override}: {owners[own]} sets {own}, and every run would get the same; change the sweep's "
                "file, or choose runs with --arm and --seed"
            )


def _planned(
    path: Path, spec: SweepSpec, arm: ArmSpec, seed: int, folder: Path, overrides: Sequence[str]
) -> PlannedRun:
    """One run with its validated configuration."""
    home = folder / run_uid(arm.name, seed)
    settings = {**spec.settings, **arm.settings, **dict.fromkeys(spec.seed_keys, seed)}
    if arm.needs:
        uid = run_uid(arm.needs, seed)
        values = {"run": uid, "store": _store_url(folder / uid), "members": str(folder / uid / "members")}
    else:
        values = {}
    try:
        filled = {key: _fill(value, values, key) for key, value in settings.items()}
        places = [f"folder={json.dumps(str(folder))}", f"store={json.dumps(_store_url(home))}"]
        config = load(
            arm.base or spec.base,
            [*(f"{key}={json.dumps(value)}" for key, value in filled.items()), *overrides, *places],
            [*spec.overlays, *arm.overlays],
        )
    except ConfigError as error:
        raise SweepError(f"{path}: arm {arm.name!r}: {error}") from None
    return PlannedRun(arm.name, seed, config, home, run_uid(arm.needs, seed) if arm.needs else None)


def _store_url(home: Path) -> str:
    return f"sqlite:///{quote(str(home / 'graft.db'))}"


def _fill(value: Any, values: Mapping[str, str], key: str) -> Any:
    """``{needs.run}``, ``{needs.store}`` and ``{needs.members}`` in texts, however deep, by what the needed run has."""
    if isinstance(value, Mapping):
        return {name: _fill(inner, values, key) for name, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, values, key) for inner in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if not values:
            raise ConfigError(f"{key}: {match.group()} is there, but the arm needs no other; add needs: ARM")
        if match.group(1) not in values:
            raise ConfigError(f"{key}: {match.group()} is unknown; {_hint(match.group(1), list(values))}")
        return values[match.group(1)]

    return PLACEHOLDER.sub(replace, value)
