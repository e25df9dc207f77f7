"""A comparison of arms: spreads over seeds, and differences paired by seed.

An arm is a set of runs that differ in their seed. Every value is of one run: the mean over members of the mean over
benchmarks, at the checkpoint compared. A value with a part missing is missing; nothing is filled in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from server.store.results import CHECKPOINTS, COSTS, Checkpoint, RunResult

# At the end of both runs, or the arm's newest evaluation within what the baseline spent in its whole run.
AT_END, EQUAL_ROLLOUTS, EQUAL_COST = "end", "equal_rollouts", "equal_cost"
# The arm's newest evaluation up to the baseline's last one.
EQUAL_STEPS = "equal_steps"
BASES = (AT_END, EQUAL_ROLLOUTS, EQUAL_COST)
# A sum of shares of seconds may differ in its last bits from the same sum made otherwise.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed only, one for each seed, by seed."""

    name: str
    runs: Mapping[int, RunResult]
    description: str = ""

    @property
    def members(self) -> tuple[str, ...]:
        """The members that its runs train."""
        return tuple(dict.fromkeys(name for run in self.runs.values() for name in run.members))


@dataclass(frozen=True)
class Spread:
    """Values by seed with their mean and sample standard deviation; None where there are too few for it."""

    by_seed: Mapping[int, float]

    @property
    def n(self) -> int:
        """How many seeds have a value."""
        return len(self.by_seed)

    @property
    def mean(self) -> float | None:
        """Mean over seeds."""
        return float(np.mean(list(self.by_seed.values()))) if self.by_seed else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation over seeds."""
        return float(np.std(list(self.by_seed.values()), ddof=1)) if self.n > 1 else None


@dataclass(frozen=True)
class Paired(Spread):
    """Differences by seed, and the seeds that one side has alone."""

    unpaired: tuple[int, ...] = ()
    unpaired_baseline: tuple[int, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % t interval of the mean; None for fewer than two pairs."""
        if self.n < 2 or self.mean is None:
            return None
        half = float(stdtrit(self.n - 1, 0.975)) * (self.sd or 0.0) / math.sqrt(self.n)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Comparison:
    """Arms side by side. ``cost`` is the kind that "equal cost" means; ``notes`` say what was left out, and why."""

    arms: tuple[Arm, ...]
    baselines: tuple[str, ...]
    cost: str
    checkpoint: Checkpoint = CHECKPOINTS["last"]
    notes: tuple[str, ...] = ()

    def arm(self, name: str) -> Arm:
        """The arm of a name."""
        return next(arm for arm in self.arms if arm.name == name)

    @property
    def members(self) -> tuple[str, ...]:
        """All members of all arms, first seen first."""
        return tuple(dict.fromkeys(name for arm in self.arms for name in arm.members))

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """The test benchmarks of all runs, first seen first."""
        runs = [run for arm in self.arms for run in arm.runs.values()]
        return tuple(dict.fromkeys(name for run in runs for name, one in run.protocol.items() if one.role == "test"))

    @property
    def cost_kinds(self) -> tuple[str, ...]:
        """The kinds of cost that some run recorded."""
        runs = [run for arm in self.arms for run in arm.runs.values()]
        return tuple(kind for kind in COSTS if any(kind in run.cost for run in runs))

    def before(self, arm: Arm, member: str | None = None, benchmark: str | None = None) -> Spread:
        """Before the first step; ``member`` None: mean over the arm's members, ``benchmark`` None: over benchmarks."""
        found = {seed: self._score(run, members_of(run, member), benchmark, [0]) for seed, run in arm.runs.items()}
        return _spread(found)

    def after(self, arm: Arm, member: str | None = None, benchmark: str | None = None) -> Spread:
        """At the checkpoint compared; arguments as for :meth:`before`."""
        found = {
            seed: self._score(run, members_of(run, member), benchmark, run.steps) for seed, run in arm.runs.items()
        }
        return _spread(found)

    def spent(self, arm: Arm, kind: str, member: str | None = None) -> Spread:
        """Cost of whole runs."""
        return _spread({seed: run.total(kind, members_of(run, member)) for seed, run in arm.runs.items()})

    def against(
        self, arm: Arm, baseline: Arm, basis: str = AT_END, member: str | None = None, benchmark: str | None = None
    ) -> Paired:
        """Differences arm - baseline by seed, over the members that both have: a pair is compared with the same two
        trained otherwise. The baseline is always at its own checkpoint; ``basis`` says how far the arm may have gone.
        """
        differences = {}
        for seed in sorted(set(arm.runs) & set(baseline.runs)):
            a, b = arm.runs[seed], baseline.runs[seed]
            members = [name for name in members_of(a, member) if name in b.members]
            reference = self._score(b, members, benchmark, b.steps)
            value = self._score(a, members, benchmark, self._within(a, b, basis, members))
            if value is not None and reference is not None:
                differences[seed] = value - reference
        left = [tuple(sorted(set(side.runs) - set(differences))) for side in (arm, baseline)]
        return Paired(differences, *left)

    def _within(self, run: RunResult, baseline: RunResult, basis: str, members: Sequence[str]) -> Sequence[int]:
        """The evaluated steps of a run up to what the baseline spent on these members."""
        if basis == AT_END:
            return run.steps
        if basis == EQUAL_STEPS:
            last = max(baseline.steps, default=-1)
            return [step for step in run.steps if step <= last]
        kind = "rollouts" if basis == EQUAL_ROLLOUTS else self.cost
        budget = baseline.total(kind, members)
        spent = {step: run.spent(kind, step, members) for step in run.steps}
        if budget is None:
            return ()
        return [s for s, cost in spent.items() if cost is not None and cost <= budget * (1 + _ROUNDING)]

    def _score(
        self, run: RunResult, members: Sequence[str], benchmark: str | None, steps: Sequence[int]
    ) -> float | None:
        """Mean over members of the mean over benchmarks; None when a part is missing."""
        benchmarks = self.benchmarks if benchmark is None else (benchmark,)
        steps = [step for step in steps if step in run.steps]
        if not members or not steps or not benchmarks:
            return None
        scores = []
        for member in members:
            step = self.checkpoint.pick(run, member, steps)
            measured = run.repeats if self.checkpoint.repeated and step != 0 else run.accuracy
            own = [None if step is None else measured.get(b, {}).get(step, {}).get(member) for b in benchmarks]
            known = [score for score in own if score is not None]
            if len(known) < len(own):
                return None
            scores.append(math.fsum(known) / len(known))
        return math.fsum(scores) / len(scores)


def members_of(run: RunResult, member: str | None) -> tuple[str, ...]:
    """One member of a run (none if it has no such member), or all of them."""
    return run.members if member is None else tuple(name for name in run.members if name == member)


def _spread(values: Mapping[int, float | None]) -> Spread:
    return Spread({seed: value for seed, value in sorted(values.items()) if value is not None})


def default_baseline(arms: Sequence[Arm]) -> str:
    """Independent GRPO where an arm is that, else the first arm."""
    independent = [arm.name for arm in arms if {run.method for run in arm.runs.values()} == {"grpo"}]
    return (independent or [arm.name for arm in arms])[0]


def default_cost(arms: Sequence[Arm]) -> str:
    """GPU seconds where every run recorded them, else CPU seconds."""
    runs = [run for arm in arms for run in arm.runs.values()]
    return "gpu_seconds" if runs and all("gpu_seconds" in run.cost for run in runs) else "cpu_seconds"
