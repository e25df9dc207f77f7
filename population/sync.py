"""Handing a member's weights over from its trainer to its engine."""

from __future__ import annotations

from population.calls import ask
from population.errors import PlacementError, SyncError
from population.group_sync import sync_by_group
from population.member import Member
from server.rollouts.engine import EngineError


def sync_member(member: Member, step: int, deadline_s: float) -> None:
    """The engine takes over the trainer's weights as version `step`, by group where the member has that and it goes,
    and both sides' weights are compared.

    Raises SyncError when they differ or the engine refuses them, PlacementError when a part is lost. In any such case
    the member has no weight version, so that nothing is sampled before another sync.
    """
    phase = "sync"
    if member.group_bytes and sync_by_group(member, step, deadline_s):
        return
    member.weight_version = None
    # An engine that gets weights otherwise leaves its weight group.
    member.met = None
    weights = ask(member, "trainer", "weights", deadline_s=deadline_s, phase=phase, step=step)
    try:
        held = ask(member, "engine", "load_weights", step, weights, deadline_s=deadline_s, phase=phase, step=step)
    except PlacementError as error:
        if isinstance(error.__cause__, EngineError):
            raise SyncError(str(error)) from error
        raise
    sent = ask(member, "trainer", "checksum", deadline_s=deadline_s, phase=phase, step=step)
    if held != sent:
        raise SyncError(
            f"member {member.name!r}, phase {phase}, step {step}: the engine holds {held[:12]}, the trainer "
            f"{sent[:12]}; stopped before sampling stale weights, resume with --resume"
        )
    member.weight_version = step


def in_sync(member: Member, step: int, deadline_s: float) -> None:
    """Sync unless the engine holds these weights already: it may have been asleep, or built anew after a loss."""
    if member.weight_version != step:
        sync_member(member, step, deadline_s)


def put_to_sleep(member: Member, step: int, deadline_s: float) -> None:
    """The engine gives back its device memory; the next sync wakes it. It has to hold weights, so it gets them first
    where it does not.
    """
    in_sync(member, step, deadline_s)
    member.weight_version = None
    ask(member, "engine", "sleep", deadline_s=deadline_s, phase="sleep", step=step)
