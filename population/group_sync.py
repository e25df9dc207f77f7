"""Weights from a trainer to its engine by broadcast, without a file; proved by the trainer before they are sampled."""

from __future__ import annotations

from functools import partial

from population.calls import ask, begin
from population.errors import PartLost, PlacementError, SyncError
from population.member import Member

PHASE = "sync"


def sync_by_group(member: Member, step: int, deadline_s: float) -> bool:
    """The engine takes over the trainer's weights as version `step`.

    False where the group failed: the engine then samples nothing until it has got whole weights through a folder, and
    its events say why. Raises SyncError when it holds other weights than were sent, PartLost when a part is lost.
    """
    call = partial(ask, member, deadline_s=deadline_s, phase=PHASE, step=step)
    member.weight_version = None
    try:
        if member.met != (member.trainer, member.engine):
            _meet(member, step, deadline_s)
        buckets = call("trainer", "buckets", member.group_bytes)
        sending = begin(partial(call, "trainer", "send_weights", member.group_bytes, deadline_s))
        try:
            held = call("engine", "receive", step, buckets)
        finally:
            # However it went: the trainer must be free for the next call.
            sending.exception()
        sending.result()
    except PartLost:
        member.met = None
        raise
    except PlacementError as error:
        member.met = None
        call("engine", "refuse", f"sync by group failed ({error}); weights go through a folder")
        return False
    fault = call("trainer", "proof", held)
    if fault:
        call("engine", "refuse", fault)
        raise SyncError(
            f"member {member.name!r}, phase {PHASE}, step {step}: {fault}; stopped before sampling them, resume with "
            "--resume"
        )
    call("engine", "confirm", step, call("trainer", "checksum"), held)
    member.weight_version = step
    return True


def _meet(member: Member, step: int, deadline_s: float) -> None:
    """Trainer and engine join a new weight group."""
    call = partial(ask, member, deadline_s=deadline_s, phase=PHASE, step=step)
    place = call("engine", "group_place")
    meeting = call("trainer", "open_group", place, deadline_s)
    joining = begin(partial(call, "trainer", "join_group", place.ranks, deadline_s))
    try:
        call("engine", "join_group", meeting.name, meeting.address, meeting.port, meeting.backend)
    finally:
        joining.exception()
    joining.result()
    member.met = member.trainer, member.engine
