"""How commands end when a user can mend what went wrong: one line on standard error, and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from population.errors import PlacementError, RunError
from server.store.records import StoreError
from server.trackers.tracker import TrackerError


@contextmanager
def user_errors(after_stop: str = "go on with --resume") -> Iterator[None]:
    """Turn the faults a user can mend into one line and exit code 2; anything else keeps its traceback. `after_stop`
    is said to whoever interrupts.
    """
    try:
        yield
    except (RunError, StoreError, TrackerError) as error:
        if not _mendable(error):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print(f"interrupted; {after_stop}", file=sys.stderr)
        raise typer.Exit(130) from None


def _mendable(error: BaseException) -> bool:
    """A call that failed is as mendable as its cause: a bug inside a member keeps its traceback."""
    cause = error.__cause__
    if not isinstance(error, PlacementError) or cause is None:
        return True
    from server.rewards import RewardServiceError
    from server.rollouts.engine import EngineError  # torch is loaded by now: a member was called

    return isinstance(cause, (RunError, StoreError, EngineError, RewardServiceError, OSError))
