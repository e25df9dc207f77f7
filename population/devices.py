"""The devices of a run: which members share one, in which order they take turns, and the turns themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from population.config import RunConfig
from population.errors import ConfigError, PlacementError

if TYPE_CHECKING:
    from population.calls import Placed

T = TypeVar("T")


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


def longest_turn_s(config: RunConfig) -> float:
    """More seconds than anybody is first in a line: a turn's calls have deadlines, may be made again after each restart
    that the member is given, and may begin with a wait in another line behind all others.
    """
    limits = config.deadlines
    work = limits.update_s + limits.exchange_s + limits.sample_s + limits.evaluate_s + 4 * limits.sync_s
    restart = limits.load_s + limits.checkpoint_s + config.checkpoint.every_steps * limits.update_s
    return len(config.trained) * (1 + config.cluster.max_restarts) * (work + restart)


class Line:
    """Those who want one device, one at a time, in the order in which they lined up."""

    def __init__(self, device: str, longest_s: float) -> None:
        """``longest_s``: somebody who is first for longer will never leave."""
        self._device, self._longest_s = device, longest_s
        self._changed = threading.Condition()
        self._turns: list[Turn] = []
        self._first_since = 0.0

    def join(self, name: str) -> Turn:
        """A member's place at the end of the line."""
        with self._changed:
            if not self._turns:
                self._first_since = time.monotonic()
            self._turns.append(Turn(self, name))
            return self._turns[-1]

    def wait_for(self, turn: Turn) -> None:
        """Until nobody is before this one. PlacementError when the first one stays for longer than a turn can take."""
        with self._changed:
            while turn in self._turns and self._turns[0] is not turn:
                left = self._first_since + self._longest_s - time.monotonic()
                if left <= 0:
                    raise PlacementError(
                        f"member {turn.name}, waiting for its turn at {self._device}: member {self._turns[0].name} "
                        f"has had it for {self._longest_s:g} s, longer than the deadlines of a turn allow; "
                        "go on with --resume"
                    )
                self._changed.wait(left)

    def leave(self, turn: Turn) -> None:
        """Give up a place, whether it was taken or not."""
        with self._changed:
            if turn in self._turns:
                if self._turns[0] is turn:
                    self._first_since = time.monotonic()
                self._turns.remove(turn)
            self._changed.notify_all()


class Turn(AbstractContextManager["Turn"]):
    """A member's place in a line; the block runs when it has come to the front, and the next one's after that."""

    def __init__(self, line: Line, name: str) -> None:
        self._line, self.name = line, name

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

    def line(self, device: str | None, longest_s: float) -> Line:
        """Who waits for this device; a line of one's own where nobody else can want it."""
        if device is None:
            return Line("a device of its own", longest_s)
        return self._lines.setdefault(device, Line(device, longest_s))


def devices_of(config: RunConfig, *, on_gpu: bool, clustered: bool) -> Devices:
    """The devices of a run's members, and how many GPUs it holds, as far as it can be told before they are placed.

    In this process all trainers and embedded engines share its one GPU. SGLang servers are on the GPUs that they are
    given, the first one otherwise, or elsewhere (urls). On a cluster Ray chooses: :func:`placed`.
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
    used: list[set[int | str]] = [{0}, *(set(place) for place in places.values())]
    groups = _joined(used)
    group_of = {gpu: f"gpu {min(map(str, group))}" for group in groups for gpu in group}
    engines = {name: group_of[place[0]] if place else None for name, place in places.items()}
    wanted = [device for device in engines.values() if device is not None]
    used_alone = {device for device in wanted if wanted.count(device) == 1 and device != group_of[0]}
    return Devices(
        trainer=dict.fromkeys(names, group_of[0]),
        engine={name: None if device in used_alone else device for name, device in engines.items()},
        gpus=sum(map(len, groups)),
    )


def placed(members: Mapping[str, Placed]) -> Devices:
    """The devices of members on a cluster, by what their trainers and engines were given there: those that meet on a
    GPU, each with a part of it, take turns. All parts are built.
    """
    given = {name: (set(member.trainer.gpus), set(member.engine.gpus)) for name, member in members.items()}
    groups = _joined([*(trainer for trainer, _ in given.values()), *(engine for _, engine in given.values())])
    users = [{name for name, (trainer, engine) in given.items() if (trainer | engine) & group} for group in groups]
    shared = {gpu: min(group) for group, its in zip(groups, users, strict=True) if len(its) > 1 for gpu in group}

    def devices(part: int) -> dict[str, str | None]:
        return {name: next((shared[gpu] for gpu in pair[part] if gpu in shared), None) for name, pair in given.items()}

    return Devices(devices(0), devices(1), sum(map(len, groups)))


def _joined(sets: Sequence[set[T]]) -> list[set[T]]:
    """The sets with those that overlap put together."""
    groups: list[set[T]] = []
    for one in sets:
        near = [group for group in groups if group & one]
        groups = [group for group in groups if not group & one] + [one.union(*near)]
    return [group for group in groups if group]
