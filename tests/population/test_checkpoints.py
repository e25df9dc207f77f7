"""A checkpoint is whole or absent, belongs to one configuration, and the oldest ones go."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from graft.methods import METHODS
from population.checkpoints import FORMAT, CheckpointError, Checkpoints
from population.config import ExchangeConfig
from population.exchange import Exchange
from population.router import Router
from population.success_graph import SuccessGraph


@dataclass
class Files:
    """Stands where a trainer's placement does: its state is one number in a file."""

    state: int = 0
    fault: BaseException | None = None

    def call(self, method: str, folder: Path) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            if self.fault:
                raise self.fault
            if method == "save":
                folder.mkdir()
                (folder / "state").write_text(str(self.state))
            else:
                self.state = int((folder / "state").read_text())
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)
        return future


@dataclass
class FakeMember:
    name: str
    trainer: Files = field(default_factory=Files)
    weight_version: int = 0


@dataclass
class World:
    members: dict[str, Any]
    router: Router
    exchange: Exchange
    graph: SuccessGraph

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.members, self.router, self.exchange, self.graph


def unasked(step: int, rows: Any) -> Any:
    raise AssertionError("nothing is scored here")


def world(names: str = "ab") -> World:
    members: dict[str, Any] = {name: FakeMember(name) for name in names}
    exchange = Exchange(members, METHODS["graft"].how, ExchangeConfig(), score=unasked, max_tokens=5, seed=0)
    return World(members, Router(METHODS["graft"], ExchangeConfig(), 0), exchange, SuccessGraph(list(names), [1, 2, 3]))


def checkpoints(folder: Path, digest: str = "d", keep_last: int = 2) -> Checkpoints:
    return Checkpoints(folder / "checkpoints", digest, keep_last, deadline_s=60)


def test_load_brings_back_members_router_scale_and_graph(tmp_path: Path) -> None:
    saved = world()
    saved.members["a"].trainer.state, saved.members["b"].trainer.state = 7, 8
    saved.members["a"].weight_version = saved.members["b"].weight_version = 4
    saved.router.observe({("a", "b"): [0.5]})
    saved.exchange.bytes_per_token = 1.25
    saved.graph.attempts[1, 0] = 9
    checkpoints(tmp_path).save(4, *saved.parts)
    loaded = world()
    checkpoints(tmp_path).load(4, *loaded.parts)
    assert [member.trainer.state for member in loaded.members.values()] == [7, 8]
    assert loaded.members["b"].weight_version == 4
    assert loaded.router.edge_rates == saved.router.edge_rates
    assert loaded.exchange.bytes_per_token == 1.25
    assert loaded.graph.attempts[1, 0] == 9


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path, keep_last=2)
    for step in (2, 4, 6):
        kept.save(step, *world().parts)
    kept.sweep()
    assert kept.steps() == [4, 6]


def test_who_was_dropped_is_known_before_anything_is_loaded(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    assert kept.dropped(9) == {}
    kept.save(2, *world("abc").parts)
    kept.save(4, *world("ab").parts, {"c": 3})
    assert (kept.dropped(3), kept.dropped(4)) == ({}, {"c": 3})
    left = world("ab")
    kept.load(4, *left.parts)
    assert left.members["a"].weight_version == 4
    with pytest.raises(CheckpointError, match="holds members a, b; the configuration has a, b, c"):
        kept.load(4, *world("abc").parts)


def test_what_an_interrupted_write_left_is_swept_and_never_loaded(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    kept.save(2, *world().parts)
    (tmp_path / "checkpoints" / "tmp_00000004").mkdir()
    assert kept.steps() == [2]
    kept.sweep()
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_00000002"]


def test_a_failed_write_leaves_the_last_whole_one_and_a_remedy(tmp_path: Path) -> None:
    kept, state = checkpoints(tmp_path), world()
    kept.save(2, *state.parts)
    state.members["b"].trainer.fault = OSError(28, "No space left on device")
    with pytest.raises(CheckpointError, match=r"checkpoint of step 4 .*No space left.*--resume"):
        kept.save(4, *state.parts)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_00000002"]


@pytest.mark.parametrize(
    ("digest", "names", "format_", "message"),
    [
        ("other", "ab", FORMAT, "belongs to another configuration"),
        ("d", "ac", FORMAT, "holds members a, b; the configuration has a, c"),
        ("d", "ab", 99, "format 99"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(
    tmp_path: Path, digest: str, names: str, format_: int, message: str
) -> None:
    saved = world()
    saved.members["a"].trainer.state = 7
    folder = checkpoints(tmp_path).save(2, *saved.parts)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "format": format_}))
    other = world(names)
    with pytest.raises(CheckpointError, match=message):
        checkpoints(tmp_path, digest).load(2, *other.parts)
    assert other.members["a"].trainer.state == 0
