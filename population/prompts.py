"""Problems and their order: data sets of verifiable problems, and prompt batches with an exact cursor.

A batch is a pure function of (data set, seed, step): nothing is consumed, so a resumed run sees the same prompts.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from population.config import DataConfig
from population.data.answers import reference_answer
from population.data.presets import Preset, find_preset
from population.data.records import field_value
from population.data.sources import rows
from population.errors import DataError

MAX_PROBLEMS_NAMED = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """One verifiable problem. ``key`` is a 53-bit hash of data set, prompt text and answer: stable across runs.
    ``reward``: the function that scores its responses, None for mathematics.
    """

    key: int
    prompt: str
    answer: str
    dataset: str
    subject: str | None = None
    level: int | None = None
    reward: str | None = None


def problem_key(dataset: str, prompt: str, answer: str) -> int:
    """53-bit key of a problem (browsers round larger integers)."""
    text = "\x00".join((dataset, prompt, answer))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 11


def load_problems(
    data: DataConfig, unparsable: Callable[[Sequence[str]], Sequence[int]]
) -> tuple[list[Problem], list[Problem]]:
    """Read a data set; returns (problems, skipped ones whose answer no rule can read).

    ``unparsable(answers)`` gives the positions of answers that cannot be verified; they are refused by name, or
    skipped and returned for the record, as ``data.unparsable`` says. Duplicates of a problem are read once. A preset
    must hold as many records or problems as it is known to. Raises :class:`DataError`.
    """
    found = _read(data)
    # Only mathematics knows whether an answer can be graded against without a response.
    bad = sorted(set(unparsable([problem.answer for problem in found]))) if data.reward is None else []
    if bad and data.unparsable == "refuse":
        named = "; ".join(f"{found[i].answer!r} of {found[i].prompt[:40]!r}" for i in bad[:MAX_PROBLEMS_NAMED])
        raise DataError(
            f"{data.source}: {len(bad)} of {len(found)} answers cannot be verified: {named}"
            f"{' ...' if len(bad) > MAX_PROBLEMS_NAMED else ''}; mend them or set unparsable: skip"
        )
    dropped = set(bad)
    kept = [problem for i, problem in enumerate(found) if i not in dropped]
    if not kept:
        raise DataError(
            f"{data.source}: none of its {len(found)} answers can be verified; check answer_field: {data.answer_field}"
        )
    return kept, [found[i] for i in bad]


def _read(data: DataConfig) -> list[Problem]:
    """Every distinct problem of a source, in its order."""
    preset = find_preset(data.source)
    problems: dict[int, Problem] = {}
    seen: set[Hashable] = set()
    records = 0
    try:
        for record, place in rows(data):
            records += 1
            prompt, answer = _texts(data, record, place)
            # A published set may hold a problem a hundred times: a repeat must cost nothing.
            same = prompt if preset and preset.one_per_prompt else (prompt, answer)
            if same in seen:
                continue
            seen.add(same)
            problem = _problem(data, preset, record, place, prompt, answer)
            problems.setdefault(problem.key, problem)
    except (UnicodeError, OSError, csv.Error, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{data.source}: cannot be read ({type(error).__name__}: {reason[:200]}); mend the file"
        ) from None
    if not problems:
        raise DataError(f"{data.source}: holds no problems; expected one JSON object, row or record per problem")
    if preset is not None:
        _check_counts(data.source, preset, records, len(problems))
    return list(problems.values())


def _check_counts(source: str, preset: Preset, records: int, problems: int) -> None:
    """Refuse another version of a known data set: its results would not be comparable."""
    for expected, found, what in ((preset.rows, records, "records"), (preset.problems, problems, "distinct problems")):
        if expected not in (None, found):
            raise DataError(
                f"{source}: has {found} {what}, expected {expected} of {preset.repository}, split {preset.split}; "
                f"get that data set, or read this one as a file or with hub:{preset.repository}"
            )


def problems_digest(problems: Iterable[Problem]) -> str:
    """Hash of a set of problems, whatever their order."""
    keys = np.sort(np.fromiter((problem.key for problem in problems), np.int64))
    return hashlib.sha256(keys.tobytes()).hexdigest()[:16]


class PromptBatches:
    """The shared prompt batch of every step: epochs of seeded permutations, incomplete last batches dropped (as the
    paper).
    """

    def __init__(self, problems: Sequence[Problem], prompts_per_step: int, seed: int, source: str = "data") -> None:
        if len(problems) < prompts_per_step:
            raise DataError(
                f"{source}: {len(problems)} problems are fewer than data.prompts_per_step = {prompts_per_step}; "
                "lower it or add problems"
            )
        self.problems = list(problems)
        self.prompts_per_step = prompts_per_step
        self.steps_per_epoch = len(problems) // prompts_per_step
        self._seed = seed

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, first index inside the epoch's permutation) of a step; steps count from 1, epochs from 0."""
        epoch, batch = divmod(step - 1, self.steps_per_epoch)
        return epoch, batch * self.prompts_per_step

    def batch(self, step: int) -> list[Problem]:
        """The problems of one step, in order."""
        epoch, start = self.position(step)
        order = np.random.default_rng((self._seed, 0xDA7A, epoch)).permutation(len(self.problems))
        return [self.problems[i] for i in order[start : start + self.prompts_per_step]]

    def further(self, step: int, number: int) -> list[Problem]:
        """The `number`-th (from 0) further batch of a step, for dynamic sampling: problems that neither the step's
        batch nor an earlier further one has, from a permutation keyed by seed and step. It may be short or empty.
        """
        own = {problem.key for problem in self.batch(step)}
        order = np.random.default_rng((self._seed, 0xF0E1, step)).permutation(len(self.problems))
        others = [self.problems[i] for i in order if self.problems[i].key not in own]
        return others[number * self.prompts_per_step : (number + 1) * self.prompts_per_step]


def _texts(data: DataConfig, record: Mapping[str, Any], place: str) -> tuple[str, str]:
    """The texts of the prompt and the answer field of a record."""
    values = []
    for field in (data.prompt_field, data.answer_field):
        value = field_value(record, field)
        if value in (None, ""):
            raise DataError(
                f"{place}: no {field!r}; its fields are {', '.join(map(str, record))}: "
                "set prompt_field and answer_field"
            )
        if not isinstance(value, str | int | float) or value != value:
            kind = "not a number" if isinstance(value, float) else f"a {type(value).__name__}"
            raise DataError(f"{place}: {field!r} is {kind}, expected text or a number; name another field")
        values.append(str(value))
    return values[0], values[1]


def _problem(
    data: DataConfig, preset: Preset | None, record: Mapping[str, Any], place: str, prompt: str, text: str
) -> Problem:
    """The problem of a record, given the texts of its prompt and answer fields."""
    answer = reference_answer(text, data.answer_format)
    if answer is None:
        raise DataError(
            f"{place}: {data.answer_field!r} has no answer in the format {data.answer_format!r}: "
            f"it ends with {text[-40:]!r}; set answer_format"
        )
    before, after = preset.unwrap if preset else ("", "")
    prompt = data.template.replace("{prompt}", prompt.removeprefix(before).removesuffix(after))
    subject = field_value(record, data.subject_field) if data.subject_field else None
    level = _level(field_value(record, data.level_field), place) if data.level_field else None
    key, subject = problem_key(data.source, prompt, answer), str(subject) if subject else None
    return Problem(key, prompt, answer, data.source, subject, level, data.reward)


def _level(value: Any, place: str) -> int | None:
    """A level as a whole number: 3, 3.0, "3" or "Level 3"; a missing one (NaN in data frames) is None."""
    if value in (None, "", "Level ?") or value != value:  # MATH has two of the last
        return None
    found = re.fullmatch(r"(?:Level )?(-?\d{1,9})(?:\.0*)?", str(value).strip())
    if found is None:
        raise DataError(f"{place}: level {value!r} is not a whole number; set level_field: null")
    return int(found.group(1))
