"""Processor time of grading: boxed integers (no worker), cached answers, and the math-verify path by kind of answer.

    python tests/benchmarks/reward_grading.py

Prints CPU microseconds per item: of this process for the first two, of the worker for the rest.
"""

from __future__ import annotations

import time

from server.rewards import RewardService
from server.rewards.process import processor_seconds
from server.rewards.rules import decide

ITEMS = 768
SENTENCES = "First we multiply, then we add, and the result follows from the two lines above. " * 12
KINDS = {
    "polynomial, right": ("x^2+{i}x", "x(x+{i})"),
    "polynomial, wrong": ("x^2+{i}x", "x(x+{i}+1)"),
    "surd, right": (r"{i}+\sqrt{{2}}", r"\sqrt{{2}}+{i}"),
    "surd, wrong": (r"{i}+\sqrt{{2}}", r"\sqrt{{3}}+{i}"),
    "pi": (r"\frac{{{i}\pi}}{{2}}", r"{i}\pi/2"),
    "tuple": ("({i},2)", "({i}.0,4/2)"),
    "set": (r"\{{{i},2,-1\}}", r"\{{-1,{i},2\}}"),
    "interval": ("[0,{i}]", r"0 \le x \le {i}"),
    "equation": ("2x+4y-{i}=0", "4y=-2x+{i}"),
}


def integers(service: RewardService) -> None:
    """A step of boxed integers as the demo's: three rounds, the caches of the rules emptied before each."""
    pairs = [(str(i % 61), SENTENCES + rf"\boxed{{{i % 7}}}") for i in range(ITEMS)]
    for _ in range(3):
        decide.cache_clear()
        before = time.process_time()
        service.grade(pairs)
        spent = time.process_time() - before
        print(f"{ITEMS} boxed integers: {spent * 1000:.2f} ms, {spent / ITEMS * 1e6:.1f} us an item")


def expressions(service: RewardService, count: int = 40) -> None:
    """Distinct expressions of each kind through one worker, then all of them again from the cache."""
    service.grade([("x+1", r"\boxed{1+x}")])
    (pid,) = service.worker_pids()
    everything = []
    for kind, (gold, answer) in KINDS.items():
        pairs = [(gold.format(i=i), rf"\boxed{{{answer.format(i=i)}}}") for i in range(3, 3 + count)]
        before, here = processor_seconds(pid), time.process_time()
        rewards = [verdict.reward for verdict in service.grade(pairs)]
        worker, parent = processor_seconds(pid) - before, time.process_time() - here
        print(
            f"{kind:20} worker {worker / count * 1000:6.1f} ms, parent {parent / count * 1000:5.2f} ms an item, "
            f"{sum(rewards):.0f} of {count} right"
        )
        everything += pairs
    before = time.process_time()
    service.grade(everything)
    print(f"cached: {(time.process_time() - before) / len(everything) * 1e6:.1f} us an item")


if __name__ == "__main__":
    with RewardService() as shared:
        integers(shared)
        expressions(shared)
