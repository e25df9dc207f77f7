"""Whether unread code can be confined where the tests run: not in every container."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

# Tried as a submission is: in a fresh process, with the same limits.
TRIAL = """
from server.sandbox.confine import CannotConfine, confine, hide_from_peers
try:
    hide_from_peers()
    confine(cpu_s=60, memory_bytes=1 << 30, readable=[])
except CannotConfine as error:
    print(error)
"""


@functools.cache
def why_not_confined() -> str:
    """What this machine lacks or refuses; empty where code can be confined."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", TRIAL],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout.strip() if done.returncode == 0 else f"confining ended with {done.returncode}: {done.stderr}"


def skip_where_code_cannot_be_confined() -> None:
    """Skip the running test, with the reason, where the code reward refuses to work."""
    if reason := why_not_confined():
        pytest.skip(reason)
