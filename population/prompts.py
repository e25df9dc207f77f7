"""Problems and their order: data sets of verifiable problems, and prompt batches with an exact cursor.

A batch is a pure function of (data set, seed, step): nothing is consumed, so a resumed run sees the same prompts.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from population.config import DataConfig
from population.demo import tasks
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
    skipped and returned for the record, as ``data.unparsable`` says. Duplicates of a problem are read once. Raises
    :class:`DataError`.
    """
    problems: dict[int, Problem] = {}
    try:
        for row in _rows(data):
            problem = _problem(data, *row)
            problems.setdefault(problem.key, problem)
    except (UnicodeError, OSError, csv.Error, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{data.source}: cannot be read ({type(error).__name__}: {reason[:200]}); mend the file"
        ) from None
    found = list(problems.values())
    if not found:
        raise DataError(f"{data.source}: holds no problems; expected one JSON object, row or record per problem")
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


Row = tuple[Mapping[str, Any], str]


def _rows(data: DataConfig) -> Iterable[Row]:
    """(record, place for messages) of every record of a source."""
    if data.source.startswith("demo:"):
        return _demo_rows(data.source)
    path = Path(data.source)
    readers = {".jsonl": _json_lines, ".csv": _csv_rows, ".parquet": _parquet_rows}
    if path.suffix not in readers:
        raise DataError(
            f"{data.source}: unknown kind of data set; give demo:train, demo:heldout or a {', '.join(readers)} file"
        )
    if not path.is_file():
        raise DataError(f"{data.source}: no such file; check the source of the data set")
    return readers[path.suffix](path)


def _demo_rows(source: str) -> Iterator[Row]:
    suites = {"demo:train": tasks.training_problems, "demo:heldout": tasks.heldout_problems}
    if source not in suites:
        raise DataError(f"{source}: unknown demo data set; there are {' and '.join(suites)}")
    for i, p in enumerate(suites[source]()):
        yield (
            {"prompt": p.prompt, "answer": p.answer, "subject": p.subject, "level": p.level},
            f"{source} problem {i + 1}",
        )


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                raise DataError(f"{path} line {number}: not valid JSON ({reason})") from None
            if not isinstance(record, dict):
                raise DataError(f"{path} line {number}: expected an object, found {type(record).__name__}")
            yield record, f"{path} line {number}"


def _csv_rows(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8-sig") as lines:
        for number, record in enumerate(csv.DictReader(lines), 2):
            yield record, f"{path} line {number}"


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as parquet

    for number, record in enumerate(parquet.read_table(path).to_pylist(), 1):
        yield record, f"{path} record {number}"


def _problem(data: DataConfig, record: Mapping[str, Any], place: str) -> Problem:
    for field in (data.prompt_field, data.answer_field):
        if record.get(field) in (None, ""):
            raise DataError(
                f"{place}: no {field!r}; its fields are {', '.join(map(str, record))}: "
                "set prompt_field and answer_field"
            )
        if not isinstance(record[field], str | int | float) or record[field] != record[field]:
            kind = "not a number" if isinstance(record[field], float) else f"a {type(record[field]).__name__}"
            raise DataError(f"{place}: {field!r} is {kind}, expected text or a number; name another field")
    prompt = data.template.replace("{prompt}", str(record[data.prompt_field]))
    answer = str(record[data.answer_field])
    subject = record.get(data.subject_field) if data.subject_field else None
    level = _level(record.get(data.level_field), place) if data.level_field else None
    key, subject = problem_key(data.source, prompt, answer), str(subject) if subject else None
    return Problem(key, prompt, answer, data.source, subject, level, data.reward)


def _level(value: Any, place: str) -> int | None:
    """A level as a whole number: 3, 3.0, "3" or "Level 3"; a missing one (NaN in data frames) is None."""
    if value in (None, "") or value != value:
        return None
    found = re.fullmatch(r"(?:Level )?(-?\d{1,9})(?:\.0*)?", str(value).strip())
    if found is None:
        raise DataError(f"{place}: level {value!r} is not a whole number; set level_field: null")
    return int(found.group(1))
