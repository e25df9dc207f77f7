"""The Compare page: runs and seed sets over one or several stores, in numbers that are those of the raw rows."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from scipy import stats
from streamlit.testing.v1 import AppTest

from dashboard import frames_compare
from dashboard.frames_compare import Line
from dashboard.source import store_urls
from server.store.records import EvaluationRecord, RunRecord
from server.store.writer import open_writer
from tests.dashboard.showcase import MODELS, Showcase, write
from tests.dashboard.test_pages import HOSTILE, HOSTILE_NAMES, end, opened, texts

__all__ = ["opened"]


@dataclass(frozen=True)
class Configured(Showcase):
    """A showcase whose configuration has a setting of its own, and a secret."""

    floor: float = 0.8

    def run(self) -> RunRecord:
        record = super().run()
        benchmarks = [{"name": "held-out", "role": "test"}]
        config = {
            **record.config,
            "exchange": {"floor": self.floor},
            "api_key": f"hush{self.floor}",
            "evaluation": {"benchmarks": benchmarks},
        }
        return RunRecord(self.uid, self.name, self.method, record.members, self.steps, self.seed, config)

    def evaluations(self, step: int) -> Iterator[EvaluationRecord]:
        """Other settings end elsewhere."""
        return super(Configured, replace(self, seed=self.seed + round(100 * self.floor))).evaluations(step)


def fill(folder: Path, scenarios: list[tuple[Showcase, int, str]]) -> str:
    url = f"sqlite:///{folder / 'store.db'}"
    for scenario, until, status in scenarios:
        writer = open_writer(url)
        write(writer, scenario, until, 2)
        end(writer, status)
    return url


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two stores: three seeds of one setting and a run that was killed, and three seeds of another."""

    def made(uid: str, seed: int, floor: float, steps: int = 4, method: str = "graft") -> Configured:
        return Configured(steps=steps, prompts=4, tokens=6, uid=uid, name=uid, seed=seed, floor=floor, method=method)

    first = [(made(f"strict-{seed}", seed, 0.9), 4, "finished") for seed in range(3)]
    first.append((made("strict-killed", 3, 0.9), 2, "running"))
    second = [(made(f"plain-{seed}", seed, 0.8, method="grpo"), 4, "finished") for seed in (0, 1, 2, 7)]
    return fill(tmp_path_factory.mktemp("first"), first), fill(tmp_path_factory.mktemp("second"), second)


def scores(url: str, uid: str, step: int) -> float:
    """The mean over members of a run's held-out score, from the rows of its problems alone."""
    rows = sqlite3.connect(url.removeprefix("sqlite:///")).execute(
        "select p.member, avg(1.0 * p.correct / p.responses) from evaluation_problems p join runs r on r.id = p.run "
        "where r.uid = ? and p.step = ? and p.repeat = 0 group by p.member",
        (uid, step),
    )
    values = [value for _, value in rows]
    return math.fsum(values) / len(values)


def test_paired_differences_of_seed_sets_are_those_of_the_raw_rows(opened, sets) -> None:
    base = "grpo method.name=grpo exchange.floor=0.8"
    page: AppTest = opened("\n".join(sets), "compare", runs=["strict-0", "plain-0@2"], sets="true", base=base)
    said = texts(page)
    assert "could not be drawn" not in said
    by_seed = [scores(sets[0], f"strict-{seed}", 4) - scores(sets[1], f"plain-{seed}", 4) for seed in range(3)]
    mean = math.fsum(by_seed) / 3
    half = stats.t.ppf(0.975, 2) * stats.sem(by_seed)
    table = page.dataframe[0].value.set_index("Arm")
    middle, low, high = (f"{100 * value:+.1f}".replace("-", "−") for value in (mean, mean - half, mean + half))
    assert table.loc["graft", "Difference"] == f"{middle} ({low} to {high}), n 3"
    assert table.loc[base, "Difference"] == "baseline"
    assert "seed 7 of grpo" in said.replace("\\", "")
    assert "strict-killed" in said.replace("\\", "")
    assert "hush" not in said


@pytest.mark.parametrize("x", ["step", "tokens", "hours"])
@pytest.mark.parametrize("curve", ["held-out score", "reward", "entropy"])
def test_runs_are_lined_up_by_steps_tokens_or_hours(opened, sets, x: str, curve: str) -> None:
    page = opened("\n".join(sets), "compare", runs=["strict-1", "strict-2", "plain-7@2"], x=x, curve=curve)
    said = texts(page)
    assert "could not be drawn" not in said
    assert ("Not recorded by" in said) == (x == "hours")


def test_only_settings_that_differ_are_shown_and_secrets_are_masked(opened, sets) -> None:
    page = opened("\n".join(sets), "compare", runs=["strict-1", "plain-1@2"])
    table = page.dataframe[1].value.set_index("Setting")
    assert set(table.index) == {"method", "method.name", "exchange.floor"}
    assert table.loc["exchange.floor"].tolist() == ["0.9", "0.8"]
    assert "hush" not in texts(page) + page.dataframe[1].value.to_csv()


def test_without_a_choice_the_shown_run_meets_one_of_another_kind(opened, sets) -> None:
    page = opened("\n".join(sets), "compare", run="strict-1")
    assert [name.partition("-")[0] for name in page.dataframe[0].value["Arm"]] == ["strict", "plain"]


def test_one_run_alone_and_runs_of_one_set_are_said(opened, sets, tmp_path: Path) -> None:
    alone = fill(tmp_path, [(Showcase(steps=2), 1, "failed")])
    assert "There is one run so far" in texts(opened(alone, "compare"))
    same = opened("\n".join(sets), "compare", runs=["strict-0", "strict-1"], sets="true")
    assert "all of one set" in texts(same)


@pytest.mark.parametrize("members", [1, 2, 12])
def test_runs_of_any_number_of_members_broken_or_hostile(opened, tmp_path: Path, members: int) -> None:
    runs = [
        (Showcase(MODELS[:members], steps=3, prompts=3, uid="a", nan_loss_at=1), 3, "finished"),
        (Showcase(MODELS[:members], steps=3, prompts=3, uid="b", name=HOSTILE), 1, "failed"),
        (Showcase(HOSTILE_NAMES, steps=3, prompts=3, uid="hostile", name=HOSTILE, mark=HOSTILE), 3, "running"),
        (Showcase(MODELS[:members], steps=3, prompts=3, uid="none"), 0, "running"),
    ]
    url = fill(tmp_path, runs)
    for curve in ("held-out score", "loss"):
        page = opened(url, "compare", runs=["a", "b", "none"], curve=curve)
        assert "could not be drawn" not in texts(page)
    page = opened(url, "compare")
    assert "could not be drawn" not in texts(page)


def test_a_store_that_cannot_be_read_is_named_and_the_others_are_shown(opened, sets) -> None:
    page = opened(f"{sets[0]}\nsqlite:////nowhere/at/all.db", "compare", runs=["strict-0", "strict-1"])
    assert any("nowhere" in warning.value for warning in page.warning)
    assert len(page.dataframe) >= 1


def test_a_store_given_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFT_STORE_URL", "a\nb\na\n")
    assert store_urls() == ["a", "b"]


def test_means_over_seeds_exist_only_where_every_run_has_a_point() -> None:
    lines = [
        Line("one", "r0", 0, (1.0, 2.0, 3.0), (0.1, 0.2, math.nan)),
        Line("one", "r1", 1, (1.0, 2.5, 3.0), (0.3, 0.9, 0.5)),
        Line("one", "r2", 2, (1.0, 2.5, 3.0), (0.2, 0.9, 0.5)),
        Line("two", "r3", 0, (1.0, 2.0), (0.5, 0.6)),
        Line("two", "r4", 1, (1.0, 2.5), (0.7, 0.6)),
        Line("alone", "r5", 0, (1.0, 2.0), (0.5, 0.6)),
    ]
    means = frames_compare.means(lines, True, "steps")
    assert means[["arm", "x", "value"]].values.tolist() == [["one", 1.0, pytest.approx(0.2)], ["two", 1.0, 0.6]]
    half = stats.t.ppf(0.975, 2) * stats.sem([0.1, 0.3, 0.2])
    assert means["high"][0] == pytest.approx(0.2 + half)
    assert means["low"][0] == 0.0
    assert math.isnan(means["low"][1])
    points = frames_compare.points(lines, True, "steps")
    assert len(points) == 15
    assert points["low"].isna().all()
    bounded = frames_compare.points([Line("one", "r", 0, (1.0,), (0.1,), ((0.05, 0.25),))], True, "steps")
    assert bounded[["low", "high"]].values.tolist() == [[0.05, 0.25]]
    assert bounded["detail"][0] == "10.0\u00a0% (5.0\u00a0% to 25.0\u00a0%) at 1 step"
    assert all(a <= b for a, b in pairwise(points[points["run"] == "r0"]["x"]))
