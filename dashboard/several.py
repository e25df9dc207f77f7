"""Runs of all stores this server was given, and sets of them that differ in their seed only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dashboard import formats
from dashboard.configuration import flat
from dashboard.source import Source, file_identity, reader, store_urls
from server.store.reader import PLACES, Arm, RunInfo, RunResult, StoreError, arm_names


@dataclass(frozen=True)
class Known:
    """A run and where it lies. `token` names it in controls and addresses: its uid, and "@2" for the second store."""

    token: str
    url: str
    info: RunInfo

    @cached_property
    def _source(self) -> Source:
        return Source.open(self.info.uid, self.url)

    @cached_property
    def _result(self) -> RunResult:
        return self._source.result()

    def source(self) -> Source:
        """For questions about it, as it is when the first is asked."""
        return self._source

    def result(self) -> RunResult:
        """Accuracy and cost at every evaluated step."""
        return self._result


def known_runs() -> tuple[list[Known], list[str]]:
    """(the runs of all stores, those of the first store first, each newest first; why a store cannot be read)."""
    found, faults = [], []
    for place, url in enumerate(store_urls(), 1):
        try:
            runs = reader(url, file_identity(url)).runs()
        except StoreError as error:
            faults.append(str(error))
            continue
        found += [Known(_token(info.uid, place), url, info) for info in runs]
    return found, faults


def _token(uid: str, place: int) -> str:
    name = formats.clean(uid, 100)
    return name if place == 1 else f"{name}@{place}"


@dataclass(frozen=True)
class Group:
    """What is compared as one: a run, or runs that differ in their seed only. The first one stands for it."""

    name: str
    runs: tuple[Known, ...]
    notes: tuple[str, ...] = ()

    def arm(self) -> Arm:
        """Its runs by seed."""
        return Arm(self.name, {one.info.seed: replace(one.result(), seed=one.info.seed) for one in self.runs})


def settings_of(info: RunInfo) -> dict[str, str]:
    """{dotted key: value, secrets masked} of all that may make a run another arm, its method included."""
    own = {key: value for key, value in flat(info.config) if key.split(".")[0] not in PLACES}
    return {"method": info.method} | own


def single(chosen: Sequence[Known]) -> list[Group]:
    """Every run by itself."""
    return [Group(one.token, (one,)) for one in chosen]


def seed_sets(chosen: Sequence[Known], known: Sequence[Known]) -> list[Group]:
    """The sets that the chosen runs are of, in the order chosen: of each seed the chosen run, else the newest finished
    one. Two chosen runs of one set are one set. Named by what differs among the chosen ones."""
    arms = dict(zip([one.token for one in known], arm_names([one.info for one in known]), strict=True))
    heads: dict[str, Known] = {}
    for one in chosen:
        heads.setdefault(arms[one.token], one)
    names = formats.distinct(
        arm_names([replace(head.info, config=settings_of(head.info)) for head in heads.values()]), 60
    )
    groups = []
    for (arm, head), name in zip(heads.items(), names, strict=True):
        by_seed = {one.info.seed: one for one in chosen if arms[one.token] == arm}
        alike = [one for one in known if arms[one.token] == arm]
        for one in sorted(alike, key=lambda one: -one.info.created):
            if one.info.status == "finished":
                by_seed.setdefault(one.info.seed, one)
        left = [one for one in alike if one not in by_seed.values()]
        notes = [f"{one.token} ({one.info.status}, seed {one.info.seed})" for one in left]
        ordered = [head, *(by_seed[seed] for seed in sorted(by_seed) if by_seed[seed] is not head)]
        groups.append(Group(name, tuple(ordered), tuple(notes)))
    return groups
