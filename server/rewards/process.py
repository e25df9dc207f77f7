"""The parent's side of one worker process: start it clean, ask it one thing, and kill it when its time is up."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from typing import IO

from server.rewards.verdicts import Outcome, VerdictCode
from server.rewards.worker import BEGUN, READY

# The worker's own alarm rings first; the kill is for code that never returns to the interpreter.
KILL_GRACE_S = 0.5
# Time on the clock is no measure on a loaded machine, only a last resort for an item that sleeps.
WALL_FACTOR = 10.0
TICK_S = 0.05
EXIT_WAIT_S = 2.0
HAS_PROC = os.path.isdir("/proc/self")
LONGEST_REPLY = 4096
# What a worker may see of the environment: no tokens, no keys, no proxies.
ALLOWED_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class WorkerFault(RuntimeError):
    """The worker process is gone or of no use; the message says how."""


class WorkerDied(WorkerFault):
    """`busy`: it had begun the item, so the item may be to blame."""

    def __init__(self, message: str, *, busy: bool) -> None:
        super().__init__(message)
        self.busy = busy


class WorkerStartFailed(WorkerFault):
    """It never said that it is ready; the message ends with what it printed."""


class ItemTimedOut(WorkerFault):
    """The item used up its time; the worker has been killed."""


class Cancelled(WorkerFault):
    """The service is closing."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question. op "grade": is `answer` the `gold`? op "gold": can `gold` be read? To the worker of a reward
    function, op "score": what is the response `answer` to `prompt` worth? op "version": which code would say so?
    """

    op: str
    gold: str
    answer: str
    timeout_s: float
    prompt: str = ""
    reward: str | None = None

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def worker_environment() -> dict[str, str]:
    """An allow-list of the environment, with the import path (the current folder last), fixed hashing, one thread."""
    kept = {name: os.environ[name] for name in ALLOWED_ENVIRONMENT if name in os.environ}
    path = os.pathsep.join(dict.fromkeys(os.path.abspath(entry or ".") for entry in [*sys.path, "."]))
    return kept | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def worker_command(memory_bytes: int, reward: str | None = None) -> list[str]:
    """A fresh interpreter that writes no byte code and does not import from where it stands."""
    code = "from server.rewards.worker import main; main()"
    return [sys.executable, "-B", "-P", "-c", code, str(memory_bytes), *([reward] if reward else [])]


def processor_seconds(pid: int) -> float:
    """User plus system time of a process so far; a process that is gone counts 0."""
    if HAS_PROC:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    import psutil  # type: ignore[import-untyped]

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


class WorkerProcess:
    """One running worker, of the mathematics verifier or of one reward function. Used by one thread at a time;
    `cancelled` ends every wait. The worker of a reward function has a folder for temporary files, gone with it.
    """

    def __init__(
        self, *, memory_bytes: int, start_timeout_s: float, cancelled: threading.Event, reward: str | None = None
    ) -> None:
        self._cancelled = cancelled
        self._buffer = b""
        self.reward = reward
        self._name = f"the process of {reward}" if reward else "the verifier process"
        self.items = 0
        self._scratch = tempfile.mkdtemp(prefix="graft-reward-") if reward else None
        with tempfile.TemporaryFile() as errors:
            # A fresh interpreter, never a fork: the parent has threads and may hold a GPU.
            self._process = subprocess.Popen(
                worker_command(memory_bytes, reward),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=worker_environment() | ({"TMPDIR": self._scratch} if self._scratch else {}),
                cwd=self._scratch,
                start_new_session=True,  # Ctrl-C in the terminal is the parent's to handle
                bufsize=0,
            )
            try:
                self._await_ready(start_timeout_s, errors)
            except BaseException:
                self.kill()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def _await_ready(self, start_timeout_s: float, errors: IO[bytes]) -> None:
        deadline = time.monotonic() + start_timeout_s
        while (line := self._read_line()) is None:
            if time.monotonic() > deadline:
                raise WorkerStartFailed(f"{self._name} was not ready after {start_timeout_s:g} s")
        if line != READY:
            self.kill()
            errors.seek(0)
            said = errors.read()[-2000:].decode(errors="replace").strip()
            raise WorkerStartFailed(f"{self._name} {self._epitaph()} at its start: {said or 'it said nothing'}")

    def ask(self, request: Request) -> Outcome:
        """The worker's verdict. Raises WorkerDied, ItemTimedOut or Cancelled; then it is dead."""
        try:
            return self._ask(request)
        except WorkerFault:
            self.kill()
            raise

    def _ask(self, request: Request) -> Outcome:
        assert self._process.stdin is not None
        spent_before, begun_at = processor_seconds(self.pid), time.monotonic()
        try:
            unsent = memoryview(request.line())
            while unsent:
                unsent = unsent[self._process.stdin.write(unsent) :]
        except BrokenPipeError:
            raise WorkerDied(f"{self._name} died while idle", busy=False) from None
        self.items += 1
        busy = False
        while True:
            line = self._read_line()
            if line == BEGUN:
                busy = True
            elif line == b"":
                raise WorkerDied(f"{self._name} {self._epitaph()}", busy=busy)
            elif line is not None:
                return _verdict(line)
            elif processor_seconds(self.pid) - spent_before > request.timeout_s + KILL_GRACE_S:
                raise ItemTimedOut(f"more than {request.timeout_s:g} s of processor time; killed")
            elif time.monotonic() - begun_at > WALL_FACTOR * request.timeout_s + KILL_GRACE_S:
                raise ItemTimedOut(f"no answer within {WALL_FACTOR * request.timeout_s:g} s on the clock; killed")

    def _read_line(self) -> bytes | None:
        """The next line, b"" at the end of the stream, None where nothing came within a tick."""
        if self._cancelled.is_set():
            raise Cancelled("the reward service is closing")
        line, newline, rest = self._buffer.partition(b"\n")
        if newline:
            self._buffer = rest
            return line + newline
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        if not poll.poll(TICK_S * 1000):
            return None
        piece = self._process.stdout.read(LONGEST_REPLY)
        if not piece or len(self._buffer) > LONGEST_REPLY:
            return b""
        self._buffer += piece
        return self._read_line() if b"\n" in self._buffer else None

    def _epitaph(self) -> str:
        try:
            code = self._process.wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        return f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"

    def kill(self) -> None:
        """End the process and its group now; safe to call again."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        # A process stuck in the kernel outlives its SIGKILL; the system reaps it when it can.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_WAIT_S)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _verdict(line: bytes) -> Outcome:
    said, _, extracted = line.decode("ascii", "replace").strip().partition("\t")
    code, _, detail = said.partition(" ")
    try:
        return Outcome(VerdictCode(int(code)), detail, json.loads(extracted) if extracted else None)
    except ValueError:
        raise WorkerDied(f"the worker replied {line[:80]!r}", busy=True) from None
