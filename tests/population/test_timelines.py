"""Seconds by member and cause: they add up, never overlap, and leave out what is no part of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from population.timelines import IDLE, RUN, WORK, Timelines
from tests.population.small_run import carried_out


class Clock:
    """Time that moves when it is told to, in whole seconds: sums are exact."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_parts_of_a_window_add_up_to_its_length_for_everybody() -> None:
    clock = Clock()
    lines = Timelines(["a", "b"], clock, clock)
    lines.enter(RUN, "sample")
    lines.enter("a", "sample")
    clock.now = 3
    lines.enter("a", "grade")
    lines.enter("b", "update")
    clock.now = 5
    with lines.during("a", "sync"):
        clock.now = 9
    clock.now = 10
    window = lines.cut()
    assert window.seconds == {
        RUN: {"idle_other": 0.0, "sample": 10.0},
        "a": {"idle_other": 0.0, "sample": 3.0, "grade": 3.0, "sync": 4.0},
        "b": {"idle_other": 3.0, "update": 7.0},
    }
    clock.now = 12
    assert lines.cut().seconds["b"] == {"update": 2.0}


def test_an_evaluation_is_no_part_of_a_step_whatever_is_done_in_it() -> None:
    clock = Clock()
    lines = Timelines(["a"], clock, clock)
    lines.enter(RUN, "sample")
    clock.now = 1
    with lines.aside():
        with lines.during("a", "sync"):
            clock.now = 4
        clock.now = 6
    clock.now = 8
    window = lines.cut()
    assert window.seconds[RUN] == {"idle_other": 0.0, "sample": 3.0}
    assert sum(window.seconds["a"].values()) == 3.0
    assert window.cpu_seconds == 3.0


@pytest.mark.parametrize(("stops", "counted"), [(3, 3.0), (9, 9.0)])
def test_a_checkpoint_counts_as_far_as_a_member_works_beside_it(stops: int, counted: float) -> None:
    clock = Clock()
    lines = Timelines(["a", "b"], clock, clock)
    lines.enter("a", "sample")
    with lines.aside(but_for_work=True):
        clock.now = min(stops, 7)
        if stops < 7:
            lines.enter("a", "idle_barrier")
        clock.now = 7
    clock.now = max(stops, 7)
    window = lines.cut()
    assert [sum(own.values()) for own in window.seconds.values()] == [counted] * 3
    assert window.seconds["a"]["sample"] == counted


def test_a_member_that_left_has_no_time_and_disturbs_nobody() -> None:
    lines = Timelines(["a", "b"])
    with lines.during("b", "update"):
        lines.remove("b")
    lines.enter("b", "sample")
    assert set(lines.cut().seconds) == {RUN, "a"}


def test_the_times_of_a_run_are_not_negative_and_add_up_to_each_step_for_every_member(tmp_path: Path) -> None:
    _, _, reports = carried_out(tmp_path)
    for report in reports:
        whole = sum(report.seconds.values())
        assert set(report.member_seconds) == {"a", "b", "c"}
        for own in report.member_seconds.values():
            assert list(own) == [*WORK, *IDLE]
            assert min(own.values()) >= 0
            assert sum(own.values()) == pytest.approx(whole, abs=1e-9)
    assert all(sum(report.member_seconds["a"][what] for report in reports) > 0 for what in WORK)
