"""Known data sets: where they are on the hub, which fields mean what, and how many problems they must have.

Every row was taken from the data set's own page on huggingface.co (docs/data.md says which). Nothing heavy is imported:
the configuration reads the presets.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "preset:"
GYM_PREFIX = "gym:"
GYM_REWARD = "server.rewards.gym:score"


@dataclass(frozen=True)
class Preset:
    """One data set.

    files: patterns of the files wanted, relative to the repository. rows: records the files must hold, None where the
    published copies differ. problems: distinct problems they must hold, where that is known to differ from the rows.
    unwrap: texts before and after the problem that are instructions, not problem. one_per_prompt: a prompt that comes
    again is read once, whatever answer it comes with.
    """

    repository: str
    split: str
    files: tuple[str, ...]
    prompt_field: str
    answer_field: str
    rows: int | None
    problems: int | None = None
    answer_format: str = "plain"
    subset: str | None = None
    subject_field: str | None = None
    level_field: str | None = None
    unwrap: tuple[str, str] = ("", "")
    one_per_prompt: bool = False

    def settings(self) -> dict[str, str | None]:
        """The keys of a data section that the preset fixes unless the configuration gives them."""
        return {
            "subset": self.subset,
            "split": self.split,
            "prompt_field": self.prompt_field,
            "answer_field": self.answer_field,
            "answer_format": self.answer_format,
            "subject_field": self.subject_field,
            "level_field": self.level_field,
        }


_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
_DAPO_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'

PRESETS: Mapping[str, Preset] = {
    "math-train": Preset(
        "DigitalLearningGmbH/MATH-lighteval", "train", ("data/train-*.parquet",), "problem", "solution", 7500,
        answer_format="boxed", subject_field="type", level_field="level",
    ),
    "math500": Preset(
        "HuggingFaceH4/MATH-500", "test", ("test.jsonl",), "problem", "answer", 500,
        subject_field="subject", level_field="level",
    ),
    "aime2024": Preset("HuggingFaceH4/aime_2024", "train", ("data/train-*.parquet",), "problem", "answer", 30),
    "aime2025": Preset("math-ai/aime25", "test", ("test.jsonl",), "problem", "answer", 30),
    "amc23": Preset("math-ai/amc23", "test", ("test-*.parquet",), "question", "answer", 40),
    "minerva": Preset("math-ai/minervamath", "test", ("test.jsonl",), "question", "answer", 272),
    "gsm8k-train": Preset(
        "openai/gsm8k", "train", ("main/train-*.parquet",), "question", "answer", 7473,
        answer_format="hashes", subset="main",
    ),
    "gsm8k-test": Preset(
        "openai/gsm8k", "test", ("main/test-*.parquet",), "question", "answer", 1319,
        answer_format="hashes", subset="main",
    ),
    # 1,791,700 rows as published: every problem about a hundred times.
    "dapo-math-17k": Preset(
        "BytedTsinghua-SIA/DAPO-Math-17k", "train", ("data/dapo-math-17k.parquet",),
        "prompt.0.content", "reward_model.ground_truth", None, 17398,
        unwrap=(_DAPO_BEFORE, _DAPO_AFTER), one_per_prompt=True,
    ),
}  # fmt: skip


def source_settings(source: str) -> Mapping[str, str | None]:
    """The keys of a data section that its source fixes unless the configuration gives them. ValueError as below."""
    preset = find_preset(source)
    if preset is not None:
        return preset.settings()
    return {"reward": GYM_REWARD} if source.startswith(GYM_PREFIX) else {}


def find_preset(source: str) -> Preset | None:
    """The preset a source names, None for any other kind of source. ValueError names the nearest one there is."""
    if not source.startswith(PREFIX):
        return None
    name = source.removeprefix(PREFIX)
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f"did you mean '{PREFIX}{near[0]}'?" if near else f"there are {', '.join(PREFIX + n for n in PRESETS)}"
    raise ValueError(f"there is no data set {source!r}; {hint}")
