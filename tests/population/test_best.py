"""The best checkpoint's weights are there, whole and those the record calls the best, whatever happens on the way."""

from __future__ import annotations

import json
import random
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from population.best import BestCheckpoints
from population.checkpoints import Checkpoints
from population.config import BenchmarkConfig, BestConfig, EvaluationConfig
from population.errors import CheckpointError
from population.evaluation import MANIFEST, read_manifest
from population.member import Member
from server.store.records import EvaluationRecord
from server.store.views import EvaluationSummary

DEADLINE_S = 60.0


@dataclass
class Trainer:
    """Exports one number as its weights."""

    weights: int = 0
    fails: bool = False
    exports: list[Path] = field(default_factory=list)

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(getattr(self, method)(*arguments))
        except OSError as error:
            future.set_exception(error)
        return future

    def export(self, folder: Path) -> None:
        self.exports.append(folder)
        (folder / "config.json").write_text("{}")
        if self.fails:
            raise OSError("disk full")
        (folder / "weights").write_text(str(self.weights))

    def checksum(self) -> str:
        return f"sum of {self.weights}"


def members(*names: str) -> dict[str, Member]:
    tokenizer = SimpleNamespace(hf=SimpleNamespace(save_pretrained=lambda folder: (folder / "tok").write_text("")))
    return {name: cast(Member, SimpleNamespace(name=name, tokenizer=tokenizer, trainer=Trainer())) for name in names}


def trainer(of: dict[str, Member], name: str) -> Trainer:
    return cast(Trainer, of[name].trainer)


def best_of(folder: Path, rule: str = "mean") -> BestCheckpoints:
    benchmarks = tuple(BenchmarkConfig(name=name, source="demo:heldout") for name in ("x", "y"))
    settings = EvaluationConfig(benchmarks=benchmarks, best=BestConfig(rule=cast(Any, rule)))
    return BestCheckpoints(folder, settings, Checkpoints(folder / "checkpoints", "digest", 2, DEADLINE_S), DEADLINE_S)


def evaluated(best: BestCheckpoints, of: dict[str, Member], step: int, **right: int) -> list[EvaluationRecord]:
    """Every member's weights become the step's number; both benchmarks are measured with so many right of 8."""
    records = []
    for name, k in right.items():
        trainer(of, name).weights = step
        records += [EvaluationRecord(name, benchmark, step, ((1, k, 8),), 0.6, 0) for benchmark in ("x", "y")]
    best.consider(step, records, of)
    return records


def linked(folder: Path, name: str) -> int:
    return int((folder / "best" / name / "weights").read_text())


def kept(folder: Path, name: str) -> list[str]:
    return sorted(path.name for path in (folder / "kept" / name).iterdir())


def summaries(records: list[EvaluationRecord]) -> list[EvaluationSummary]:
    return [
        EvaluationSummary(r.member, r.benchmark, r.step, r.problems[0][1] / 8, 0.0, 1.0, 1, 8, 0.6, 1) for r in records
    ]


def checkpoint(folder: Path, step: int) -> None:
    (folder / "checkpoints" / f"step_{step:08d}").mkdir(parents=True)


def test_the_link_follows_the_best_of_each_member(tmp_path: Path) -> None:
    best, of = best_of(tmp_path), members("a", "b")
    evaluated(best, of, 0, a=8, b=8)
    assert not (tmp_path / "kept").exists()  # the untrained members are no candidates
    evaluated(best, of, 5, a=3, b=4)
    evaluated(best, of, 10, a=5, b=4)
    evaluated(best, of, 15, a=4, b=2)
    assert (linked(tmp_path, "a"), linked(tmp_path, "b")) == (10, 5)
    assert (kept(tmp_path, "a"), kept(tmp_path, "b")) == (["step_00000010"], ["step_00000005"])
    assert read_manifest(tmp_path / "best" / "a") == {
        "member": "a", "step": 10, "rule": "mean", "selected_on": "test", "benchmarks": ["x", "y"], "score": 5 / 8,
        "checksum": "sum of 10",
    }  # fmt: skip
    assert (tmp_path / "best" / "a" / "tok").is_file()


def test_the_last_rule_keeps_the_newest(tmp_path: Path) -> None:
    best, of = best_of(tmp_path, "last"), members("a")
    for step, k in ((5, 7), (10, 1)):
        evaluated(best, of, step, a=k)
        assert linked(tmp_path, "a") == step


def test_a_failed_export_leaves_the_former_best(tmp_path: Path) -> None:
    best, of = best_of(tmp_path), members("a")
    evaluated(best, of, 5, a=3)
    trainer(of, "a").fails = True
    with pytest.raises(CheckpointError, match=r"best checkpoint of step 10 .*disk full; free space"):
        evaluated(best, of, 10, a=5)
    assert linked(tmp_path, "a") == 5
    assert kept(tmp_path, "a") == ["step_00000005"]


def test_what_an_interrupted_export_left_is_swept(tmp_path: Path) -> None:
    best, of = best_of(tmp_path), members("a")
    (tmp_path / "kept" / "a" / ".step_00000004.tmp").mkdir(parents=True)
    evaluated(best, of, 5, a=3)
    assert kept(tmp_path, "a") == ["step_00000005"]


def test_resuming_goes_back_to_the_best_as_of_the_checkpoint(tmp_path: Path) -> None:
    best, of = best_of(tmp_path), members("a")
    records = evaluated(best, of, 5, a=3)
    checkpoint(tmp_path, 6)
    evaluated(best, of, 10, a=5)
    assert kept(tmp_path, "a") == ["step_00000005", "step_00000010"]
    resumed = best_of(tmp_path)
    resumed.restore(summaries(records), of)
    assert linked(tmp_path, "a") == 5
    # Done again with another outcome, the record's best stays what the link names.
    evaluated(resumed, of, 10, a=2)
    assert linked(tmp_path, "a") == 5
    assert kept(tmp_path, "a") == ["step_00000005"]


def test_a_best_checkpoint_that_was_removed_is_said_before_the_run_goes_on(tmp_path: Path) -> None:
    best, of = best_of(tmp_path), members("a")
    records = evaluated(best, of, 5, a=3)
    (best.place("a", 5) / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="best checkpoint of member 'a' is missing; put it back"):
        best_of(tmp_path).restore(summaries(records), of)


@pytest.mark.parametrize("seed", range(8))
def test_every_checkpoint_finds_the_weights_its_record_calls_the_best(tmp_path: Path, seed: int) -> None:
    draw, of = random.Random(seed), members("a")
    best, step, stopped = best_of(tmp_path), 0, 0
    records: dict[int, list[EvaluationRecord]] = {}
    while step < 30 and stopped < 6:
        step += 1
        if step % 2 == 0:
            records[step] = evaluated(best, of, step, a=draw.randrange(9))
        if step % 3 == 0:
            if not (tmp_path / "checkpoints" / f"step_{step:08d}").exists():
                checkpoint(tmp_path, step)
            steps = Checkpoints(tmp_path / "checkpoints", "", 2, DEADLINE_S).steps()
            for old in steps[:-2]:
                (tmp_path / "checkpoints" / f"step_{old:08d}").rmdir()
        if draw.random() < 0.2:
            # Killed: resumed from one of the checkpoints that are left, or from nothing.
            stopped += 1
            steps = best._checkpoints.steps()
            step = draw.choice(steps) if steps else 0
            records = {s: r for s, r in records.items() if s <= step}
            best = best_of(tmp_path)
            best.restore(summaries([one for rows in records.values() for one in rows]), of)
            for newer in (s for s in steps if s > step):
                (tmp_path / "checkpoints" / f"step_{newer:08d}").rmdir()
        scores = {s: rows[0].problems[0][1] for s, rows in records.items()}
        if not scores:
            assert not (tmp_path / "best" / "a").exists()
        else:
            expected = min(s for s, k in scores.items() if k == max(scores.values()))
            assert linked(tmp_path, "a") == expected
            assert json.loads((tmp_path / "best" / "a" / MANIFEST).read_text())["step"] == expected
