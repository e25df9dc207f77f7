"""Who writes a run: one process at a time, named so that others can tell whether it still lives."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

LEASE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A process: host, boot of the host, namespace of process ids, process id and its start time in that boot."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> Holder:
        return cls(socket.gethostname(), _boot(), _namespace(), os.getpid(), _started(os.getpid()) or "")

    @classmethod
    def parse(cls, text: str) -> Holder | None:
        parts = text.split("|")
        if len(parts) != 5 or not parts[3].isdigit():
            return None
        return cls(parts[0], parts[1], parts[2], int(parts[3]), parts[4])

    def __str__(self) -> str:
        return f"{self.host}|{self.boot}|{self.namespace}|{self.pid}|{self.started}"

    def certainly_dead(self) -> bool:
        """True when this process is gone for sure: it was one of this very boot of this host, which has it no more.

        False whenever that cannot be known from here: another host or container, no /proc, or another boot, since two
        machines may have one name.
        """
        here = Holder.this_process()
        same = (self.host, self.boot, self.namespace) == (here.host, here.boot, here.namespace)
        return bool(self.boot) and same and self.started != (_started(self.pid) or "")


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id").strip()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks since the boot (a reused id has another); None when there is none."""
    # The name in brackets may hold spaces and brackets; the fields after it are plain. A zombie no longer runs.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in {"Z", "X"} else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
