"""One run of a sweep in a process of its own: ``python -m population.sweep.child PARENT train CONFIG ...``.

It is the ``graft`` command, which dies with the process that started it: no run outlives a sweep that was killed. A
killed run goes on from its checkpoint.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent is gone; at once if it is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    from population.cli import app

    app(sys.argv[2:])
