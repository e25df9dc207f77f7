"""Faults of a run that its user can mend. Their messages are one line: what is wrong, where, what to do. No torch
here.
"""

from __future__ import annotations


class RunError(Exception):
    """Base of all faults that end a command with one line and exit code 2."""


class ConfigError(RunError, ValueError):
    """A configuration that cannot be run; names the key and the remedy."""


class DataError(RunError, ValueError):
    """A data set that cannot be used; names the file, the row and the remedy."""


class MemberError(RunError, ValueError):
    """A member that cannot be loaded; names the member, the folder and the remedy."""


class CheckpointError(RunError, ValueError):
    """A checkpoint that cannot be written or resumed; names the folder and the remedy."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint that is not whole; an older one may be."""


class ResumeError(RunError, ValueError):
    """A run that cannot be resumed as asked; names the reason and the remedy."""


class ReplayError(RunError, ValueError):
    """A recorded run that cannot be replayed as asked; names the run or the setting and the remedy."""


class SyncError(RunError, RuntimeError):
    """An engine does not hold its trainer's weights; sampling must not go on."""


class PlacementError(RunError, RuntimeError):
    """A call failed or did not answer in time; names member, phase and step. Its cause, if any, is the call's own
    error.
    """


class LostError(PlacementError):
    """The process that was to answer a call is gone; what it held in memory is lost with it."""


class MemberLost(PlacementError):
    """A member's part is gone or silent past its deadline; `member` is the first of those the message names."""

    def __init__(self, members: tuple[str, ...], phase: str, step: int | None, reason: str) -> None:
        at = phase if step is None else f"{phase} of step {step}"
        super().__init__(f"member {', '.join(members)}, {at}: {reason}")
        self.member, self.phase, self.step, self.reason = members[0], phase, step, reason


class PartLost(MemberLost):
    """A member's `part` (trainer or engine) is lost; `placement` is the one that was asked."""

    def __init__(self, member: str, part: str, placement: object, phase: str, step: int | None, reason: str) -> None:
        super().__init__((member,), phase, step, reason)
        self.part, self.placement = part, placement


class MemberDropped(RunError):
    """A member's part was lost and its policy is to go on without the member; `step`: the one that it was lost in."""

    def __init__(self, member: str, step: int | None, reason: str) -> None:
        super().__init__(f"member {member} was dropped: {reason}")
        self.member, self.step, self.reason = member, step, reason
