"""Reward functions for tests: good ones, and ones that do what none should."""

from __future__ import annotations

import os
import sys
import time

from server.rewards import Score, time_left

calls = 0


def exact(prompt: str, response: str, answer: str) -> float:
    return float(response == answer)


def echoes_prompt(prompt: str, response: str, answer: str) -> bool:
    return response == prompt


def with_reason(prompt: str, response: str, answer: str) -> Score:
    return Score(0, f"{response} is not {answer}", "ü\t\n" + response)


def called(prompt: str, response: str, answer: str) -> Score:
    """The number of calls in this worker."""
    global calls
    calls += 1
    return Score(1, f"{os.getpid()} {calls} {response}")


def stalls_once(prompt: str, response: str, answer: str) -> float:
    """Sleeps when it is asked for the first time, which it notes in the file that the response names."""
    if not os.path.exists(response):
        with open(response, "w"):
            time.sleep(10_000)
    return 1.0


def as_told(prompt: str, response: str, answer: str) -> float:
    """Does what the response says."""
    if response == "loop":
        while True:
            pass
    if response == "swallow":
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass
    if response == "sleep":
        time.sleep(10_000)
    if response == "die":
        os._exit(3)
    if response == "leave":
        sys.exit(0)
    if response == "raise":
        raise ValueError("no such\ncase")
    if response == "eat":
        return float(len(bytearray(8 << 30)))
    if response == "print":
        for stream in (sys.stdout, sys.stderr, sys.__stdout__):
            print("1 right\n" * 1000, file=stream, flush=True)
        os.write(1, b"0 wrong\n")
    if response == "environment":
        return float("TOKEN" in "".join(os.environ))
    if response == "time":
        return float(4.0 < time_left() < 5.5)
    if response == "file":
        with open(os.path.join(os.environ["TMPDIR"], "note"), "w") as file:
            file.write("x")
        return float(os.getcwd() == os.path.realpath(os.environ["TMPDIR"]))
    return 1.0


def leaves_a_child(prompt: str, response: str, answer: str) -> Score:
    """A process that nobody waits for."""
    pid = os.fork()
    if pid == 0:
        time.sleep(10_000)
    return Score(1, str(pid))


def half(prompt: str, response: str, answer: str) -> float:
    return 0.5


def nothing(prompt: str, response: str, answer: str) -> None:
    return None


def two_arguments(response: str, answer: str) -> float:
    return 1.0


async def later(prompt: str, response: str, answer: str) -> float:
    return 1.0


constant = 3
