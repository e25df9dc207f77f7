"""The devices of a run: which members share one, in which order they take turns, and the turns themselves."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from population.config import RunConfig
from population.errors import ConfigError


@dataclass(frozen=True)
class Expected:
    """What is expected of a member's turn: seconds to verify its answers (0: not known yet), and its parameters."""

    grade_s: float
    parameters: int


def turn_order(expected: Mapping[str, Expected]) -> list[str]:
    """The order in which members that share a device take turns.

    All turns together take as long in any order, but an answer's verification needs no device: it goes on beside the
    turns of those that follow. The end is earliest when the longest verification begins first (one machine, delivery
    times: Jackson 1955). Before any was measured the largest model goes first, and equal members as they are given.
    """
    return sorted(expected, key=lambda name: (-expected[name].grade_s, -expected[name].parameters))


def first_turns(devices: Devices, parameters: Mapping[str, int]) -> dict[str, list[str]]:
    """{device: members in the order of their first turns at it}, of every device that more than one member uses."""
    users: dict[str, dict[str, Expected]] = {}
    for part in (devices.trainer, devices.engine):
        for name, device in part.items():
            if device is not None:
                users.setdefault(device, {})[name] = Expected(0.0, parameters[name])
    return {device: turn_order(expected) for device, expected in users.items() if len(expected) > 1}


def refuse_crowded(config: RunConfig, devices: Devices) -> None:
    """ConfigError for a server that is to share a GPU and would take most of it."""
    for member in config.trained:
        servers = config.servers_of(member)
        if config.rollouts.engine == "sglang" and devices.engine[member.name] and servers.memory_fraction is None:
            raise ConfigError(
                f"member {member.name!r}: its SGLang server shares a GPU and would take most of its memory; set "
                "rollouts.sglang.memory_fraction, or give it GPUs of its own in members[].sglang.gpus"
            )


class Line:
    """Those who want one device, one at a time, in the order in which they lined up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turns: list[Turn] = []

    def join(self) -> Turn:
        """A place at the end of the line."""
        with self._changed:
            self._turns.append(Turn(self))
            return self._turns[-1]

    def wait_for(self, turn: Turn) -> None:
        """Until nobody is before this one. Whoever is has a deadline for all that it does."""
        with self._changed:
            self._changed.wait_for(lambda: turn not in self._turns or self._turns[0] is turn)

    def leave(self, turn: Turn) -> None:
        """Give up a place, whether it was taken or not."""
        with self._changed:
            if turn in self._turns:
                self._turns.remove(turn)
            self._changed.notify_all()


class Turn(AbstractContextManager["Turn"]):
    """A place in a line; the block runs when it has come to the front, and the next one's after that."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def __enter__(self) -> Turn:
        self._line.wait_for(self)
        return self

    def __exit__(self, *fault: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Let the next one go before the block has ended, or without one."""
        self._line.leave(self)


@dataclass(frozen=True)
class Devices:
    """What members compute on, by name: None where a member has a device to itself, or as a CPU is free to all."""

    trainer: Mapping[str, str | None]
    engine: Mapping[str, str | None]
    gpus: int = 0
    _lines: dict[str, Line] = field(default_factory=dict)

    def shared(self, name: str) -> bool:
        """Whether a member's engine and its trainer are on one device that others use too."""
        return self.engine[name] is not None and self.engine[name] == self.trainer[name]

    def line(self, device: str | None) -> Line:
        """Who waits for this device; a line of one's own where nobody else can want it."""
        return Line() if device is None else self._lines.setdefault(device, Line())


def devices_of(config: RunConfig, *, on_gpu: bool, clustered: bool) -> Devices:
    """The devices of a run's members, and how many GPUs it holds.

    In this process all trainers and embedded engines share its one GPU. SGLang servers are on the GPUs that they are
    given, the first one otherwise, or elsewhere (urls). On a cluster every actor has its own; whoever asks for a part
    of a GPU wants to share it at the same time.
    """
    names = [member.name for member in config.trained]
    alone = dict.fromkeys(names)
    if clustered:
        asked = config.cluster
        each = asked.gpus_per_rank * config.update.ranks + asked.gpus_per_engine
        return Devices(alone, alone, round(each * len(names)))
    servers = {m.name: config.servers_of(m) for m in config.trained} if config.rollouts.engine == "sglang" else {}
    if not on_gpu:
        return Devices(alone, alone, 0)
    places: dict[str, tuple[int | str, ...]] = dict.fromkeys(names, (0,))
    for name, settings in servers.items():
        places[name] = () if settings.urls else settings.gpus or (0,)
    groups = _joined([{0}, *map(set, places.values())])
    group_of = {gpu: f"gpu {min(map(str, group))}" for group in groups for gpu in group}
    engines = {name: group_of[place[0]] if place else None for name, place in places.items()}
    wanted = [device for device in engines.values() if device is not None]
    used_alone = {device for device in wanted if wanted.count(device) == 1 and device != group_of[0]}
    return Devices(
        trainer=dict.fromkeys(names, group_of[0]),
        engine={name: None if device in used_alone else device for name, device in engines.items()},
        gpus=sum(map(len, groups)),
    )


def _joined(sets: Sequence[set[int | str]]) -> list[set[int | str]]:
    """The sets with those that overlap put together."""
    groups: list[set[int | str]] = []
    for one in sets:
        near = [group for group in groups if group & one]
        groups = [group for group in groups if not group & one] + [one.union(*near)]
    return [group for group in groups if group]
