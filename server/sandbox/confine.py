"""Confining the present process for good: limits, no privileges, no files to write, no sockets, no other processes.

Works for root and for ordinary users, inside containers and without any package: a seccomp filter is installed through
prctl, and Landlock, where the kernel has it, hides all files but the interpreter's. Linux on x86_64 and aarch64.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Sequence

from server.sandbox.syscalls import ALLOWED, CONDITIONAL

# machine: (position in a pair of numbers, AUDIT_ARCH of the filter, number of capset)
MACHINES = {"x86_64": (0, 0xC000003E, 126), "aarch64": (1, 0xC00000B7, 91)}
OPEN_FILES = 64

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

# The classic BPF of seccomp filters: load a word, compare, test bits, return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
# System calls from here on are numbered alike everywhere, and libraries expect ENOSYS where one is missing.
_FIRST_COMMON = 424
_X32 = 0x40000000

Instruction = tuple[int, int, int, int]

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_BENEATH = 1, 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_ALL_ACCESS = (1 << 13) - 1  # of the first version: execute, read, write, remove and make of every kind
READABLE = ("/usr", "/lib", "/lib64", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/etc/localtime")


class CannotConfine(RuntimeError):
    """This machine lacks what confinement needs, or refuses it; the message names it."""


def refuse_unknown_machine() -> None:
    """Raise CannotConfine where there is no filter for this kernel and processor."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise CannotConfine(
            f"unread code is confined on Linux with {' or '.join(MACHINES)} only, not on {sys.platform} with "
            f"{platform.machine()}"
        )


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; at once if it already has."""
    _prctl("PDEATHSIG", _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def hide_from_peers() -> None:
    """Keep this process's memory, environment and descriptors from other processes of the same user."""
    _prctl("DUMPABLE", _PR_SET_DUMPABLE, 0)


def confine(*, cpu_s: float, memory_bytes: int, readable: Sequence[str]) -> None:
    """Give up, irrevocably, everything but computing, reading files below `readable`, and the pipes that are open.

    cpu_s: processor seconds, rounded up to a whole number plus one; at their end the kernel kills. Without Landlock all
    files the user may read stay readable. Raises CannotConfine.
    """
    refuse_unknown_machine()
    _limit(cpu_s, memory_bytes)
    _drop_capabilities()
    _prctl("NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)
    _restrict_reading(readable)
    _install_filter(_filter())


def _limit(cpu_s: float, memory_bytes: int) -> None:
    seconds = math.ceil(cpu_s) + 1
    wanted = (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    )
    for name, value in wanted:
        _, hard = resource.getrlimit(name)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (limit, limit))


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(name: str, option: int, value: int, pointer: ctypes.c_void_p | None = None) -> None:
    zero = ctypes.c_ulong(0)
    third = zero if pointer is None else pointer
    if _library().prctl(ctypes.c_int(option), ctypes.c_ulong(value), third, zero, zero) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise CannotConfine(
            f"unread code cannot be confined here: prctl(PR_SET_{name}) is refused ({reason}); "
            "the kernel, or the profile of the container, must allow it"
        )


def _drop_capabilities() -> None:
    """Root without capabilities is a user that owns many files: it cannot raise limits, or look into processes."""
    header = ctypes.create_string_buffer(struct.pack("<Ii", _CAPABILITY_VERSION_3, 0))
    nothing = ctypes.create_string_buffer(24)
    if _library().syscall(MACHINES[platform.machine()][2], header, nothing) != 0:
        raise CannotConfine(
            f"unread code cannot be confined here: capset is refused ({os.strerror(ctypes.get_errno())})"
        )


# --- reading: Landlock -----------------------------------------------------------------------------------------------


def hides_files() -> bool:
    """Whether this kernel has Landlock."""
    version = _library().syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))
    return bool(version >= 1)


def _restrict_reading(readable: Sequence[str]) -> None:
    if not hides_files():
        return
    library = _library()
    handled = ctypes.create_string_buffer(struct.pack("<Q", _ALL_ACCESS), 8)
    ruleset = library.syscall(_LANDLOCK_CREATE, handled, ctypes.c_size_t(8), ctypes.c_uint32(0))
    if ruleset < 0:
        raise CannotConfine(f"Landlock makes no rules here: {os.strerror(ctypes.get_errno())}")
    for path in dict.fromkeys([*READABLE, *readable]):
        try:
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this machine
        access = _READ_FILE | (_READ_FOLDER if os.path.isdir(path) else 0)
        rule = ctypes.create_string_buffer(struct.pack("<Qi", access, folder), 12)
        failed = library.syscall(_LANDLOCK_ADD, ruleset, _LANDLOCK_BENEATH, rule, ctypes.c_uint32(0)) != 0
        os.close(folder)
        if failed:
            raise CannotConfine(f"Landlock takes no rule for {path}: {os.strerror(ctypes.get_errno())}")
    if library.syscall(_LANDLOCK_RESTRICT, ruleset, ctypes.c_uint32(0)) != 0:
        raise CannotConfine(f"Landlock is refused here: {os.strerror(ctypes.get_errno())}")
    os.close(ruleset)


# --- everything else: a seccomp filter -------------------------------------------------------------------------------


def _filter() -> list[Instruction]:
    """The filter for this machine and this very process."""
    column, architecture, _ = MACHINES[platform.machine()]
    own = (os.getpid(), 0)
    # Reading alone: neither write access, nor creating, nor truncating; O_TMPFILE needs write access.
    writes = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for numbers in ALLOWED.values():
        program += _block(numbers[column], [(_RETURN, 0, 0, _ALLOW)])
    conditions = {
        "open": _without_bits(1, writes),
        "openat": _without_bits(2, writes),
        "kill": _one_of(0, own[:1]),
        "tkill": _one_of(0, own[:1]),
        "tgkill": _one_of(0, own[:1]),
        "prlimit64": _one_of(0, own),
        # Duplicates and flags; not the owner of a descriptor, who is sent a signal of one's choice.
        "fcntl": _one_of(1, (0, 1, 2, 3, 4, 1030)),
        "ioctl": [(_RETURN, 0, 0, _REFUSE | errno.ENOTTY)],
    }
    for name, body in conditions.items():
        program += _block(CONDITIONAL[name][column], body)
    return [
        *program,
        (_AT_LEAST, 0, 2, _FIRST_COMMON),
        (_AT_LEAST, 1, 0, _X32),
        (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),
    ]


def _block(number: int | None, body: list[Instruction]) -> list[Instruction]:
    """`body`, which ends in a return, for one system call."""
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _without_bits(argument: int, bits: int) -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _ARGUMENTS + 8 * argument),
        (_ANY_BIT, 0, 1, bits),
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _one_of(argument: int, values: Sequence[int]) -> list[Instruction]:
    tests = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [
        (_LOAD, 0, 0, _ARGUMENTS + 8 * argument),
        *tests,
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _install_filter(program: Sequence[Instruction]) -> None:
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    memory = ctypes.create_string_buffer(code, len(code))
    described = _Program(len(program), ctypes.cast(memory, ctypes.c_void_p))
    _prctl("SECCOMP", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.cast(ctypes.byref(described), ctypes.c_void_p))
