"""Problems of reasoning-gym generators: ``gym:spell_backward?size=200&seed=0``.

Several generators stand side by side (``gym:spell_backward,number_sorting?size=200``: 200 of each); every parameter but
size and seed goes to the generator. The same source gives the same problems on every machine. The reference answer of a
problem is JSON with everything its scorer needs, :func:`server.rewards.gym.score`.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import yaml

from population.data.presets import GYM_PREFIX
from population.data.records import Row
from population.errors import DataError
from server.rewards import gym as scorer
from server.rewards.process import worker_environment

DEFAULT_SIZE = 500
DEFAULT_SEED = 0
# A reference answer is stored with its problem, in SQL.
MAX_ANSWER_CHARACTERS = 32768


@dataclass(frozen=True)
class GymSource:
    """What a source text asks for."""

    generators: tuple[str, ...]
    size: int
    seed: int
    parameters: Mapping[str, Any]


def parse_source(source: str) -> GymSource:
    """Read ``gym:NAME[,NAME...][?key=value&...]``; values in YAML syntax. DataError for another form."""
    names, _, query = source.removeprefix(GYM_PREFIX).partition("?")
    generators = tuple(name.strip() for name in names.split(",") if name.strip())
    try:
        parameters = {
            key: yaml.safe_load(value)
            for key, value in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        }
    except (ValueError, yaml.YAMLError):
        raise DataError(f"{source}: expected key=value&key=value after the question mark") from None
    size, seed = parameters.pop("size", DEFAULT_SIZE), parameters.pop("seed", DEFAULT_SEED)
    for key, value, least in (("size", size, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise DataError(f"{source}: {key} is {value!r}; it must be a whole number, {least} or more")
    if not generators:
        raise DataError(f"{source}: names no generator; for instance gym:spell_backward?size=200&seed=0")
    return GymSource(generators, size, seed, parameters)


def gym_rows(source: str, deadline_s: float) -> Iterator[Row]:
    """Records with prompt, answer (JSON, see :func:`server.rewards.gym.score`) and subject (the generator).

    They are made in a child process with fixed hashing, on which some generators depend. Raises DataError: no such
    generator or parameter, the package is missing, the deadline passed, or a generator whose own answers do not get
    full marks, which could never be learnt.
    """
    parse_source(source)
    command = [sys.executable, "-P", "-c", "from population.data.gym import main; main()", source]
    try:
        done = subprocess.run(command, env=worker_environment(), capture_output=True, text=True, timeout=deadline_s)
    except subprocess.TimeoutExpired:
        raise DataError(f"{source}: was not made within {deadline_s:g} s; ask for fewer or raise load_s") from None
    if done.returncode:
        reason = " ".join(done.stderr.split())[-300:]
        raise DataError(f"{source}: the generators failed ({reason}); try them in Python")
    for line in done.stdout.splitlines():
        record = json.loads(line)
        if "error" in record:
            raise DataError(record["error"])
        yield record, record.pop("place")


def main() -> None:
    """The child's side: the records of the source in the first argument, as JSON lines."""
    try:
        for record in _make(sys.argv[1]):
            sys.stdout.write(json.dumps(record) + "\n")
    except DataError as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")


def _make(source: str) -> Iterator[dict[str, str]]:
    wanted = parse_source(source)
    for generator in wanted.generators:
        problems = _create(source, wanted, generator)
        for number in range(wanted.size):
            place = f"{source} {generator} problem {number + 1}"
            entry = problems[number]
            answer = _reference(generator, entry, place)
            if scorer.score(entry["question"], f"<answer>{entry['answer']}</answer>", answer) < 1.0:
                raise DataError(
                    f"{place}: the generator's own answer {str(entry['answer'])[:40]!r} does not get full marks; "
                    "choose another generator"
                )
            yield {"prompt": entry["question"], "answer": answer, "subject": generator, "place": place}


def _create(source: str, wanted: GymSource, generator: str) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise DataError(f"{source}: needs the package reasoning-gym; pip install 'graft-population[gym]'") from None
    if generator not in DATASETS:
        near = difflib.get_close_matches(generator, DATASETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {len(DATASETS)}, see docs/data.md"
        raise DataError(f"{source}: there is no generator {generator!r}; {hint}")
    try:
        return reasoning_gym.create_dataset(generator, size=wanted.size, seed=wanted.seed, **wanted.parameters)
    except (TypeError, AssertionError, ValueError) as error:
        raise DataError(f"{source}: {generator} refuses its parameters ({error})") from None


def _reference(generator: str, entry: Mapping[str, Any], place: str) -> str:
    """What the scorer needs, as JSON."""
    reference = {"generator": generator, "answer": entry["answer"], "metadata": entry["metadata"]}
    text = json.dumps(reference, default=_plain, ensure_ascii=False)
    if len(text) > MAX_ANSWER_CHARACTERS:
        raise DataError(f"{place}: its reference has {len(text)} characters, too many to store; ask for smaller ones")
    return text


def _plain(value: Any) -> Any:
    """What JSON does not know: numpy's numbers and arrays, sets, and objects by their text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)
