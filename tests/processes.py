"""What tests ask of processes that are not theirs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

GONE_S = 120.0


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it holds at some time within two minutes."""
    deadline = time.monotonic() + GONE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
