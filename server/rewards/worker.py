"""The process that runs math-verify or one reward function: one request line in, one reply line out, bounded by the
kernel and by its parent.

Request: a JSON line, the fields of process.Request. Replies: `ready`, then for each request `begun` and
`<code> <detail>` with a VerdictCode and, after a tab, perhaps an extracted answer (for "gold": RIGHT or BAD_GOLD; for
"version": RIGHT and the version, or ERROR and why the function cannot be used). Only such lines leave the process.
Run as `python -c "from server.rewards.worker import main; main()" MEMORY_BYTES [MODULE:FUNCTION]`.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from server.rewards.verdicts import Outcome, VerdictCode

READY = b"ready\n"
BEGUN = b"begun\n"
BAD_GOLD = VerdictCode.BAD_GOLD
DETAIL_CHARACTERS = 400
# The largest file a reward function may write; the mathematics verifier writes none.
REWARD_FILE_BYTES = 64 << 20
# The alarm repeats: one that is raised inside a destructor is printed and lost.
ALARM_REPEAT_S = 0.2


Grader = Callable[[dict[str, Any]], Outcome]


class OutOfTime(BaseException):
    """The item's processor time is used up. Not an Exception, so that no library swallows it."""


class _Alarm:
    """Raises OutOfTime in the running code after a given processor time of this process."""

    def __init__(self) -> None:
        self._armed = False
        signal.signal(signal.SIGPROF, self._ring)

    def _ring(self, _number: int, _frame: Any) -> None:
        if self._armed:
            raise OutOfTime

    def start(self, seconds: float) -> None:
        self._armed = True
        signal.setitimer(signal.ITIMER_PROF, seconds, ALARM_REPEAT_S)

    def stop(self) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def main() -> None:
    """Limits first, then the imports, the self-test, and requests until the parent closes the pipe."""
    _limit(int(sys.argv[1]))
    requests, replies = _own_pipes()
    reward = sys.argv[2] if len(sys.argv) > 2 else None
    grader = _mathematics() if reward is None else _reward_function(reward)
    alarm = _Alarm()
    _silence_errors()
    _bound_files(0 if reward is None else REWARD_FILE_BYTES)
    _write(replies, READY)
    for line in requests:
        request = json.loads(line)
        _write(replies, BEGUN)
        _bound_processor_time(request["timeout_s"])
        _write(replies, _reply(_answer(grader, alarm, request)))
    if reward is not None:  # the parent is gone, so nobody else removes the folder of temporary files
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def _mathematics() -> Grader:
    """The verifier of mathematics, loaded and tested."""
    from server.rewards import symbolic

    _self_test(symbolic.equivalent)

    def grade(request: dict[str, Any]) -> Outcome:
        try:
            if request["op"] == "gold":
                found = symbolic.gold_is_readable(request["gold"])
                return Outcome(VerdictCode.RIGHT) if found else Outcome(BAD_GOLD, "not readable as mathematics")
            right = symbolic.equivalent(request["gold"], request["answer"])
        except symbolic.UnreadableGold as error:
            return Outcome(BAD_GOLD, str(error))
        except RecursionError:
            return Outcome(VerdictCode.WRONG, "nested too deeply to be understood")
        return Outcome(VerdictCode.RIGHT if right else VerdictCode.WRONG, "math-verify")

    return grade


def _reward_function(name: str) -> Grader:
    """A reward function, imported once; one that cannot be used says why on every request."""
    from server.rewards import custom

    try:
        loaded = custom.load_reward(name)
    except custom.BadReward as error:
        reason = str(error)
        return lambda _request: Outcome(VerdictCode.ERROR, reason)

    def grade(request: dict[str, Any]) -> Outcome:
        if request["op"] == "version":
            return Outcome(VerdictCode.RIGHT, loaded.version)
        return custom.score(loaded, request["prompt"], request["answer"], request["gold"])

    return grade


def _answer(grader: Grader, alarm: _Alarm, request: dict[str, Any]) -> Outcome:
    """One item, graded within its processor time. Whatever the grader raises is its fault, not the response's."""
    try:
        alarm.start(request["timeout_s"])
        try:
            return grader(request)
        finally:
            alarm.stop()
    except OutOfTime:
        return Outcome(VerdictCode.TIMEOUT, f"more than {request['timeout_s']:g} s of processor time")
    except MemoryError:
        return Outcome(VerdictCode.ERROR, "more memory than the worker may use")
    except (Exception, SystemExit) as error:
        return Outcome(VerdictCode.ERROR, f"{type(error).__name__}: {error}")


def _self_test(equivalent: Any) -> None:
    """A grader that calls everything wrong looks healthy, so it must show otherwise before it grades."""
    for gold, answer, expected in (("1", "1", True), (r"\frac{1}{2}", r"\frac{2}{4}", True), ("x+1", "x+2", False)):
        if equivalent(gold, answer) is not expected:
            raise RuntimeError(f"self-test: {answer} against {gold} must be {expected}; check the math-verify install")


def _limit(memory_bytes: int) -> None:
    """Bounds memory, core files and written files. Model output is parsed here, so the process may not write any."""
    for name, value in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0)):
        # macOS refuses RLIMIT_AS; the parent's deadline still holds.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(name, (value, value))


def _bound_processor_time(timeout_s: float) -> None:
    """The kernel ends the process if neither the alarm nor the parent does, as when the parent is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + 2 * timeout_s) + 5
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _own_pipes() -> tuple[BinaryIO, int]:
    """The request stream and the reply descriptor; whatever else prints goes nowhere."""
    replies = os.dup(1)
    os.set_inheritable(replies, False)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return sys.stdin.buffer, replies


def _silence_errors() -> None:
    """After the start nobody reads stderr: warnings of a parser are not kept."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _bound_files(largest_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = largest_bytes if hard == resource.RLIM_INFINITY else min(largest_bytes, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _write(descriptor: int, line: bytes) -> None:
    try:
        os.write(descriptor, line)
    except BrokenPipeError:
        os._exit(0)  # the parent is gone or has closed: nothing to say, and nobody to say it to


def _reply(outcome: Outcome) -> bytes:
    """`<code> <detail>`, then after a tab the extracted answer as JSON where there is one."""
    detail = " ".join(str(outcome.detail).split())[:DETAIL_CHARACTERS]
    extracted = "" if outcome.extracted is None else "\t" + json.dumps(str(outcome.extracted)[:DETAIL_CHARACTERS])
    return f"{int(outcome.code)} {detail}{extracted}\n".encode("ascii", "replace")
