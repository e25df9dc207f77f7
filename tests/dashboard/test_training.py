"""The Training page: pooled points that hide no spike, gaps where nothing finite was, and numbers of the raw rows."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.charts_training import ACTIVITIES
from dashboard.frames_training import Series, clip_rows, pooled_curves, time_rows
from server.store.reader import open_reader
from server.store.records import GroupRecord, MetricRecord
from tests.dashboard.showcase import MODELS, Showcase
from tests.dashboard.test_pages import fill, opened, texts

__all__ = ["opened"]


@dataclass(frozen=True)
class Trained(Showcase):
    """A showcase with what training records."""

    def _metrics(self, rng: np.random.Generator, step: int, groups: tuple[GroupRecord, ...]) -> Iterator[MetricRecord]:
        yield from super()._metrics(rng, step, groups)
        for slot, name in enumerate(self.members):
            spike = 50.0 if step == 7 and slot == 0 else 1.0
            yield MetricRecord(name, "grad_norm", math.inf if step == 5 and slot == 1 else spike * (slot + 1), 1.0)
            for place in range(2):
                yield MetricRecord(name, f"clip_own_mb{place}", float(step % 3 * place), 1000.0)
                yield MetricRecord(name, f"clip_peer_mb{place}", float(place), 100.0 * place)
            yield MetricRecord(name, "engine_trainer_gap", 0.5, 1000.0)
            for activity, (what, _) in enumerate(ACTIVITIES):
                yield MetricRecord(name, what, float(activity + 1 + slot), 1.0)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    kinds = {
        "trained": (Trained(steps=12), 12, "finished"),
        "pair": (Trained(members=MODELS[:2], steps=2), 2, "finished"),
        "twelve": (Trained(members=MODELS, steps=2, prompts=4), 2, "finished"),
        "plain": (Showcase(steps=3), 3, "finished"),
        "broken": (Showcase(steps=4, nan_loss_at=1), 4, "failed"),
        "one step": (Trained(steps=9), 1, "running"),
        "no step": (Showcase(steps=9), 0, "running"),
    }
    return {
        kind: fill(tmp_path_factory.mktemp(kind.replace(" ", "_")), scenario, until, status, 0)
        for kind, (scenario, until, status) in kinds.items()
    }


@pytest.mark.parametrize("kind", ["trained", "pair", "twelve", "plain", "broken", "one step", "no step"])
@pytest.mark.parametrize("points", ["fine", "coarse"])
def test_the_page_draws_over_every_kind_of_run(stores: dict[str, str], opened, kind: str, points: str) -> None:
    page: AppTest = opened(stores[kind], "training", points=points)
    said = texts(page)
    assert "could not be drawn" not in said
    assert ("Not a number" in said) == (kind in ("broken", "trained"))
    if kind not in ("no step", "broken"):
        assert "**Time**" in said
    if kind == "plain":
        assert "no times by member" in said


def test_ranges_are_those_of_the_single_steps_and_pooled_values_of_their_sums(stores: dict[str, str]) -> None:
    path = stores["trained"].removeprefix("sqlite:///")
    edges = [0, 4, 8, 12]
    with open_reader(stores["trained"]) as reader:
        low, high = reader.metric_range("latest", "grad_norm", edges)
        numerator, denominator = reader.metric_history("latest", "grad_norm", edges)
        missing = reader.metric_range("latest", "unheard of", edges)
    raw = sqlite3.connect(path).execute(
        "select m.step, m.member, m.numerator, m.denominator from metrics m join metric_names n on n.id = m.name "
        "where n.name = 'grad_norm' and m.finite"
    )
    rows = raw.fetchall()
    for bucket in range(3):
        for slot in range(3):
            own = [
                (a, b) for step, member, a, b in rows if member == slot and edges[bucket] < step <= edges[bucket + 1]
            ]
            assert low[bucket, slot] == min(a / b for a, b in own)
            assert high[bucket, slot] == max(a / b for a, b in own)
            assert numerator[bucket, slot] / denominator[bucket, slot] == pytest.approx(
                sum(a for a, _ in own) / sum(b for _, b in own)
            )
    assert high[1, 0] == 50.0
    assert all(np.isnan(part).all() for part in missing)


def test_a_pooled_point_is_a_ratio_of_sums_and_a_gap_where_nothing_was_recorded() -> None:
    series = Series(
        np.array([[3.0], [0.0]]), np.array([[4.0], [0.0]]), np.array([[0.5], [np.nan]]), np.array([[0.9], [np.nan]])
    )
    curves, hover = pooled_curves(["a"], [0, 2, 4], series, share=True)
    assert curves["value"].tolist()[0] == 0.75
    assert math.isnan(curves["value"].tolist()[1])
    assert (curves["low"][0], curves["high"][0]) == (0.5, 0.9)
    assert hover["m0"].tolist() == ["75.0\u00a0% (50.0\u00a0% to 90.0\u00a0%)", "–"]


def test_clipping_is_shown_with_its_tokens_and_a_dash_where_there_were_none() -> None:
    counts = {
        ("own", 0): (np.array([0.0]), np.array([1000.0])),
        ("own", 1): (np.array([5.0]), np.array([1000.0])),
        ("peer", 0): (np.array([0.0]), np.array([0.0])),
        ("peer", 1): (np.array([2.0]), np.array([50.0])),
    }
    own, peer = clip_rows(["a"], [0], [0, 1], counts)
    assert own == {
        "Member": "a",
        "Tokens": "own",
        "Minibatch 1": "0.000\u00a0% (n 1.0k)",
        "Minibatch 2": "0.500\u00a0% (n 1.0k)",
    }
    assert (peer["Minibatch 1"], peer["Minibatch 2"]) == ("–", "4.000\u00a0% (n 50)")


def test_the_parts_of_a_members_time_add_up_to_one() -> None:
    totals = {"seconds_sample": np.array([6.0, 0.0]), "idle_barrier": np.array([2.0, 0.0])}
    rows = time_rows(["a", "b"], [0, 1], totals)
    assert set(rows["member"]) == {"a"}
    assert rows["share"].sum() == 1.0
    assert rows.set_index("activity")["share"].to_dict() == {"samples": 0.75, "waits: barrier": 0.25}
