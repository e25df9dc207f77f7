"""The process between a run and one server: it keeps the server's log, and ends all of the server when the run is gone.

A server is several processes, some of which outlive a kill of the first. This one adopts whatever they leave behind, so
that it finds them all, and it waits on a pipe from the run, which closes even if the run is killed. Started as a script
with the standard library alone; ``main`` reads one line of JSON:
    command, environment   what to start
    log, log_bytes         where its output goes; beyond so many bytes a new file begins, and one older is kept
    secrets                texts that the log must not hold
    parent                 process id of the run
    grace_s                time between SIGTERM and SIGKILL
The exit code is the server's: negative signals as 128 + signal, 127 where it could not be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICK_S = 0.25
PIECE_BYTES = 1 << 16
# How long killed processes may take to be gone; one in a driver's call may take some.
KILLED_S = 30.0
CANNOT_START = 127


class Log:
    """A file of lines with the secrets taken out; past its size it becomes `<name>.1` and a new one begins."""

    def __init__(self, path: Path, limit: int, secrets: list[str]) -> None:
        self._path, self._limit = path, limit
        self._secrets = [secret.encode() for secret in secrets]
        self._file: BinaryIO = path.open("ab", buffering=0)
        self._rest = b""

    def write(self, data: bytes, *, whole: bool = False) -> None:
        """Keep all full lines of what came so far; the last, unfinished one too where `whole`."""
        data = self._rest + data
        cut = len(data) if whole or len(data) > PIECE_BYTES else data.rfind(b"\n") + 1
        data, self._rest = data[:cut], data[cut:]
        for secret in self._secrets:
            data = data.replace(secret, b"***")
        # A server must not stop because its log cannot be written.
        with contextlib.suppress(OSError):
            self._file.write(data)
            if self._file.tell() > self._limit:
                self._file.close()
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self._file = self._path.open("ab", buffering=0)


class Guard:
    """One server and everything that it has started."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._log = Log(Path(order["log"]), order["log_bytes"], order["secrets"])
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._status: int | None = None
        self._server: subprocess.Popen[bytes]

    def run(self) -> int:
        """Start, watch, end; the exit code."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._start()
        except OSError as error:
            self._log.write(f"{self._order['command'][0]} cannot be started: {error.strerror}\n".encode())
            return CANNOT_START
        self._watch(sys.stdin.fileno(), woken)
        self._end()
        assert self._status is not None
        return self._status if self._status >= 0 else 128 - self._status

    def _start(self) -> None:
        self._server = subprocess.Popen(
            self._order["command"],
            env=self._order["environment"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Should this process be killed, the server must not live on unguarded.
            preexec_fn=lambda: self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        assert self._server.stdout is not None
        os.set_blocking(self._server.stdout.fileno(), False)

    def _watch(self, run: int, woken: int) -> None:
        """Until the server has ended, the run is gone, or a SIGTERM asks for the end."""
        assert self._server.stdout is not None
        output = self._server.stdout.fileno()
        while self._status is None and os.getppid() == self._order["parent"]:
            ready, _, _ = select.select([run, woken, output], [], [], TICK_S)
            if output in ready and not self._keep_output():
                # The server has closed its output, which would be ready for ever.
                time.sleep(TICK_S)
            if run in ready or woken in ready:
                return
            self._reap()

    def _end(self) -> None:
        """SIGTERM to the server unless it has ended; after the grace period SIGKILL to all that are left."""
        if self._status is None:
            # To the first process alone: to SGLang the end of another one is a crash, which it would look into first.
            os.kill(self._server.pid, signal.SIGTERM)
            self._wait(self._order["grace_s"])
        deadline = time.monotonic() + KILLED_S
        # A process that starts another while it is being killed leaves one behind, so look again.
        while (left := descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._wait(TICK_S)
        self._keep_output()
        self._log.write(b"", whole=True)
        if self._status is None:
            self._status = -signal.SIGKILL

    def _wait(self, seconds: float) -> None:
        """Until nothing is left, or the time is up."""
        deadline = time.monotonic() + seconds
        while True:
            self._keep_output()
            self._reap()
            if not descendants(os.getpid()) or time.monotonic() >= deadline:
                return
            time.sleep(min(TICK_S, 0.05))

    def _keep_output(self) -> bool:
        """What the server has printed goes to the log; False once nobody can print any more."""
        assert self._server.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._server.stdout.fileno(), PIECE_BYTES):
                self._log.write(piece)
            return False
        return True

    def _reap(self) -> None:
        """Collect every child that has ended, adopted ones too; the server's own status is kept."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid == self._server.pid:
                    self._status = self._server.returncode = os.waitstatus_to_exitcode(status)


def descendants(ancestor: int) -> list[int]:
    """Process ids of all that descend from a process, ended ones that wait to be collected left out."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            state, parent = (folder / "stat").read_bytes().rpartition(b") ")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(folder.name))
    found, waiting = [], [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def main() -> int:
    """The order comes on standard input, which then stays open as long as the run lives."""
    line = sys.stdin.buffer.readline()
    if not line:
        return CANNOT_START
    return Guard(json.loads(line)).run()


if __name__ == "__main__":
    sys.exit(main())
