"""The Evaluation page and the paper's figures beside it: every number is that of the raw rows, or of the paper."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from streamlit.testing.v1 import AppTest

from dashboard import charts_compare, frames_evaluation, paper
from dashboard.palette import LIGHT
from server.store.reader import open_reader
from server.store.records import EvaluationRecord, MetricRecord, RunRecord, StepRecord
from server.store.scores import MeanInterval, share_interval
from server.store.writer import open_writer
from tests.dashboard.showcase import MODELS, Showcase, write
from tests.dashboard.test_pages import HOSTILE, HOSTILE_NAMES, end, opened, texts

__all__ = ["opened"]

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@dataclass(frozen=True)
class Evaluated(Showcase):
    """A showcase with two benchmarks of different roles, repeats of its best checkpoint, and what it cost."""

    lift: int = 0

    def run(self) -> RunRecord:
        benchmarks = [{"name": "held-out", "role": "test"}, {"name": "choose", "role": "validation"}]
        return replace(super().run(), config={"evaluation": {"benchmarks": benchmarks}})

    def step(self, step: int) -> StepRecord:
        cost = (MetricRecord(None, "seconds_cpu", 36.0, 1), MetricRecord(None, "gpu_seconds", 72.0, 1))
        record = super().step(step)
        return replace(record, metrics=(*record.metrics, *cost))

    def evaluations(self, step: int) -> Iterator[EvaluationRecord]:
        for record in replace(self, seed=self.seed + self.lift, lift=0).showcased(step):
            few = {key: (4 - right,) for key, right, _ in record.problems if right < 4}
            yield replace(record, votes={key: few.get(key, ()) for key, _, _ in record.problems})
            yield replace(record, benchmark="choose", role="validation")
            if step == 2:
                yield replace(record, repeat=1)
                yield replace(record, repeat=2, problems=tuple((key, 4, 4) for key, _, _ in record.problems))

    def showcased(self, step: int) -> Iterator[EvaluationRecord]:
        return super().evaluations(step)


def fill(folder: Path, *runs: tuple[Showcase, int, str, int]) -> str:
    url = f"sqlite:///{folder / 'store.db'}"
    for scenario, until, status, every in runs:
        writer = open_writer(url)
        write(writer, scenario, until, every)
        end(writer, status)
    return url


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    small = Evaluated(steps=2, prompts=3, tokens=5, uid="graft-a", name="graft-a")
    grpo = replace(small, uid="grpo-a", name="grpo-a", method="grpo", lift=5)
    return fill(tmp_path_factory.mktemp("evaluation"), (grpo, 2, "finished", 2), (small, 2, "finished", 2))


def problems(url: str, uid: str, step: int, slot: int) -> dict[int, float]:
    """{problem: share right} of a member's held-out evaluation, from the raw rows."""
    rows = sqlite3.connect(url.removeprefix("sqlite:///")).execute(
        "select p.prompt, 1.0 * p.correct / p.responses from evaluation_problems p join runs r on r.id = p.run "
        "where r.uid = ? and p.step = ? and p.member = ? and p.benchmark = 'held-out' and p.repeat = 0",
        (uid, step, slot),
    )
    return dict(rows)


def test_scores_and_differences_are_those_of_the_raw_rows(opened, store: str) -> None:
    page: AppTest = opened(store, "evaluation", run="graft-a", against="grpo-a")
    assert "could not be drawn" not in texts(page)
    table = page.dataframe[0].value
    for slot, name in enumerate(MODELS[:3]):
        row = table[(table["Member"] == name) & (table["Benchmark"] == "held-out")].iloc[0]
        own, base = problems(store, "graft-a", 2, slot), problems(store, "grpo-a", 2, slot)
        assert row["Last"].startswith(f"{100 * np.mean(list(own.values())):.1f}\u00a0% (")
        before = problems(store, "graft-a", 0, slot)
        assert row["Before"].startswith(f"{100 * np.mean(list(before.values())):.1f}\u00a0% (")
        assert row["Last"].endswith(", step 2")
        change = np.array([own[key] - base[key] for key in own])
        assert row["Less baseline"].startswith(f"{100 * change.mean():+.1f} (".replace("-", "−"))
        assert row["For"] == "report"
        assert row["n"] == "300 × 4"
        assert row["Repeated"].endswith("(n 2)")
    assert set(table[table["Benchmark"] == "choose"]["For"]) == {"selection"}
    assert "rule mean on validation sets" in texts(page)


def test_every_k_that_was_recorded_is_shown_with_its_interval_over_problems(opened, store: str) -> None:
    page: AppTest = opened(store, "evaluation", run="graft-a")
    table = page.dataframe[1].value
    assert list(table.columns) == ["Member", "Benchmark", "Estimate", "k = 1", "k = 2", "k = 4", "n"]
    # The validation set's answers were not told apart, so it has no majority.
    assert set(table[table["Benchmark"] == "choose"]["Estimate"]) == {"pass@k"}
    own = table[(table["Member"] == MODELS[0]) & (table["Benchmark"] == "held-out")].set_index("Estimate")
    right = np.array(list(problems(store, "graft-a", 2, 0).values())) * 4
    missed = np.array([math.comb(4 - int(k), 2) / math.comb(4, 2) for k in right])
    for column, shares in (("k = 1", right / 4), ("k = 2", 1 - missed), ("k = 4", right > 0)):
        figure = share_interval(np.asarray(shares, float), 300 * 4 / int(column[4:]))
        assert own.loc["pass@k", column] == frames_evaluation.text(figure)
        assert "–" in own.loc["maj@k", column]
    assert own.loc["maj@k", "k = 1"] == own.loc["pass@k", "k = 1"]
    assert set(own["n"]) == {"300 × 4"}


@pytest.mark.parametrize(
    ("role", "selects", "said"),
    [
        ("test", True, "selection + report"),
        ("test", False, "report"),
        ("validation", True, "selection"),
        ("validation", False, "validation"),
    ],
)
def test_a_test_set_that_chose_the_checkpoint_says_so(role: str, selects: bool, said: str) -> None:
    assert frames_evaluation.purpose(role, selects) == said


@pytest.mark.parametrize(("rule", "said"), [("mean", "selection + report"), ("last", "report")])
def test_the_purpose_of_a_test_set_is_that_of_the_runs_own_rule(opened, tmp_path: Path, rule: str, said: str) -> None:
    @dataclass(frozen=True)
    class Ruled(Showcase):
        def run(self) -> RunRecord:
            benchmarks = [{"name": "held-out", "role": "test"}]
            return replace(super().run(), config={"evaluation": {"benchmarks": benchmarks, "best": {"rule": rule}}})

    page = opened(fill(tmp_path, (Ruled(steps=2, prompts=2, tokens=5), 2, "finished", 1)), "evaluation")
    assert set(page.dataframe[0].value["For"]) == {said}


def test_the_frontier_is_in_gpu_hours_of_all_members_together(store: str) -> None:
    with open_reader(store) as reader:
        run = reader.result("graft-a")
    assert frames_evaluation.cost_kind(run) == ("gpu_seconds", "GPU hours")
    hours = frames_evaluation.cost_steps(run, "gpu_seconds", ["held-out"])
    assert hours == {0: 0.0, 2: pytest.approx(2 * 72 / 3600)}
    expected = [np.mean(list(problems(store, "graft-a", 2, slot).values())) for slot in range(3)]
    assert frames_evaluation.best_step(run, hours, ["held-out"]) == 2
    assert run.members == MODELS[:3]
    with open_reader(store) as reader:
        score = reader.joint_scores("graft-a", run.members, ["held-out"], [2])[2]
    assert score.mean == pytest.approx(np.mean(expected))


def test_the_frontier_rises_and_every_point_has_its_interval() -> None:
    low, high, other = (MeanInterval(mean, mean - 0.1, mean + 0.2) for mean in (0.2, 0.5, 0.3))
    shown = frames_evaluation.frontier(
        [("this run", "a", {0: (0.0, low), 5: (1.0, high)}), ("other runs", "b", {0: (0.0, other)})], "h"
    )
    assert shown["frontier"].values.tolist() == [[0.0, 0.2], [0.0, 0.3], [1.0, 0.5], [1.0, 0.5]]
    runs = shown["runs"]
    assert runs[["run", "value", "best"]].values.tolist() == [["a", 0.2, False], ["a", 0.5, True], ["b", 0.3, True]]
    assert runs[["low", "high"]].values.tolist() == [[one.low, one.high] for one in (low, high, other)]
    assert runs["detail"][1] == "50.0\u00a0% (40.0–70.0\u00a0%) at 1 h, step 5"


def test_the_legend_of_the_frontier_names_the_kinds_that_are_there(opened, store: str) -> None:
    layers = charts_compare.frontier(LIGHT, ["this run"], x_title="h")["layer"]
    scales = [layer["encoding"]["color"]["scale"]["domain"] for layer in layers if "color" in layer["encoding"]]
    assert scales
    assert all(domain == ["this run"] for domain in scales)
    assert "2 runs with these members" in texts(opened(store, "evaluation", run="graft-a"))


def test_differences_are_paired_over_the_problems_both_have() -> None:
    own = np.array([1, 2, 3, 9]), np.array([4, 2, 0, 1]), np.array([4, 4, 4, 4])
    base = np.array([1, 2, 3, 7]), np.array([2, 2, 1, 4]), np.array([4, 4, 4, 4])
    change, shared = frames_evaluation.paired_by_problem(own, base)
    values = np.array([0.5, 0.0, -0.25])
    assert shared == 3
    assert change.mean == pytest.approx(values.mean())
    assert change.high - change.mean == pytest.approx(1.959963984540054 * values.std(ddof=1) / math.sqrt(3))
    assert math.isnan(frames_evaluation.paired_by_problem(own, tuple(part[3:] for part in base))[0].mean)


@pytest.mark.parametrize(
    ("members", "until", "status"), [(1, 2, "finished"), (2, 1, "failed"), (12, 2, "finished"), (3, 0, "running")]
)
def test_the_page_draws_over_every_kind_of_run(opened, tmp_path: Path, members: int, until: int, status: str) -> None:
    scenario = Evaluated(MODELS[:members], steps=4, prompts=2, tokens=5, nan_loss_at=1)
    url = fill(tmp_path, (scenario, until, status, 1))
    assert "could not be drawn" not in texts(opened(url, "evaluation", score="choose"))


def test_hostile_names_and_a_run_without_evaluations(opened, tmp_path: Path) -> None:
    hostile = Showcase(HOSTILE_NAMES, steps=3, prompts=2, uid="hostile", name=HOSTILE, mark=HOSTILE)
    bare = Showcase(steps=3, prompts=2, uid="bare")
    url = fill(tmp_path, (bare, 2, "finished", 0), (hostile, 2, "finished", 1))
    page = opened(url, "evaluation", run="hostile", against="bare")
    assert "could not be drawn" not in texts(page)
    assert "<script>" not in texts(page)
    assert "No benchmark is configured" in texts(opened(url, "evaluation", run="bare"))


def test_the_papers_averages_are_the_means_of_its_benchmarks() -> None:
    rows = paper.table_1()
    assert len(rows) == 9 + 18
    for row in rows:
        assert math.fsum(row.scores[name][0] for name in paper.BENCHMARKS) / 5 == pytest.approx(
            row.scores[paper.AVERAGE][0], abs=0.02
        )
    ours, known = paper.rows_for(["Qwen/Qwen3-1.7B-Base", "HuggingFaceTB/SmolLM3-3B-Base"], "graft")
    assert known
    assert ("SmolLM3-3B-Base", "GRAFT", 37.06, 25.3) in [
        (row.model, row.method, row.scores["Avg"][0], row.gpu_hours) for row in ours
    ]
    assert all(row.peer in ("", "Qwen3-1.7B-Base", "SmolLM3-3B-Base") for row in ours)


def test_only_the_papers_own_setting_is_comparable() -> None:
    config = yaml.safe_load((CONFIGS / "paper" / "pair_1.yaml").read_text())
    models = [one["model"] for one in config["members"]]
    names = [one["name"] for one in config["evaluation"]["benchmarks"]]
    assert paper.differences(config, models, "graft", 174, names) == []
    config["rollouts"]["rollouts_per_prompt"] = 4
    assert paper.differences(config, models, "graft", 100, names) == [
        "100 steps (paper 174)",
        "4 rollouts a prompt (paper 8)",
    ]
    assert "other models" in paper.differences(config, ["demo:qwen3"], "graft", 174, names)
    assert [paper.canonical(name) for name in ("math-500", "aime24", "AMC 23", "minerva_math", "heldout")] == [
        "MATH500", "AIME2024", "AMC23", "Minerva", None
    ]  # fmt: skip
