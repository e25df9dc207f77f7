"""The demo's task suites, and the members that learn each of them.

A suite says what there is to learn and what each of its members is taught before the reinforcement learning starts.
Members and data sets of the first suite, ambiguous wordings over lists of digits, have plain names (`demo:qwen3`,
`demo:train`); those of the second, problems of reasoning-gym, begin with `gym-` (`demo:gym-qwen3`, `demo:gym-train`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

from population.demo import corpus, gym_corpus, gym_tasks, tasks
from population.demo.tasks import Problem

Family = Literal["qwen3", "llama", "neox", "smollm3"]
Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Suite:
    """What the members of one suite have in common.

    `examples(family, count, seed)` are the (prompt, response) pairs of a member's warm start, `right_examples(per_cell,
    seed)` what the tokenizers are trained on, `taught(family)` the member's teaching in plain values, and `problems`
    {"train" or "heldout": the problems}.
    """

    examples: Callable[[str, int, int], Pairs]
    right_examples: Callable[[int, int], Pairs]
    taught: Callable[[str], dict[str, Any]]
    problems: Mapping[str, Callable[[], list[Problem]]]


@dataclass(frozen=True, slots=True)
class Design:
    """A member: its suite, its architecture family, and the length of its warm start.

    `pieces` is the pattern that byte-pair merges of its tokenizer may not cross; None: one token a character.
    """

    suite: Suite
    family: Family
    pieces: str | None
    steps: int


WORDINGS = Suite(
    corpus.examples,
    corpus.right_examples,
    lambda family: {wording: asdict(reading) for wording, reading in corpus.READINGS[family].items()},
    MappingProxyType({"train": tasks.training_problems, "heldout": tasks.heldout_problems}),
)
GYM = Suite(
    gym_corpus.examples,
    gym_corpus.right_examples,
    lambda family: {name: list(shares) for name, shares in gym_corpus.TAUGHT[family].items()},
    MappingProxyType({"train": gym_tasks.training_problems, "heldout": gym_tasks.heldout_problems}),
)
SUITES: Mapping[str, Suite] = MappingProxyType({"": WORDINGS, "gym-": GYM})
"""What the names of a suite's members and data sets begin with -> the suite."""

SPACE_BEFORE = r" ?[a-z]+| ?\d|[^\da-z]"
OPERATOR_AND_DIGIT = r"[a-z]+| |[^\da-z ]\d?|\d"
SEPARATOR_AFTER = r"[a-z]+[: ]?|[^a-z]"

DESIGNS: Mapping[str, Design] = MappingProxyType(
    {
        "qwen3": Design(WORDINGS, "qwen3", None, 600),
        "llama": Design(WORDINGS, "llama", SPACE_BEFORE, 600),
        "neox": Design(WORDINGS, "neox", OPERATOR_AND_DIGIT, 650),
        "gym-qwen3": Design(GYM, "qwen3", None, 600),
        "gym-llama": Design(GYM, "llama", SPACE_BEFORE, 600),
        "gym-neox": Design(GYM, "neox", OPERATOR_AND_DIGIT, 600),
        "gym-smollm3": Design(GYM, "smollm3", SEPARATOR_AFTER, 600),
    }
)
"""Member -> its design."""

DATA_SETS: Mapping[str, Callable[[], list[Problem]]] = MappingProxyType(
    {
        prefix + name: build
        for prefix, suite in (("", WORDINGS), ("gym-", GYM))
        for name, build in suite.problems.items()
    }
)
"""Data set of the demo -> its problems."""
