"""The trusted side of one confined process: what it is told, how long it may take, how much it may say."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from server.rewards.process import processor_seconds, worker_environment
from server.sandbox.confine import CannotConfine
from server.sandbox.submission import HEADER_DIGITS, READY

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from server.sandbox.submission import main; "
    "del sys.path[0]; main()"
)
TICK_MS = 20
PIECE_BYTES = 1 << 16


class Failed(BaseException):
    """The submission is at fault; the message says how. No Exception, so that no test swallows it."""


@dataclass
class Budget:
    """What one submission may use in all its processes. cpu_s: processor seconds beyond the interpreters' own start;
    wall_s: seconds on the clock; used_s: processor seconds of the processes that have ended.
    """

    cpu_s: float
    wall_s: float
    memory_bytes: int
    output_bytes: int
    used_s: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def check(self, used_s: float) -> None:
        """Raise Failed where a process that has used so much has used up what was left."""
        if self.used_s + used_s > self.cpu_s:
            raise Failed(f"more than {self.cpu_s:.3g} s of processor time")
        if time.monotonic() - self.started > self.wall_s:
            raise Failed(f"no end within {self.wall_s:.3g} s on the clock")


class Confined:
    """One confined process with its code; a context manager, at whose end the process is gone."""

    def __init__(self, code: str, mode: str, budget: Budget) -> None:
        """mode: "program" or "functions"."""
        self.failure: Failed | None = None
        self._budget = budget
        self._received = b""
        self._start_s: float | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-B", "-c", CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
        order = {
            "code": code,
            "mode": mode,
            "cpu_s": budget.cpu_s - budget.used_s,
            "memory_bytes": budget.memory_bytes,
            "parent": os.getpid(),
        }
        text = json.dumps(order).encode("ascii")
        self._order = f"{len(text):0{HEADER_DIGITS}x}".encode() + text

    def __enter__(self) -> Confined:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def run(self, text: str) -> tuple[int, bytes]:
        """A program's exit status (negative: the signal that ended it) and all it printed, given its input."""
        output = self._exchange(text.encode("utf-8", "surrogatepass"), whole=True)
        before = _ended_children_s()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(TICK_MS / 1000)
                self._budget.used_s += _ended_children_s() - before - (self._start_s or 0.0)
                self._budget.check(0.0)
                return status, output
            self._budget.check(self._used_s())

    def ask(self, line: bytes) -> bytes:
        """The line that answers one line; an empty one after the start is answered when the code has run. What it
        raises is kept as `failure`.
        """
        try:
            return self._exchange(line, whole=False)
        except Failed as failure:
            self.failure = failure
            raise

    def _used_s(self) -> float:
        """Processor seconds since the interpreter had started."""
        return 0.0 if self._start_s is None else processor_seconds(self._process.pid) - self._start_s

    def _note_start(self) -> None:
        """The first line says that the process is confined, or why it cannot be."""
        if self._start_s is None and b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            if line + b"\n" != READY:
                raise CannotConfine(line.decode("utf-8", "replace"))
            self._start_s = processor_seconds(self._process.pid)

    def _exchange(self, message: bytes, *, whole: bool) -> bytes:
        """Send the message; receive one line, or all there will be where `whole`. Raises Failed, CannotConfine."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        unsent, self._order = memoryview(self._order + message), b""
        writer, reader = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(writer, False)
        while True:
            self._note_start()
            if not whole and self._start_s is not None and b"\n" in self._received:
                line, _, self._received = self._received.partition(b"\n")
                return line
            poll = select.poll()
            poll.register(reader, select.POLLIN)
            if unsent:
                poll.register(writer, select.POLLOUT)
            elif whole:
                self._process.stdin.close()
            for descriptor, _ in poll.poll(TICK_MS):
                if descriptor == writer:
                    unsent = unsent[_write(writer, unsent) :]
                elif piece := os.read(reader, PIECE_BYTES):
                    self._received += piece
                elif self._start_s is None:
                    raise CannotConfine("a process ended before it was confined")
                elif whole:
                    return self._received
                else:
                    raise Failed("the submission ended its process")
            if len(self._received) > self._budget.output_bytes:
                raise Failed(f"more than {self._budget.output_bytes} bytes of output")
            self._budget.check(self._used_s())


def _ended_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _write(descriptor: int, unsent: memoryview) -> int:
    """Bytes written; all of them where nobody reads any more, which is no fault of a program."""
    try:
        return os.write(descriptor, unsent)
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(unsent)


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in worker_environment().items() if key not in ("PYTHONPATH", "TMPDIR")}
    return kept | {"OPENBLAS_NUM_THREADS": "1", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
