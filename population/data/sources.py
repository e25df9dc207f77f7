"""One way from a data section of the configuration to the records of its source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from population.config import DataConfig
from population.data.champ import PREFIX as CHAMP
from population.data.champ import champ_rows
from population.data.gym import gym_rows
from population.data.hub import PREFIX as HUB
from population.data.hub import HubData, hub_rows, is_here, repository_of
from population.data.presets import GYM_PREFIX, PREFIX, PRESETS, find_preset
from population.data.records import READERS, Row, file_rows
from population.demo.suites import DATA_SETS
from population.errors import DataError

DEMO = "demo:"
KINDS = f"a {', '.join(READERS)} file, preset:NAME, hub:OWNER/NAME, gym:GENERATOR, champ:all or demo:train"


def rows(data: DataConfig) -> Iterator[Row]:
    """(record, place for messages) of every record of a source. Raises DataError with the remedy."""
    source = data.source
    if source.startswith(DEMO):
        return _demo_rows(source)
    if source.startswith(GYM_PREFIX):
        return gym_rows(source, data.load_s)
    if source.startswith(CHAMP):
        return champ_rows(source)
    if find_preset(source) is not None or source.startswith(HUB):
        return hub_rows(_wanted(data), fields(data))
    if Path(source).suffix not in READERS:
        meant = f"did you mean {PREFIX}{source}?" if source in PRESETS else f"give {KINDS}"
        raise DataError(f"{source}: unknown kind of data set; {meant}")
    return file_rows(Path(source), fields(data))


def published_problems(data: DataConfig) -> int | None:
    """How many problems a preset is known to hold, where its files are not on this machine; None in any other case."""
    preset = find_preset(data.source)
    return None if preset is None or is_here(_wanted(data)) else preset.problems or preset.rows


def _wanted(data: DataConfig) -> HubData:
    preset = find_preset(data.source)
    return HubData(
        source=data.source,
        repository=preset.repository if preset else repository_of(data.source),
        subset=data.subset,
        split=data.split,
        revision=data.revision,
        files=preset.files if preset else (),
        deadline_s=data.load_s,
    )


def fields(data: DataConfig) -> tuple[str, ...]:
    """The fields a data section reads."""
    named = (data.prompt_field, data.answer_field, data.subject_field, data.level_field)
    return tuple(name for name in named if name)


def _demo_rows(source: str) -> Iterator[Row]:
    name = source.removeprefix(DEMO)
    if name not in DATA_SETS:
        known = ", ".join(DEMO + other for other in DATA_SETS)
        raise DataError(f"{source}: unknown demo data set; there are {known}")
    for i, p in enumerate(DATA_SETS[name]()):
        yield (
            {"prompt": p.prompt, "answer": p.answer, "subject": p.subject, "level": p.level},
            f"{source} problem {i + 1}",
        )
