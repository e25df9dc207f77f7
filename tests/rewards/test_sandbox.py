"""What confinement holds by itself, for root and an ordinary user, with and without Landlock; values in transit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.sandbox import confine
from server.sandbox.syscalls import ALLOWED, CONDITIONAL
from server.sandbox.values import Malformed, decode, encode, from_line, to_line
from tests.confinement import skip_where_code_cannot_be_confined

DEADLINE_S = 60
# Tried in a fresh process that is confined first; prints what was possible.
PROBE = """
import ctypes, json, os, resource, socket, sys, threading
from server.sandbox import confine

user, landlock = json.loads(sys.argv[1])
if user is not None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
if not landlock:
    confine.hides_files = lambda: False
parent = os.getppid()
confine.hide_from_peers()
confine.confine(cpu_s=5, memory_bytes=1 << 30, readable=[sys.prefix, sys.base_prefix])
libc = ctypes.CDLL(None, use_errno=True)
attempts = {
    "process": os.fork,
    "thread": lambda: threading.Thread(target=print).start(),
    "program": lambda: os.execv("/bin/true", ["true"]),
    "socket": socket.socket,
    "pair": socket.socketpair,
    "file": lambda: open(f"/tmp/graft-{os.getpid()}", "w"),
    "signal": lambda: os.kill(parent, 0),
    "signal to all": lambda: os.kill(-1, 0),
    "limits of others": lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE),
    "own limits": lambda: resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000)),
    "another user": lambda: os.setuid(1),
    "memory": lambda: bytearray(2 << 30),
    "reading": lambda: open("/etc/passwd").read(),
    "itself": lambda: os.kill(os.getpid(), 0),
    "library": lambda: __import__("colorsys"),
    "ptrace": lambda: libc.ptrace(16, parent, 0, 0) == 0 or 1 / 0,
    "io_uring": lambda: libc.syscall(425, 8, ctypes.create_string_buffer(256)) >= 0 or 1 / 0,
    "owner of a descriptor": lambda: __import__("fcntl").fcntl(1, 8, parent),
}
possible = []
for name, attempt in attempts.items():
    try:
        attempt()
        possible.append(name)
    except (ImportError, OSError, MemoryError, RuntimeError, ValueError, ZeroDivisionError):
        pass
print(json.dumps(possible))
"""


def possible(user: int | None, landlock: bool) -> set[str]:
    """What a confined process could do."""
    skip_where_code_cannot_be_confined()
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROBE, json.dumps([user, landlock])],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("landlock", [True, False])
def test_a_confined_process_computes_reads_its_library_and_nothing_else(landlock: bool) -> None:
    hidden = landlock and confine.hides_files()
    assert possible(None, landlock) == {"itself", "library"} | (set() if hidden else {"reading"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; the test above was by one")
@pytest.mark.parametrize("landlock", [True, False])
def test_the_same_holds_for_an_ordinary_user(landlock: bool) -> None:
    found = possible(65534, landlock) - {"library"}  # root's own interpreter may be closed to other users
    hidden = landlock and confine.hides_files()
    assert found == {"itself"} | (set() if hidden else {"reading"})


# Makes prctl(PR_SET_SECCOMP) fail, as a container's profile may, and loads the reward.
REFUSING = """
import json, platform, sys
from server.rewards import BadReward, RewardService
from server.sandbox import confine

column, architecture, _ = confine.MACHINES[platform.machine()]
confine._prctl("NO_NEW_PRIVS", confine._PR_SET_NO_NEW_PRIVS, 1)
confine._install_filter([
    (confine._LOAD, 0, 0, confine._NUMBER),
    (confine._EQUAL, 1, 0, (157, 167)[column]),
    (confine._RETURN, 0, 0, confine._ALLOW),
    (confine._LOAD, 0, 0, confine._ARGUMENTS),
    (confine._EQUAL, 0, 1, confine._PR_SET_SECCOMP),
    (confine._RETURN, 0, 0, confine._REFUSE | 1),
    (confine._RETURN, 0, 0, confine._ALLOW),
])
with RewardService() as service:
    try:
        service.load_reward("server.rewards.code:score")
    except BadReward as error:
        print(error)
"""


def test_a_machine_that_takes_no_filter_is_refused_by_name() -> None:
    skip_where_code_cannot_be_confined()
    done = subprocess.run(
        [sys.executable, "-B", "-c", REFUSING],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert "unread code cannot be confined here: prctl(PR_SET_SECCOMP) is refused (Operation not perm" in done.stdout


def test_another_kind_of_machine_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(confine.CannotConfine, match="on Linux with x86_64 or aarch64 only, not on linux with riscv64"):
        confine.refuse_unknown_machine()


def test_no_system_call_is_listed_twice() -> None:
    for column in (0, 1):
        numbers = [pair[column] for pair in (*ALLOWED.values(), *CONDITIONAL.values()) if pair[column] is not None]
        assert len(numbers) == len(set(numbers))
    assert not {"clone", "fork", "vfork", "execve", "socket", "socketpair", "ptrace", "unlink"} & set(ALLOWED)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False) | st.binary().map(bytearray),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner)
    | st.sets(st.integers()) | st.frozensets(st.text()),
    max_leaves=20,
)  # fmt: skip


def no_handle(value: Any) -> int:
    raise TypeError(f"{value!r} is no plain value")


@given(VALUES)
def test_a_plain_value_arrives_as_it_was(value: Any) -> None:
    arrived = decode(from_line(to_line(encode(value, no_handle))), no_handle)
    assert arrived == value
    assert type(arrived) is type(value)


def test_a_value_of_a_subclass_arrives_as_the_plain_type() -> None:
    class Cheat(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    arrived = decode(encode([Cheat(3), Fraction(1, 3), Decimal("0.10")], no_handle), no_handle)
    assert [type(part) for part in arrived] == [int, Fraction, Decimal]
    assert arrived[0] != 4


def test_a_long_number_crosses_without_a_limit_of_digits() -> None:
    number = 7**20_000
    assert decode(from_line(to_line(encode(number, no_handle))), no_handle) == number


@pytest.mark.parametrize(
    "line",
    [b"nonsense", b'["x", 1]', b'["i"]', b'["d", 1]', b'["d", ["l"], 1]', b'["q", "0x1", "0x0"]', b'{"a": 1}',
     b'["s", ["l"]]', b'[["l"]]', b'["i", "zz"]', b'["b", 5]', b"[" * 100_000, b"1" * 5000],
)  # fmt: skip
def test_what_is_no_value_is_refused(line: bytes) -> None:
    with pytest.raises(Malformed):
        decode(from_line(line), no_handle)
