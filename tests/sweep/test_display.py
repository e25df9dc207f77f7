"""What is said of a sweep while it runs, on a terminal and elsewhere, and what a listing says before."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from population.sweep.command import check, print_plan
from population.sweep.display import Display, duration
from population.sweep.spec import Sweep, load_sweep
from population.sweep.supervisor import Outcome, tail


def sweep_of(folder: Path, *overrides: str) -> Sweep:
    path = folder / "sweep.yaml"
    grid = {"method": ["grpo", "graft"]}
    path.write_text(yaml.safe_dump({"name": "tiny", "base": "configs/demo.yaml", "seeds": [0, 1], "grid": grid}))
    return load_sweep(path, folder / "runs", ["steps=6", *overrides])


def watched(folder: Path, *, terminal: bool) -> str:
    """What is printed when one of four runs was finished before, one finishes and one fails."""
    first, second, third, fourth = sweep_of(folder).runs
    file = io.StringIO()
    lengths = {run.uid: 6 for run in (first, second, third, fourth)}
    console = Console(file=file, force_terminal=terminal, width=100)
    with Display(console, (first, second, third, fourth), lengths, {first.uid: 6, second.uid: 2}) as display:
        display.started(second, resumed=True)
        display.started(third, resumed=False)
        display.progress({second.uid: (3, 6), third.uid: (0, 0)})
        display.ended(Outcome(second, finished=True))
        display.ended(Outcome(third, finished=False, reason="exit code 2; log.txt ends with:\nerror: no [such] thing"))
        display.progress({})
    return file.getvalue()


def test_plain_lines_say_what_started_and_how_it_ended(tmp_path: Path) -> None:
    assert watched(tmp_path, terminal=False).splitlines() == [
        "graft-0: goes on",
        "grpo-1: started",
        "graft-0: finished",
        "grpo-1: FAILED, exit code 2; log.txt ends with:",
        "error: no [such] thing",
    ]


def test_a_terminal_shows_the_steps_of_all_runs_and_the_time_left(tmp_path: Path) -> None:
    text = watched(tmp_path, terminal=True)
    assert "all runs, steps" in text
    assert "12/24" in text
    assert "3 of 4 runs ended, 1 failed, ETA" in text


def test_durations_are_said_as_people_say_them() -> None:
    assert [duration(s) for s in (0, 89, 90, 5399, 5400, 90000)] == [
        "0 s",
        "89 s",
        "2 min",
        "90 min",
        "1.5 h",
        "25.0 h",
    ]


def test_the_tail_of_a_log_skips_empty_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("a\n\nb\n  \nc\nd\ne\nf\n")
    assert tail(log) == ["b", "c", "d", "e", "f"]
    log.write_text("")
    assert tail(log) == ["(nothing)"]


@pytest.mark.parametrize(("arms", "runs", "rollouts"), [((), 4, "18,432"), (("grpo",), 2, "9,216")])
def test_a_listing_counts_runs_rollouts_and_evaluations(
    tmp_path: Path, arms: tuple[str, ...], runs: int, rollouts: str
) -> None:
    file = io.StringIO()
    print_plan(Console(file=file, width=100), check(sweep_of(tmp_path), arms))
    text = file.getvalue()
    assert text.splitlines()[0] == f"tiny: {runs} runs in {tmp_path / 'runs'}"
    assert "4,608" in text  # 6 steps x 3 members x 32 prompts x 8 responses
    # two evaluations of 3 members x 360 problems x 4 responses
    assert f"{rollouts} rollouts and {runs * 2 * 4320:,} evaluation samples in all." in text
    assert "Time left: not known before a run of it has finished." in text
    assert not (tmp_path / "runs").exists()


def test_a_listing_counts_the_repeats_of_the_best_checkpoints(tmp_path: Path) -> None:
    file = io.StringIO()
    print_plan(Console(file=file, width=100), check(sweep_of(tmp_path, "evaluation.repeats=5"), ("grpo",)))
    # two evaluations and five repeats, of two runs
    assert f"9,216 rollouts and {2 * (2 + 5) * 4320:,} evaluation samples in all." in file.getvalue()
