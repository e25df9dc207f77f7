"""Where a run of a sweep stands, by its record, and whether the record is of the run that is wanted."""

from __future__ import annotations

from typing import Literal

from population.config import ConfigError, as_recorded, course, differences, parse
from population.sweep.manifest import SweepError
from population.sweep.spec import PlannedRun
from server.store.connections import has_store, locate
from server.store.reader import RunInfo, open_reader

State = Literal["new", "begun", "finished"]


def recorded(run: PlannedRun) -> RunInfo | None:
    """The run's record; None before it has one."""
    if not has_store(locate(run.config.store_url)):
        return None
    with open_reader(run.config.store_url) as reader:
        return next((info for info in reader.runs() if info.uid == run.uid), None)


def state(run: PlannedRun, steps: int) -> State:
    """Whether the run of so many steps is to be started, to go on, or done. Raises SweepError when its record is of
    another configuration or longer, StoreError when it cannot be read.
    """
    info = recorded(run)
    if info is None:
        return "new"
    kept = {key: value for key, value in info.config.items() if key != "problems"}
    try:
        # Keys that this program has and the recording one had not take their defaults.
        former = as_recorded(parse(kept, source=f"run {run.uid}"))
    except ConfigError as error:
        raise SweepError(f"{run.home}: was recorded by another version ({error}); choose another folder") from None
    wanted = as_recorded(run.config)
    changed = differences(course(former), course(wanted))
    if changed:
        raise SweepError(
            f"{run.home}: was recorded with another configuration (differs in {', '.join(changed[:5])}); "
            "remove that folder, or choose another with --folder"
        )
    if (info.last_step or 0) > steps:
        raise SweepError(
            f"{run.home}: is recorded to step {info.last_step}; a length of {steps} would cut it, "
            "remove that folder or raise steps"
        )
    return "finished" if info.status == "finished" and info.last_step == steps else "begun"
