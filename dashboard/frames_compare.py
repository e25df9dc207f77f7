"""Frames of the Compare page: pure, no Streamlit. Points are the runs' own; nothing is interpolated or filled in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from dashboard import formats
from server.store.reader import Arm, Comparison, Paired, RunResult, Spread

POINT_COLUMNS = ["arm", "run", "x", "value", "low", "high", "detail", "lone"]
MEAN_COLUMNS = ["arm", "x", "value", "low", "high", "detail"]
# With at most this many points each of them is marked.
_MARKED = 12
# Two seeds give an interval wider than any chart: a band needs three.
FEWEST_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One run's points: what they are lined up by, and the value; in ascending order of the former. `bounds`: the 95 %
    interval of every point, where there is one within a run."""

    arm: str
    run: str
    seed: int
    x: tuple[float, ...]
    value: tuple[float, ...]
    bounds: tuple[tuple[float, float], ...] = ()


def shown(value: float, percent: bool) -> str:
    """A value of a curve as text."""
    if percent or not math.isfinite(value):
        return formats.percent(value) if math.isfinite(value) else formats.MISSING
    return formats.short(value, 4)


def scores_by_step(run: RunResult, members: Sequence[str], benchmarks: Sequence[str]) -> dict[int, float]:
    """Mean over members of the mean over benchmarks at every step at which all of them were evaluated."""
    found = {}
    for step in run.steps:
        values = [run.accuracy.get(name, {}).get(step, {}).get(member) for name in benchmarks for member in members]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            found[step] = math.fsum(known) / len(known)
    return found


def _amount(x: float, unit: str) -> str:
    """ "1 step", "0.25 GPU hours"; `unit` is a plural."""
    return f"{x:,.4g} {unit.removesuffix('s') if x == 1 else unit}"


def points(lines: Sequence[Line], percent: bool, unit: str) -> pd.DataFrame:
    """Frame "points" of `charts_compare.overlay`."""
    rows = []
    for line in lines:
        for place, (x, value) in enumerate(zip(line.x, line.value, strict=True)):
            beside = [line.value[at] for at in (place - 1, place + 1) if 0 <= at < len(line.value)]
            lone = math.isfinite(value) and (len(line.x) <= _MARKED or not any(map(math.isfinite, beside)))
            low, high = line.bounds[place] if line.bounds else (math.nan, math.nan)
            around = f" ({shown(low, percent)} to {shown(high, percent)})" if math.isfinite(low) else ""
            detail = f"{shown(value, percent)}{around} at {_amount(x, unit)}"
            rows.append((line.arm, line.run, x, value, low, high, detail, lone))
    return pd.DataFrame(rows, columns=POINT_COLUMNS)


def means(lines: Sequence[Line], percent: bool, unit: str) -> pd.DataFrame:
    """Frame "means" of `charts_compare.overlay`: of arms with several runs, where all of them have a point."""
    rows = []
    for arm in dict.fromkeys(line.arm for line in lines):
        own = [dict(zip(line.x, line.value, strict=True)) for line in lines if line.arm == arm]
        if len(own) < 2:
            continue
        for x in sorted(set.intersection(*(set(one) for one in own))):
            values = [one[x] for one in own]
            if not all(map(math.isfinite, values)):
                continue
            over_seeds = Paired(dict(enumerate(values)))
            middle, interval = over_seeds.mean, over_seeds.interval
            if middle is None:
                continue
            text = shown(middle, percent)
            low, high = math.nan, math.nan
            if interval is not None and len(own) >= FEWEST_SEEDS:
                low, high = (min(max(bound, 0.0), 1.0) for bound in interval) if percent else interval
                text += f" ({shown(low, percent)} to {shown(high, percent)})"
            rows.append((arm, x, middle, low, high, f"{text} at {_amount(x, unit)}, n = {len(own)} seeds"))
    return pd.DataFrame(rows, columns=MEAN_COLUMNS)


def common_members(arms: Iterable[Arm]) -> list[str]:
    """The members that every run of every arm trains, in the order of the first."""
    runs = [run for arm in arms for run in arm.runs.values()]
    return [name for name in runs[0].members if all(name in run.members for run in runs)] if runs else []


def common_benchmarks(arms: Iterable[Arm]) -> list[str]:
    """The test benchmarks that every run was evaluated on, in the order of the first; validation ones do not report."""
    runs = [run for arm in arms for run in arm.runs.values()]
    own = [[name for name, one in run.protocol.items() if one.role == "test"] for run in runs]
    return [name for name in own[0] if all(name in names for names in own)] if own else []


def spread_text(values: Spread) -> str:
    """Mean ± sample standard deviation in percent, and over how many seeds."""
    if values.mean is None:
        return formats.MISSING
    sd = f" ± {formats.number(100 * values.sd, 1)}" if values.sd is not None else ""
    return f"{formats.number(100 * values.mean, 1)}{sd} (n {values.n})"


def difference_text(paired: Paired) -> str:
    """A difference in points with its interval and the number of pairs; a dash without a pair."""
    if paired.mean is None:
        return formats.MISSING
    text = formats.signed(100 * paired.mean, 1)
    if paired.interval is not None:
        low, high = (formats.signed(100 * bound, 1) for bound in paired.interval)
        text += f" ({low} to {high})"
    return f"{text}, n {paired.n}"


def difference_rows(
    comparison: Comparison, baseline: Arm, basis: str, members: Sequence[str]
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """(frame "differences" of `charts_compare.differences` over the mean of the members, rows of the table)."""
    drawn, table = [], []
    for order, arm in enumerate(comparison.arms):
        is_baseline = arm.name == baseline.name
        whole = comparison.against(arm, baseline, basis)
        if not is_baseline and whole.mean is not None:
            low, high = whole.interval or (math.nan, math.nan)
            row = (arm.name, order, 100 * whole.mean, 100 * low, 100 * high, difference_text(whole))
            drawn.append(row)
        cells = {
            "Arm": arm.name,
            "Before": spread_text(comparison.before(arm)),
            "After": spread_text(comparison.after(arm)),
            "Difference": "baseline" if is_baseline else difference_text(whole),
        }
        for member in members if len(members) > 1 else ():
            paired = comparison.against(arm, baseline, basis, member)
            cells[member] = spread_text(comparison.after(arm, member)) if is_baseline else difference_text(paired)
        table.append(cells)
    return pd.DataFrame(drawn, columns=["row", "order", "value", "low", "high", "detail"]), table


def difference_numbers(comparison: Comparison, baseline: Arm, basis: str, members: Sequence[str]) -> pd.DataFrame:
    """Before, after and the difference to the baseline of every arm, over all members and for each, for files: shares,
    the sample standard deviation over n seeds of a level, the 95 % t interval over n pairs of a difference."""
    rows: list[dict[str, object]] = []
    for arm in comparison.arms:
        for member in (None, *members):
            head: dict[str, object] = {"arm": arm.name, "baseline": baseline.name, "member": member or "all"}
            for quantity, level in (
                ("before", comparison.before(arm, member)),
                ("after", comparison.after(arm, member)),
            ):
                rows.append(head | {"quantity": quantity, "n": level.n, "value": level.mean, "sd": level.sd})
            if arm.name != baseline.name:
                paired = comparison.against(arm, baseline, basis, member)
                low, high = paired.interval or (None, None)
                difference: dict[str, object] = {"quantity": "difference", "n": paired.n, "value": paired.mean}
                rows.append(head | difference | {"low": low, "high": high})
    columns = ["arm", "baseline", "member", "quantity", "n", "value", "sd", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def unpaired_notes(comparison: Comparison, baseline: Arm, basis: str) -> list[str]:
    """Seeds that have no partner, arm by arm."""
    found = []
    for arm in comparison.arms:
        if arm.name == baseline.name:
            continue
        paired = comparison.against(arm, baseline, basis)
        for name, seeds in ((arm.name, paired.unpaired), (baseline.name, paired.unpaired_baseline)):
            if seeds:
                found.append(f"{arm.name}: seed {', '.join(map(str, seeds))} of {name} has no partner and is left out")
    return found


def protocol_notes(arms: Sequence[Arm], benchmarks: Sequence[str]) -> list[str]:
    """Benchmarks that were not measured alike."""
    runs = [run for arm in arms for run in arm.runs.values()]
    return [
        f"{name} was measured with other problems, responses or temperatures in some runs: its differences mean little"
        for name in benchmarks
        if len({run.protocol[name] for run in runs}) > 1
    ]


def differing_settings(settings: Mapping[str, Mapping[str, str]]) -> pd.DataFrame:
    """The keys on which {arm: {key: value}} differ, a column an arm; a dash where an arm has no such key."""
    keys = list(dict.fromkeys(key for own in settings.values() for key in own))
    rows = [
        {"Setting": key, **{arm: own.get(key, formats.MISSING) for arm, own in settings.items()}}
        for key in keys
        if len({own.get(key) for own in settings.values()}) > 1
    ]
    return pd.DataFrame(rows, columns=["Setting", *settings])
