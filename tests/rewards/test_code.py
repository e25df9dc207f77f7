"""Code held against its tests: what passes, what does not, and what a hostile submission costs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from server.rewards import Item, RewardService, Verdict, VerdictCode
from server.rewards.code import last_code_block, read_tests
from server.sandbox.examiner import BadTests, FunctionTests, ProgramTests
from tests.confinement import skip_where_code_cannot_be_confined

NAME = "server.rewards.code:score"
PATIENCE_S = 60.0
HOSTILE_S = 1.5  # what a hostile submission may cost; the others may take what a loaded machine needs
MARK = f"UTC0GRAFT{os.getpid()}"
SECRET = 918273645546


def item(code: str, tests: str) -> Item:
    return Item(tests, f"I would write\n```python\n{code}\n```\nand that is all.", "Write f.", NAME)


@pytest.fixture(scope="module", autouse=True)
def marked() -> Iterator[None]:
    """An entry in the environment of all that these tests start, so that another session's processes do not count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", MARK)
        yield


def confined_processes() -> list[psutil.Process]:
    """Every process running a submission of these tests, whoever its parent is."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if "server.sandbox.submission" in command and process.environ().get("TZ") == MARK:
                found.append(process)
    return found


def wait_until_all_have_ended() -> None:
    """A process whose examiner was killed is ended by the kernel a moment later."""
    deadline = time.monotonic() + PATIENCE_S
    while any(process.status() != psutil.STATUS_ZOMBIE for process in confined_processes()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def service() -> Iterator[RewardService]:
    """One worker for all tests of this file, so that whatever one submission leaves behind meets the next."""
    skip_where_code_cannot_be_confined()
    with RewardService(timeout_s=PATIENCE_S) as shared:
        shared.load_reward(NAME)
        yield shared


def graded(service: RewardService, code: str, tests: str, timeout_s: float = PATIENCE_S) -> Verdict:
    (verdict,) = service.grade([item(code, tests)], timeout_s=timeout_s)
    return verdict


# --- what passes ------------------------------------------------------------------------------------------------------

RIGHT = {
    "function": ("def f(x):\n    return 2 * x", "assert f(3) == 6\nassert f(-1) == -2"),
    "check called at the end": ("def f(x):\n    return x", "def check(g):\n    assert g(2) == 2\n\ncheck(f)"),
    "test functions": ("def f(x):\n    return x", "def test_same():\n    assert f(1) == 1"),
    "tests of an exception": (
        "class Negative(ValueError):\n    pass\n\ndef f(x):\n    raise Negative('below zero')",
        "try:\n    f(-1)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'below zero'",
    ),
    "containers": (
        "def f(x):\n    return [(1, 2.5), {'a': {3, 4}}, None, b'x', 10**40, float('inf'), 1j, frozenset([5])]",
        "assert f(0) == [(1, 2.5), {'a': {3, 4}}, None, b'x', 10**40, float('inf'), 1j, frozenset([5])]",
    ),
    "in place": ("def f(x):\n    x.sort()", "a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]"),
    "class": (
        "class Stack:\n    def __init__(self):\n        self.items = []\n    def push(self, x):\n"
        "        self.items.append(x)\n    def pop(self):\n        return self.items.pop()\n"
        "    def __len__(self):\n        return len(self.items)",
        "s = Stack()\ns.push(1)\ns.push([2])\nassert len(s) == 2\nassert s.pop() == [2] and s.items == [1]",
    ),
    "own equality": (
        "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\n    def __add__(self, o):\n"
        "        return P(self.x + o.x)",
        "assert P(1) + P(2) == P(3)\nassert P(1) != P(2)",
    ),
    "generator": ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2]\nassert sum(f(4)) == 6"),
    "solution class": (
        "class Solution:\n    def twice(self, x: int) -> int:\n        return 2 * x",
        "assert Solution().twice(x=4) == 8",
    ),
    "names of the tests that are modules elsewhere": (
        "def f(x):\n    return x",
        "nt = 'a'\nassert f(nt).upper() == nt.upper()",
    ),
    "module the tests forgot to import": ("def f():\n    return 0.1 + 0.2", "assert math.isclose(f(), 0.3)"),
    "prints and a main part": (
        "print('hello')\ndef f(x):\n    print(x)\n    return x\nif __name__ == '__main__':\n    f(input())",
        "assert f(1) == 1",
    ),
    "standard library": (
        "import collections, decimal, functools, heapq, itertools, json, math, re, statistics, string, typing\n"
        "def f(x):\n    return math.comb(x, 2)",
        "assert f(5) == 10",
    ),
    "program": ("n = int(input())\nprint(sum(map(int, input().split())))", '[{"input": "2\\n3 4\\n", "output": "7"}]'),
    "program that reads all": (
        "import sys\nprint(len(sys.stdin.read()), open(0).read() == '')",
        json.dumps({"inputs": ["abc", "x" * 200_000], "outputs": ["3 True\n", "200000 True\n"]}),
    ),
    "program that ends early": (
        "print(1)\nraise SystemExit",
        json.dumps({"inputs": ["y" * 300_000], "outputs": ["1"]}),
    ),
    "program with a main part": ("if __name__ == '__main__':\n    print('yes')", '[{"input": "", "output": "yes\\n"}]'),
}


@pytest.mark.parametrize("case", RIGHT)
def test_these_pass(service: RewardService, case: str) -> None:
    verdict = graded(service, *RIGHT[case])
    assert verdict.code is VerdictCode.RIGHT, verdict.detail


WRONG = {
    "wrong value": ("def f(x):\n    return x", "assert f(3) == 6", "AssertionError in line 1"),
    "no such name": ("def g(x):\n    return x", "assert f(3) == 6", "NameError in line 1"),
    "does not run": ("def f(x)\n    return x", "assert f(3) == 6", "SyntaxError when the submission was run"),
    "raises": ("def f(x):\n    return 1 / 0", "\nassert f(3) == 6", "ZeroDivisionError in line 2"),
    "asks for input": ("x = input()\ndef f(x):\n    return 6", "assert f(3) == 6", "EOFError"),
    "wrong output": ("print(3)", '[{"input": "", "output": "4"}]', "case 1 of 1: another output"),
    "second case": ("print(1)", '[{"input": "", "output": "1"}, {"input": "", "output": "2"}]', "case 2 of 2"),
    "exit status": ("print(1)\nraise SystemExit(3)", '[{"input": "", "output": "1"}]', "ended with status 3"),
}


@pytest.mark.parametrize("case", WRONG)
def test_these_fail_and_say_why(service: RewardService, case: str) -> None:
    code, tests, detail = WRONG[case]
    verdict = graded(service, code, tests)
    assert verdict.code is VerdictCode.WRONG
    assert verdict.graded
    assert detail in verdict.detail


def test_a_response_without_a_complete_block_fails(service: RewardService) -> None:
    verdicts = service.grade([Item("assert f(1)", text, "", NAME) for text in ("def f(x): ...", "```python\ndef f(")])
    assert [(v.code, v.detail) for v in verdicts] == [(VerdictCode.WRONG, "no complete code block")] * 2


@pytest.mark.parametrize(
    ("tests", "detail"),
    [
        ("assert f(", "the tests are not Python"),
        ("assert f(1) == 1\nreturn", "the tests are not Python"),
        ("x = 1", "never use the submission"),
        ("def check(g):\n    assert g(1) == 1", "never use the submission"),
        ('{"inputs": [], "outputs": []}', "at least one"),
        ('[{"input": 3, "output": "3"}]', "pairs of texts"),
    ],
)
def test_bad_tests_are_no_fault_of_the_submission(service: RewardService, tests: str, detail: str) -> None:
    verdict = graded(service, "def f(x):\n    return x", tests)
    assert verdict.code is VerdictCode.ERROR
    assert detail in verdict.detail


# --- what is hostile --------------------------------------------------------------------------------------------------

EQUAL_TO_ALL = """
class Any(%s):
    def __eq__(self, other): return True
    __hash__ = object.__hash__
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __bool__ = lambda self, *other: True
    def __sub__(self, other): return self
    __rsub__ = __add__ = __abs__ = __round__ = __sub__
    def __float__(self): return 6.0
def f(x):
    return Any()
"""
LOOK_FOR_THE_SECRET = """
import gc, os, sys
def seen():
    frame = sys._getframe()
    while frame is not None:
        yield from [repr(v) for v in list(frame.f_locals.values()) + list(frame.f_globals.values())]
        frame = frame.f_back
    for thing in gc.get_objects():
        if isinstance(thing, (list, tuple, dict, set, str, bytes)):
            yield repr(thing)[:100_000]
    for pid in ("self", os.getppid(), *range(os.getpid() - 20, os.getpid())):
        for name in ("mem", "environ", "cmdline", "maps"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    yield repr(file.read(1_000_000))
            except (OSError, ValueError):
                pass
PART = "9182" + "73645"
def f(x):
    for text in seen():
        at = text.find(PART)
        while at >= 0:
            digits = text[at:at + 12]
            if digits.isdigit():
                return int(digits)
            at = text.find(PART, at + 1)
"""
FORGED_REPLY = """
import os
for descriptor in range(3, 20):
    try:
        os.write(descriptor, b'%s\\n' * 10)
    except OSError:
        pass
def f(x):
    return 0
"""
NO_OTHER = {
    "loop": "def f(x):\n    while True:\n        pass",
    "loop without end of signals": (
        "import signal\nfor number in range(1, 65):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass"
    ),
    "endless number": "def f(x):\n    return 9 ** 9 ** 9",
    "fork bomb": "import os\nwhile True:\n    os.fork()",
    "fork bomb that does not give up": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    ),
    "double fork and new session": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(10_000)\n"
        "    os._exit(0)\ndef f(x):\n    return 6"
    ),
    "raw clone": (
        "import ctypes, os\nCLONE = 56 if os.uname().machine == 'x86_64' else 220\n"
        "def f(x):\n    return 6 if ctypes.CDLL(None).syscall(CLONE, 17, 0, 0, 0, 0) >= 0 else 0"
    ),
    "shell": "import subprocess\nsubprocess.run(['sleep', '10000'])\ndef f(x):\n    return 6",
    "system": "import os\ndef f(x):\n    return 6 if os.system('true') == 0 else 0",
    "pool": "import multiprocessing\ndef f(x):\n    return multiprocessing.Pool(4).map(abs, [6])[0]",
    "threads": "import threading\nthreading.Thread(target=print).start()\ndef f(x):\n    return 6",
    "exec": "import os\nos.execv('/bin/sleep', ['sleep', '10000'])",
    "memory": "kept = []\nwhile True:\n    kept.append(bytearray(1 << 26))",
    "memory at once": "def f(x):\n    return len(bytearray(1 << 40))",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x)",
    "prints": "while True:\n    print('x' * 10_000)",
    "long value": "def f(x):\n    return 'x' * (1 << 27)",
    "endless values": "def f(x):\n    return iter(int, 1)",
    "exit": "import sys\nsys.exit(0)",
    "exit now": "import os\nos._exit(0)",
    "exit when called": "import os\ndef f(x):\n    os._exit(0)",
    "exit quietly": "def f(x):\n    raise SystemExit(0)",
    "abort": "import os\nos.abort()",
    "end itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "end its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef f(x):\n    return 6",
    "end everyone": "import os\nos.kill(-1, 0)\ndef f(x):\n    return 6",
    "own limits": (
        "import resource\nfor pid in (0, __import__('os').getppid()):\n"
        "    resource.prlimit(pid, resource.RLIMIT_CPU, (10**6, 10**6))\ndef f(x):\n    return 6"
    ),
    "equal to everything": EQUAL_TO_ALL % "",
    "a number equal to everything": EQUAL_TO_ALL % "int",
    "names of the tests": (
        "import builtins\ndef abs(x): return 0\ndef all(x): return True\ndef check(*a): return None\n"
        "class AssertionError(Exception): pass\nbuiltins.AssertionError = AssertionError\nbuiltins.abs = abs\n"
        "def f(x):\n    return 0"
    ),
    "its own examiner": (
        "import sys\nfor name, module in list(sys.modules.items()):\n    if name.startswith('server'):\n"
        "        for key in list(vars(module)):\n            if not key.startswith('__'):\n"
        "                setattr(module, key, lambda *a, **k: None)\ndef f(x):\n    return 0"
    ),
    "forged garbage": FORGED_REPLY % "nonsense",
    "forged depth": FORGED_REPLY % ("[" * 50_000),
    "forged handles": FORGED_REPLY % '{"value": ["h", true]}',
    "forged exceptions": FORGED_REPLY % '{"raised": [["SystemExit"], {}, 3], "text": 5}',
    "forged refusal": FORGED_REPLY % '{"value": null}\\n{"raised": ["ValueError"]}',
    "a name without end": "f = []\nf.append(f)",
    "a name that raises": "class L(list):\n    def __iter__(self):\n        raise ValueError\nf = L([1])",
    "looks for the results": LOOK_FOR_THE_SECRET,
}
TESTS = f"""
import math
def check(a, b):
    assert abs(a - b) < 0.5

check(f(3), 6)
assert f(3) == 6
assert f(4) == {SECRET}
"""


@pytest.mark.parametrize("case", NO_OTHER)
def test_a_hostile_submission_has_failed_and_costs_nothing_else(service: RewardService, case: str) -> None:
    verdict = graded(service, NO_OTHER[case], TESTS, timeout_s=HOSTILE_S)
    following = graded(service, f"def f(x):\n    return {case!r}", f"assert f(0) == {case!r}")
    assert (verdict.code, verdict.graded) == (VerdictCode.WRONG, True), verdict.detail
    assert following.code is VerdictCode.RIGHT, following.detail
    wait_until_all_have_ended()
    assert service.counters()["started"] == 1  # the worker has noticed nothing


def test_a_library_of_the_tests_takes_no_address_from_a_submission(service: RewardService) -> None:
    for memory in ("(8, True)", "struct.pack('<d', 6.0)"):
        code = (
            "import struct\nclass A:\n    __array_interface__ = "
            f"{{'version': 3, 'shape': (1,), 'typestr': '<f8', 'data': {memory}}}\ndef f(x):\n    return A()"
        )
        verdict = graded(service, code, "import numpy as np\nassert np.allclose(f(3), 6)")
        assert (verdict.code, verdict.detail) == (VerdictCode.WRONG, "TypeError in line 2 of the tests")


def test_a_reply_that_is_no_answer_leaves_nothing_in_the_detail(service: RewardService) -> None:
    verdict = graded(service, FORGED_REPLY % '{"value": ["what was read somewhere"]}', TESTS)
    assert (verdict.code, verdict.detail) == (VerdictCode.WRONG, "the submission replied what is no value")


def test_expected_results_are_nowhere_in_reach(service: RewardService) -> None:
    assert graded(service, LOOK_FOR_THE_SECRET, f"assert f(0) == {SECRET}").code is VerdictCode.WRONG
    # The search finds what is in reach.
    assert graded(service, LOOK_FOR_THE_SECRET, f"assert f({SECRET}) == {SECRET}").code is VerdictCode.RIGHT


SLEEPING = (
    ("import time\ndef f(x):\n    time.sleep(10_000)", "assert f(1) == 1"),
    ("import time\ntime.sleep(10_000)", '[{"input": "", "output": ""}]'),
)


def test_a_submission_that_sleeps_is_ended_by_the_clock(service: RewardService) -> None:
    for code, tests in SLEEPING:
        verdict = graded(service, code, tests, 0.5)
        assert verdict.code is VerdictCode.WRONG, verdict.detail
        # The examiner itself is ended where a loaded machine does not let it come to that.
        assert "on the clock" in verdict.detail or verdict.detail == "the tests came to no end"
    wait_until_all_have_ended()


def test_a_program_that_prints_without_end_is_ended_by_its_output(service: RewardService) -> None:
    verdict = graded(service, "while True:\n    print('x' * 100_000)", '[{"input": "", "output": "x"}]', HOSTILE_S)
    assert verdict.code is VerdictCode.WRONG
    assert "bytes of output" in verdict.detail or "processor time" in verdict.detail


def test_files_are_neither_written_nor_changed(service: RewardService, tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("as it was")
    kept.chmod(0o666)
    tmp_path.chmod(0o777)
    code = f"""
import os, shutil, tempfile
FOLDER, KEPT = {str(tmp_path)!r}, {str(kept)!r}
new = os.path.join(FOLDER, "new")
attempts = [
    lambda: open(new, "w"), lambda: open(new, "x"), lambda: open(KEPT, "a"), lambda: open(KEPT, "r+"),
    lambda: os.open(new, os.O_RDONLY | os.O_CREAT), lambda: os.open(KEPT, os.O_RDONLY | os.O_TRUNC),
    lambda: os.open(FOLDER, os.O_RDWR | os.O_TMPFILE), lambda: os.truncate(KEPT, 0), lambda: os.unlink(KEPT),
    lambda: os.rename(KEPT, new), lambda: os.link(KEPT, new), lambda: os.symlink(KEPT, new), lambda: os.mkdir(new),
    lambda: os.mkfifo(new), lambda: os.chmod(KEPT, 0), lambda: os.utime(KEPT, (0, 0)), lambda: os.rmdir(FOLDER),
    lambda: shutil.rmtree(FOLDER), lambda: tempfile.mkdtemp(), lambda: tempfile.TemporaryFile(),
    lambda: os.memfd_create("x"), lambda: os.setxattr(KEPT, "user.x", b"y"), lambda: os.chown(KEPT, 1, 1),
    lambda: os.open("/dev/shm/graft", os.O_CREAT | os.O_RDWR), lambda: os.chdir(FOLDER),
]
def f():
    done = []
    for number, attempt in enumerate(attempts):
        try:
            attempt()
            done.append(number)
        except OSError:
            pass
    return done
"""
    verdict = graded(service, code, "assert f() == []")
    assert verdict.code is VerdictCode.RIGHT, verdict.detail
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    assert kept.read_text() == "as it was"


def test_no_connection_leaves_a_submission(service: RewardService, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "socket"))
        local.listen()
        code = f"""
import socket, asyncio
def attempt(work):
    try:
        work()
        return True
    except OSError:
        return False
def f():
    return [
        attempt(lambda: socket.create_connection(("127.0.0.1", {tcp.getsockname()[1]}))),
        attempt(lambda: socket.socket(socket.AF_UNIX).connect({str(tmp_path / "socket")!r})),
        attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))),
        attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
        attempt(lambda: socket.socketpair()),
        attempt(lambda: socket.getaddrinfo("localhost.localdomain", 80)),
        attempt(lambda: asyncio.new_event_loop()),
    ]
"""
        verdict = graded(service, code, "assert f() == [False] * 7")
        assert verdict.code is VerdictCode.RIGHT, verdict.detail
        for server in (tcp, local):
            server.settimeout(0)
            with pytest.raises(BlockingIOError):
                server.accept()


def test_a_submission_sees_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_where_code_cannot_be_confined()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with RewardService() as service:
        service.load_reward(NAME)
        code = "import os\ndef f():\n    return sorted(os.environ)"
        tests = "assert not {'HF_TOKEN', 'AWS_SECRET_ACCESS_KEY', 'PYTHONPATH', 'HOME'} & set(f())"
        assert graded(service, code, tests).code is VerdictCode.RIGHT


def test_a_submission_ends_with_a_killed_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_where_code_cannot_be_confined()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with RewardService(timeout_s=PATIENCE_S) as service:
        service.load_reward(NAME)
        future = service.submit([item("import time\ntime.sleep(10_000)", "assert f(1)")])
        for deaths in (1, 2):
            deadline = time.monotonic() + PATIENCE_S
            while not (confined_processes() and service.worker_pids()):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            os.kill(service.worker_pids()[0], signal.SIGKILL)
            while service.counters().get("died_busy") != deaths:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        (verdict,) = future.result(PATIENCE_S)
        assert verdict.code is VerdictCode.CRASH
        assert graded(service, "def f(x):\n    return x", "assert f(1) == 1").code is VerdictCode.RIGHT
    wait_until_all_have_ended()
    assert list(tmp_path.iterdir()) == []


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```python\na\n```\nbetter:\n```\nb\n```", "b\n"),
        ("```py\na\n```\n```text\noutput\n```", "a\n"),
        ("```python\na\n```\nand now\n```python\nb", None),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("~~~python\na\n~~~", "a\n"),
        ("  ```Python title=x\n  a\n    b\n  ```", "a\n  b\n"),
        ("```javascript\na\n```", None),
        ("no code", None),
        ("```" + "a" * 50_000 + "`", None),  # at once
        ("```python\n```", ""),
    ],
)
def test_the_last_complete_python_block_is_the_submission(response: str, code: str | None) -> None:
    assert last_code_block(response) == code


def test_tests_are_python_or_cases() -> None:
    assert read_tests("assert f(1)") == FunctionTests("assert f(1)")
    assert read_tests("[f(1)]") == FunctionTests("[f(1)]")
    assert read_tests('[{"input": "a", "output": "b", "note": 1}]') == ProgramTests((("a", "b"),))
    assert read_tests('{"inputs": ["a", "c"], "outputs": ["b", "d"]}') == ProgramTests((("a", "b"), ("c", "d")))
    with pytest.raises(BadTests):
        read_tests("[]")
