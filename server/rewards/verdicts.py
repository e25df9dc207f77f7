"""What a grader says about one answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class VerdictCode(IntEnum):
    """The outcome of grading; stored as its number."""

    RIGHT = 1
    WRONG = 0
    NO_ANSWER = -1
    TIMEOUT = -2
    CRASH = -3
    ERROR = -4
    BAD_GOLD = -5
    TOO_LONG = -6


class Item(NamedTuple):
    """One response to grade: against `answer` by the mathematics verifier, or by the reward function named
    `module:function`, which is given the prompt's text too.
    """

    answer: str
    response: str
    prompt: str = ""
    reward: str | None = None


class Score(NamedTuple):
    """What a reward function may return in place of the bare number: the reward (0 or 1), the reason for it, and the
    answer it found in the response (None: there is none to speak of; majority votes need it).
    """

    reward: float
    detail: str = ""
    extracted: str | None = None


class Outcome(NamedTuple):
    """A verdict as a worker gives it and the cache keeps it. extracted: only from reward functions."""

    code: VerdictCode
    detail: str = ""
    extracted: str | None = None


UNGRADED = frozenset({VerdictCode.TIMEOUT, VerdictCode.CRASH, VerdictCode.ERROR, VerdictCode.BAD_GOLD})


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict on one response.

    extracted: the answer found in the response as it was written, None where there is none.
    detail: one line for people: which rule decided, or what went wrong.
    """

    code: VerdictCode
    extracted: str | None = None
    detail: str = ""

    @property
    def reward(self) -> float:
        """1.0 for RIGHT, 0.0 for everything else."""
        return 1.0 if self.code is VerdictCode.RIGHT else 0.0

    @property
    def graded(self) -> bool:
        """False where the grader failed, not the response: such a response counts as an error of its group."""
        return self.code not in UNGRADED
