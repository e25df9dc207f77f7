"""What ``graft sweep`` does: check everything, list it or run it, and compare what finished."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from population.compare.command import Format, compare, show
from population.plan import Plan
from population.sweep.display import Display, duration
from population.sweep.manifest import SweepError, write_manifest
from population.sweep.spec import PlannedRun, Sweep
from population.sweep.state import State, recorded, state
from population.sweep.supervisor import supervise

RESULTS = "comparison"
ABSENT = "–"


@dataclass(frozen=True)
class Checked:
    """A sweep whose configurations, data and records were all looked at. ``plans`` and ``states`` are by uid."""

    sweep: Sweep
    runs: tuple[PlannedRun, ...]
    plans: Mapping[str, Plan]
    states: Mapping[str, State]


def check(sweep: Sweep, arms: Sequence[str] = (), seeds: Sequence[int] = ()) -> Checked:
    """Validate all that can be validated before a run starts; ``arms`` and ``seeds`` choose some of the runs, with
    those they need. Raises RunError or StoreError, one line.
    """
    runs = chosen(sweep, arms, seeds)
    plans = _plans(runs)
    return Checked(sweep, runs, plans, {run.uid: state(run, plans[run.uid].steps) for run in runs})


def chosen(sweep: Sweep, arms: Sequence[str], seeds: Sequence[int]) -> tuple[PlannedRun, ...]:
    """The runs of some arms and seeds (none named: all), and the runs they need. Raises SweepError for unknown ones."""
    for kind, wanted, known in (
        ("arm", arms, [arm.name for arm in sweep.arms]),
        ("seed", seeds, list(sweep.spec.seeds)),
    ):
        for one in wanted:
            if one not in known:
                raise SweepError(f"--{kind} {one}: the sweep has no such {kind}; it has {', '.join(map(str, known))}")
    by_uid = {run.uid: run for run in sweep.runs}
    kept = {r.uid for r in sweep.runs if (not arms or r.arm in arms) and (not seeds or r.seed in seeds)}
    for uid in list(kept):
        needed = by_uid[uid].needs
        while needed is not None:
            kept.add(needed)
            needed = by_uid[needed].needs
    return tuple(run for run in sweep.runs if run.uid in kept)


def _plans(runs: Sequence[PlannedRun]) -> dict[str, Plan]:
    """{uid: derived numbers}; every set of problems is read, once for all runs that share it."""
    from population.grading import reward_service
    from population.run import plan_of, prepare

    plans: dict[str, Plan] = {}
    known: dict[str, Plan] = {}
    for run in runs:
        tree = run.config.model_dump(mode="json", exclude={"seed", "warm_start_seed", "store", "folder", "name"})
        key = json.dumps(tree, sort_keys=True)
        if key not in known:
            with reward_service(run.config.rewards) as service:
                known[key] = plan_of(prepare(run.config, service), {})
        plans[run.uid] = known[key]
    return plans


def print_plan(console: Console, checked: Checked) -> None:
    """What would be run: counts of every arm, what is done already, and the time it takes where that can be told."""
    runs, plans = checked.runs, checked.plans
    pace = _seconds_per_rollout(checked)
    console.print(
        f"{checked.sweep.spec.name}: {len(runs)} runs in {checked.sweep.folder}", highlight=False, soft_wrap=True
    )
    table = Table()
    table.add_column("arm", no_wrap=True)
    for heading in ("runs", "done", "steps", "rollouts", "tokens, at most", "time"):
        table.add_column(heading, justify="right")
    left = 0.0
    for arm in checked.sweep.arms:
        own = [run for run in runs if run.arm == arm.name]
        if not own:
            continue
        plan = plans[own[0].uid]
        done = sum(checked.states[run.uid] == "finished" for run in own)
        left += (len(own) - done) * plan.rollouts_total * (pace or 0.0)
        table.add_row(
            arm.name, str(len(own)), str(done), f"{plan.steps:,}", f"{plan.rollouts_total:,}",
            f"{plan.response_tokens_at_most * plan.steps:,}",
            ABSENT if pace is None else duration(plan.rollouts_total * pace),
        )  # fmt: skip
    console.print(table)
    console.print("Steps, rollouts, response tokens and time are of one run.", highlight=False)
    total = sum(plans[run.uid].rollouts_total for run in runs)
    samples = sum(plans[run.uid].evaluation_samples_total for run in runs)
    console.print(f"{total:,} rollouts and {samples:,} evaluation samples in all.", highlight=False)
    time_left = "not known before a run of it has finished" if pace is None else f"about {duration(left)}, one by one"
    console.print(f"Time left: {time_left}.", highlight=False)


def _seconds_per_rollout(checked: Checked) -> float | None:
    """Wall seconds of the finished runs over their rollouts, evaluation included."""
    seconds, rollouts = 0.0, 0
    for run in checked.runs:
        info = recorded(run) if checked.states[run.uid] == "finished" else None
        if info is not None and info.heartbeat is not None:
            seconds += info.heartbeat - info.created
            rollouts += checked.plans[run.uid].rollouts_total
    return seconds / rollouts if rollouts else None


def run(console: Console, checked: Checked, jobs: int) -> int:
    """Run what is not finished and print the comparison; returns the exit code: 0, or 1 when a run failed."""
    sweep, runs = checked.sweep, checked.runs
    try:
        sweep.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SweepError(f"{sweep.folder}: cannot be made ({error.strerror}); choose another --folder") from None
    with _alone(sweep.folder):
        write_manifest(sweep.folder, sweep.manifest)
        lengths = {one.uid: checked.plans[one.uid].steps for one in runs}
        with Display(console, runs, lengths, _recorded_steps(checked)) as display:
            outcomes = supervise(runs, checked.states, jobs, sweep.spec.deadline_s, display)
        failed = [outcome for outcome in outcomes if not outcome.finished]
        if len(failed) < len(outcomes):
            _compare(console, sweep.folder)
    if failed:
        names = ", ".join(outcome.run.uid for outcome in failed)
        console.print(
            f"{len(failed)} of {len(outcomes)} runs FAILED: {names}; their logs are in {sweep.folder}/RUN/log.txt, "
            "the same command tries them again",
            highlight=False,
            soft_wrap=True,
        )
    return 1 if failed else 0


def _recorded_steps(checked: Checked) -> dict[str, int]:
    """{uid: steps recorded so far}."""
    found = {run.uid: recorded(run) for run in checked.runs if checked.states[run.uid] != "new"}
    return {uid: info.last_step or 0 for uid, info in found.items() if info is not None}


def _compare(console: Console, folder: Path) -> None:
    """Print the comparison and leave it in the folder, as JSON and as Markdown."""
    comparison = compare([str(folder)], store="")
    show(console, comparison, Format.TABLE)
    for suffix, kind in ((".json", Format.JSON), (".md", Format.MARKDOWN)):
        with (folder / f"{RESULTS}{suffix}").open("w") as file:
            show(Console(file=file), comparison, kind)
    console.print(
        f"Again, or otherwise: graft compare {folder} (--json, --csv, --latex, --markdown)", highlight=False
    )  # fmt: skip


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Refuse a second sweep in the same folder while this one runs. Raises SweepError."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SweepError(f"{folder}: another sweep is running there; wait for it, or choose --folder") from None
        yield
