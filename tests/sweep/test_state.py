"""What a record says about a run that is wanted: new, begun, finished, or another run altogether."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from population.config import as_dict
from population.sweep.manifest import SweepError
from population.sweep.spec import PlannedRun, load_sweep
from population.sweep.state import state
from server.store.writer import open_writer
from tests.store.synthetic import Scenario


def planned(folder: Path, *overrides: str) -> PlannedRun:
    path = folder / "sweep.yaml"
    tree = {"name": "tiny", "base": "configs/demo.yaml", "seeds": [0], "arms": [{"name": "a"}]}
    path.write_text(yaml.safe_dump(tree))
    return load_sweep(path, folder / "runs", overrides).runs[0]


def record(run: PlannedRun, *, steps: int, status: Any = "finished", config: dict[str, Any] | None = None) -> None:
    """A record of the run with as many steps, as if another process had made it."""
    scenario = Scenario(members=3, steps=steps, prompts=4, n=2)
    run.home.mkdir(parents=True)
    with open_writer(run.config.store_url) as writer:
        recorded = as_dict(run.config) | {"problems": {"train": "x"}} if config is None else config
        writer.start_run(replace(scenario.run(), uid=run.uid, config=recorded))
        for step in range(1, steps + 1):
            writer.commit(scenario.step(step))
        writer.finish(status)


def test_a_run_without_a_record_is_new(tmp_path: Path) -> None:
    assert state(planned(tmp_path), 72) == "new"


def test_a_finished_run_is_finished_and_an_interrupted_one_goes_on(tmp_path: Path) -> None:
    run = planned(tmp_path, "steps=3")
    record(run, steps=3)
    assert state(run, 3) == "finished"
    assert state(planned(tmp_path, "steps=5"), 5) == "begun"
    other = planned(tmp_path / "runs", "steps=3")
    record(other, steps=2, status="interrupted")
    assert state(other, 3) == "begun"


def test_a_run_that_was_shortened_when_it_was_resumed_is_finished(tmp_path: Path) -> None:
    record(planned(tmp_path, "steps=400"), steps=3)
    assert state(planned(tmp_path, "steps=3"), 3) == "finished"


def test_a_record_of_another_configuration_is_refused_by_its_keys(tmp_path: Path) -> None:
    record(planned(tmp_path, "steps=3"), steps=3)
    with pytest.raises(SweepError, match=r"recorded with another configuration \(differs in exchange\.floor\)"):
        state(planned(tmp_path, "steps=3", "exchange.floor=0.5"), 3)
    with pytest.raises(SweepError, match="is recorded to step 3; a length of 2 would cut it"):
        state(planned(tmp_path, "steps=2"), 2)


def test_keys_that_the_recording_program_did_not_have_take_their_defaults(tmp_path: Path) -> None:
    run = planned(tmp_path, "steps=1")
    older = as_dict(run.config)
    del older["exchange"]["edge_rate_decay"]
    record(run, steps=1, config=older)
    assert state(run, 1) == "finished"
