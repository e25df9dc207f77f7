"""A `graft train` that kills itself: `python dying_run.py PHASE STEP DELAY_S -- TRAIN ARGUMENTS...`.

SIGKILL comes DELAY_S after the phase of the step begins, or when the phase ends if that is earlier, so it falls inside
sampling, training, the commit, the checkpoint, the keeping of the best weights ("keep") or their last evaluation
("again") on a machine of any speed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from population import coordinator
from population.best import BestCheckpoints
from population.checkpoints import Checkpoints
from population.cli import app
from population.timelines import RUN, Timelines


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def dying(here: bool, delay_s: float) -> Iterator[None]:
    """Kill this process from a thread during the block, or at its end at the latest, if this is the place."""
    if here:
        threading.Thread(target=lambda: (time.sleep(delay_s), die()), daemon=True).start()
    yield
    if here:
        die()


def arm(phase: str, step: int, delay_s: float) -> None:
    """Make the phase of the step start the countdown."""
    reached = {"step": 0}
    whole_step, commit, save = coordinator.Coordinator.step, coordinator.Coordinator.commit, Checkpoints.save
    timed, keep, again = (
        Timelines.during,
        BestCheckpoints.consider,
        coordinator.Coordinator.evaluate_best,
    )

    def step_(self: Any, number: int, last_step: int) -> Any:
        reached["step"] = number
        return whole_step(self, number, last_step)

    def commit_(self: Any, report: Any) -> None:
        with dying((phase, step) == ("commit", report.step), delay_s):
            commit(self, report)

    def save_(self: Any, number: int, *rest: Any) -> Any:
        with dying((phase, step) == ("checkpoint", number), delay_s):
            return save(self, number, *rest)

    def keep_(self: Any, number: int, *rest: Any) -> None:
        with dying((phase, step) == ("keep", number), delay_s):
            keep(self, number, *rest)

    def again_(self: Any, last_step: int) -> Any:
        with dying((phase, step) == ("again", last_step), delay_s):
            return again(self, last_step)

    @contextmanager
    def timed_(self: Any, party: str | None, name: str) -> Iterator[None]:
        here = party is RUN and (phase, step) == (name, reached["step"])
        with dying(here, delay_s), timed(self, party, name):
            yield

    coordinator.Coordinator.step = step_  # type: ignore[method-assign]
    coordinator.Coordinator.commit = commit_  # type: ignore[method-assign]
    Checkpoints.save = save_  # type: ignore[method-assign,assignment]
    BestCheckpoints.consider = keep_  # type: ignore[method-assign,assignment]
    coordinator.Coordinator.evaluate_best = again_  # type: ignore[method-assign]
    Timelines.during = timed_  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    app(sys.argv[sys.argv.index("--") + 1 :])
