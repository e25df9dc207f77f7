"""A weight group on the side of a member's SGLang servers: where it meets, joining, receiving, and leaving."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from server.rollouts.engine import EngineError
from server.rollouts.sglang_control import Bucket, PauseMode
from server.rollouts.sglang_http import AttachedServer, RequestRefused, ServerLost, ServerSilent
from server.rollouts.sglang_weights import WEIGHTS, Deadline, Unit, on_all, resume_memory

LEAVE_S = 10.0
# An address on no machine (RFC 5737): the way to it is the way out of this one.
ELSEWHERE = "192.0.2.1"


@dataclass(frozen=True)
class GroupPlace:
    """What a trainer must know of engines to meet them: their ranks, their machine ("" unknown), its address."""

    ranks: int
    machine: str
    address: str


def group_place(units: Sequence[Unit]) -> GroupPlace:
    """Where the servers can be met. Raises EngineError for servers that SGLang cannot update by group."""
    for unit in units:
        if unit.facts.copies > 1:
            raise EngineError(
                f"{unit.control.url} has {unit.facts.copies} data-parallel copies; SGLang cannot update them by group: "
                "use replicas in place of data_parallel, or rollouts.sync: disk"
            )
    ranks, server = sum(unit.facts.ranks for unit in units), units[0].server
    if isinstance(server, AttachedServer):
        return GroupPlace(ranks, "", str(urlsplit(server.url).hostname))
    # A server of this run is on this machine, whatever address it listens on.
    return GroupPlace(ranks, socket.gethostname(), address_towards(ELSEWHERE))


def address_towards(host: str) -> str:
    """This machine's address on the way to `host`, loopback where there is none. Nothing is sent: a datagram socket is
    only given its route.
    """
    family, kind, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        try:
            probe.connect(place)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def join_all(units: Sequence[Unit], name: str, address: str, port: int, backend: str, deadline: Deadline) -> None:
    """All servers join at once, each with its ranks after those of the servers before it; rank 0 is the trainer."""
    offsets, world = {}, 1
    for unit in units:
        offsets[unit.control.url] = world
        world += unit.facts.ranks

    def join(unit: Unit) -> None:
        offset = offsets[unit.control.url]
        unit.control.join_group(
            name, address, port, offset=offset, world=world, backend=backend, deadline_s=deadline.left
        )

    on_all(units, join)


def receive_by_group(
    unit: Unit, group: str, buckets: Sequence[Bucket], version: str, pause: PauseMode, deadline: Deadline
) -> None:
    """Take part in the broadcast of all buckets; the server stays paused. An error leaves a mixture of versions; the
    server has left the group then, so that nobody waits for it.
    """
    control = unit.control
    try:
        if unit.released:
            resume_memory(unit, WEIGHTS, deadline)
        else:
            control.pause(pause, deadline.left)
        control.begin_update(deadline.left)
        for number, bucket in enumerate(buckets, 1):
            control.receive(group, bucket, version if number == len(buckets) else None, deadline.left)
        control.end_update(deadline.left)
        if not unit.released:
            control.flush(deadline.left)
    except EngineError:
        leave(unit, group)
        raise


def leave(unit: Unit, group: str) -> None:
    """Leave a group that has failed, so that the broadcast of the others ends; one that is stuck is restarted later."""
    try:
        unit.control.leave_group(group, LEAVE_S)
    except RequestRefused:
        return
    except (ServerLost, ServerSilent):
        unit.doubtful = True
