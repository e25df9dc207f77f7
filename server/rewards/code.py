"""A shipped reward: Python code held against its tests. Configuration: `reward: "server.rewards.code:score"`.

The response's last fenced code block is the submission. The reference answer is its tests: Python text with assertions
about its functions, or JSON with inputs and outputs of a program: {"inputs": [...], "outputs": [...]} or
[{"input": ..., "output": ...}, ...]. docs/rewards.md says what a submission can and cannot do.
"""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any

from server.rewards.custom import time_left
from server.rewards.process import WALL_FACTOR
from server.rewards.verdicts import Score
from server.sandbox.confine import hide_from_peers, refuse_unknown_machine
from server.sandbox.examiner import FunctionTests, Tests, examine, read_cases
from server.sandbox.process import Budget

# Shares of the item's own limits, so that a submission's end is always this module's to report.
CPU_SHARE, WALL_SHARE = 0.8, 0.6
MEMORY_BYTES = 1 << 30
OUTPUT_BYTES = 4 << 20

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+.-]*)(?![\w+.-])[^\n`]*$", re.MULTILINE)
_PYTHON = {"", "python", "python3", "py"}


def score(prompt: str, response: str, answer: str) -> Score:
    """1 where the code of the response passes the tests. Raises BadTests (a ValueError) where the tests are at fault.

    A submission over its limits has failed: that is its reward, not a fault of the grader.
    """
    tests = read_tests(answer)
    code = last_code_block(response)
    if code is None:
        return Score(0, "no complete code block")
    left = time_left()
    budget = Budget(CPU_SHARE * left, WALL_SHARE * WALL_FACTOR * left, MEMORY_BYTES, OUTPUT_BYTES)
    reason = examine(code, tests, budget)
    return Score(float(reason is None), reason or "all tests passed")


def read_tests(answer: str) -> Tests:
    """The tests of a reference answer."""
    data: Any = None
    if answer.lstrip()[:1] in ("{", "["):
        try:
            data = json.loads(answer)
        except ValueError:
            data = None
    if isinstance(data, dict) and data.keys() >= {"inputs", "outputs"} and len(data["inputs"]) == len(data["outputs"]):
        return read_cases(list(zip(data["inputs"], data["outputs"], strict=True)))
    if isinstance(data, list) and all(isinstance(case, dict) and case.keys() >= {"input", "output"} for case in data):
        return read_cases([(case["input"], case["output"]) for case in data])
    return FunctionTests(answer)


def last_code_block(response: str) -> str | None:
    """The last fenced block of Python, None where there is none or the last fence does not close."""
    found, opened = None, None
    for fence in _FENCE.finditer(response):
        if opened is None:
            opened = fence
        elif fence[1].startswith(opened[1]) and not fence[2]:
            if opened[2].lower() in _PYTHON:
                found = textwrap.dedent(response[opened.end() + 1 : fence.start()])
            opened = None
    return found if opened is None else None


def prepare_worker() -> None:
    """Show, before anything is graded, that right is right here, wrong is wrong, and confinement confines."""
    refuse_unknown_machine()
    hide_from_peers()
    for body, expected in (("return x + 1", 1.0), ("return x", 0.0)):
        given = score("", f"```python\ndef f(x):\n    {body}\n```", "assert f(1) == 2")
        if given.reward != expected:
            raise RuntimeError(
                f"self-test: {body!r} is graded {given.reward:g} ({given.detail}); it must be {expected:g}"
            )
    given = score("", f"```python\n{_PROBE}\n```", "assert escapes() == []")
    if given.reward != 1.0:
        raise RuntimeError(f"self-test: confinement does not hold here ({given.detail})")


_PROBE = """
import os, socket

def escapes():
    found = []
    for name, attempt in (
        ("socket", socket.socket),
        ("process", os.fork),
        ("program", lambda: os.execv("/bin/true", ["true"])),
        ("file", lambda: open("/tmp/graft-probe", "w")),
        ("folder", lambda: os.mkdir("/tmp/graft-probe")),
        ("signal", lambda: os.kill(os.getppid(), 0)),
    ):
        try:
            attempt()
            found.append(name)
        except OSError:
            pass
    return found
"""
