"""Compare: two to six runs, or sets of runs that differ in their seed: curves, differences, other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import charts_compare, formats, frames, frames_compare, parts, safe_text
from dashboard.controls import Choice, pick, pick_several, switch
from dashboard.frames_compare import Line
from dashboard.several import Group, Known, known_runs, seed_sets, settings_of, single
from dashboard.source import Source
from server.store.reader import CHECKPOINTS, EQUAL_COST, EQUAL_STEPS, Arm, Comparison, MeanInterval, arm_names

MOST = 6
STEPS, TOKENS, HOURS = "step", "tokens", "hours"
HELD_OUT = "held-out score"
# Curve -> (member count or metric, its denominator or None for a metric, whether it is a share).
CURVES: dict[str, tuple[str, str | None, bool]] = {
    "reward": ("successes", "rollouts", True),
    "all-fail rate": ("all_fail", "groups", True),
    "rescued by a peer": ("received", "all_fail", True),
    "response length": ("response_tokens", "rollouts", False),
    "truncated": ("truncated", "rollouts", True),
    "entropy": ("entropy", None, False),
    "loss": ("loss", None, False),
    "gradient norm": ("grad_norm", None, False),
}
ALL_MEMBERS = "mean of the members"


@dataclass(frozen=True)
class Axis:
    """What points are lined up by: the axis's title, its unit in a sentence, and how equal spending is judged."""

    title: str
    unit: str
    basis: str
    cost: str
    per_unit: float
    format: str


def draw(source: Source, choice: Choice) -> None:
    """The whole page, at one revision of every store."""
    parts.status_line(source, choice.window(source.info))
    known, faults = known_runs()
    for fault in faults:
        parts.warn(safe_text.inline(fault), "database_off")
    if len(known) < 2:
        with st.container(border=True):
            parts.nothing("There is one run so far. `graft dashboard --store A --store B` compares across stores.")
        return
    groups = _selection(source, known)
    stores = len({one.url for one in known})
    parts.caption(
        f"{formats.counted(len(known), 'run')} in {formats.counted(stores, 'store')} · whole runs, whatever the window"
    )
    if len(groups) < 2:
        parts.nothing("Choose two or more: the chosen runs are all of one set, which differs in its seed only.")
        return
    arms = [group.arm() for group in groups]
    axis = _axis(arms)
    with parts.card(stretch=False):
        _curves(groups, arms, axis)
    with parts.card(stretch=False):
        _differences(arms, axis)
    with parts.card(stretch=False):
        _settings(groups)
    left = [text for group in groups for text in group.notes]
    if left:
        parts.caption(f"Of these sets but left out: {safe_text.inline(', '.join(left[:12]))}.")


def _selection(source: Source, known: list[Known]) -> list[Group]:
    """What is compared, in the order chosen, so that an arm keeps its colour when another one is added."""
    by_token = {one.token: one for one in known}
    left, right = st.columns([4, 1], vertical_alignment="bottom")
    with left:
        picked = pick_several(
            "Runs",
            list(by_token),
            key="runs",
            most=MOST,
            placeholder="this run and the newest of another kind",
            help="Two to six runs of all stores of this server, in the colours of their order.",
        )
    with right:
        pooled = switch("Seed sets", key="sets", help="Take with each run all finished ones that differ in seed only.")
    order = [one for one in st.session_state.get("runs") or [] if one in picked and one in by_token]
    chosen = [by_token[token] for token in order] or _by_itself(source, known)
    return seed_sets(chosen, known) if pooled else single(chosen)


def _by_itself(source: Source, known: list[Known]) -> list[Known]:
    """Without a choice: the shown run, and the newest one that was configured otherwise, or else the newest other."""
    shown = next((one for one in known if (one.info.uid, one.url) == (source.info.uid, source.url)), known[0])
    arms = dict(zip([one.token for one in known], arm_names([one.info for one in known]), strict=True))
    others = [one for one in known if one is not shown]
    unlike = [one for one in others if arms[one.token] != arms[shown.token]]
    return [shown, (unlike or others)[0]]


def _axis(arms: Sequence[Arm]) -> Axis:
    """The chosen alignment; hours are the GPUs' where every run recorded them, else the CPUs'."""
    by = pick(
        "Line up by",
        (STEPS, TOKENS, HOURS),
        key="x",
        segments=True,
        help="Steps, sampled tokens, or GPU hours (CPU hours where a run used no GPU). Points are the runs' own: none "
        "is interpolated.",
    )
    if by == STEPS:
        return Axis("training step", "steps", EQUAL_STEPS, "rollout_tokens", 1.0, ",d")
    if by == TOKENS:
        return Axis("sampled tokens", "sampled tokens", EQUAL_COST, "rollout_tokens", 1.0, "~s")
    gpu = all("gpu_seconds" in run.cost for arm in arms for run in arm.runs.values())
    name = "GPU hours" if gpu else "CPU hours"
    return Axis(name, name, EQUAL_COST, "gpu_seconds" if gpu else "cpu_seconds", 3600.0, "~g")


def _curves(groups: Sequence[Group], arms: Sequence[Arm], axis: Axis) -> None:
    members, benchmarks = frames_compare.common_members(arms), frames_compare.common_benchmarks(arms)
    if not members:
        parts.nothing("These runs train no member in common.")
        return
    curves = [HELD_OUT, *CURVES] if benchmarks else list(CURVES)
    left, right = st.columns(2)
    with left:
        curve = pick("Curve", curves, key="curve")
    with right:
        labels = formats.distinct(members, 28)
        who = pick("Member", [ALL_MEMBERS, *labels], key="who")
    chosen = [members[labels.index(who)]] if who in labels else members
    if curve not in curves:
        parts.nothing("These runs have no test benchmark in common.")
        return
    percent = curve == HELD_OUT or CURVES[curve][2]
    parts.title(
        curve.capitalize(),
        f"against {axis.title}, {safe_text.inline(who)}",
        "Every point is a run's own, with its 95 % interval over problems or rollouts where it is an arm by itself. In "
        "seed sets lined up by step, the thick line is the mean over seeds where all have a point, with its 95 % t "
        "interval for three or more; by tokens or hours they share no point, so none.",
    )
    if curve == HELD_OUT:
        lines = [_score_line(arm, one, chosen, benchmarks, axis) for arm, one in _runs(groups, arms)]
    else:
        edges = _shared_edges([one for _, one in _runs(groups, arms)])
        lines = [_training_line(arm, one, chosen, curve, edges, axis) for arm, one in _runs(groups, arms)]
    missing = [line.run for line in lines if not line.x]
    names = [arm.name for arm in arms]
    parts.chart(
        charts_compare.overlay(
            names,
            parts.colours(),
            x_title=axis.title,
            x_format=axis.format,
            quantity=curve,
            percent=percent,
            height=300 + 18 * len(names),
        ),
        key="compare_curves",
        points=frames_compare.points(lines, percent, axis.unit),
        means=frames_compare.means(lines, percent, axis.unit),
    )
    if missing:
        parts.caption(f"Not recorded by {safe_text.inline(', '.join(missing[:8]))}.")
    if curve == HELD_OUT and len(benchmarks) > 1:
        parts.caption(f"Unweighted mean of {safe_text.inline(', '.join(benchmarks))}.")


def _runs(groups: Sequence[Group], arms: Sequence[Arm]) -> list[tuple[Arm, Known]]:
    return [(arm, one) for group, arm in zip(groups, arms, strict=True) for one in group.runs]


def _score_line(arm: Arm, one: Known, members: Sequence[str], benchmarks: Sequence[str], axis: Axis) -> Line:
    """Held-out scores at the run's own evaluated steps."""
    run = arm.runs[one.info.seed]
    scores = frames_compare.scores_by_step(run, members, benchmarks)
    if axis.basis == EQUAL_STEPS:
        places = {step: float(step) for step in scores}
    else:
        spent = {step: run.spent(axis.cost, step, members) for step in scores}
        places = {step: cost / axis.per_unit for step, cost in spent.items() if cost is not None}
    kept = sorted(places)
    # In a set the interval is that over its seeds.
    joint = {} if len(arm.runs) > 1 else _joint_scores(one, members, benchmarks, kept)
    bounds = tuple((joint[step].low, joint[step].high) for step in kept) if joint else ()
    x, value = (tuple(part[step] for step in kept) for part in (places, scores))
    return Line(arm.name, one.token, one.info.seed, x, value, bounds)


def _joint_scores(
    one: Known, members: Sequence[str], benchmarks: Sequence[str], steps: Sequence[int]
) -> dict[int, MeanInterval]:
    """{step: score of the members with its interval over problems}."""
    return one.source().joint_scores(tuple(members), tuple(benchmarks), tuple(steps))


def _shared_edges(runs: Sequence[Known]) -> tuple[int, ...]:
    """The same buckets for all runs, so that their points lie at the same steps."""
    first = min((one.info.first_step or 1 for one in runs), default=1)
    last = max((one.info.last_step or 0 for one in runs), default=0)
    return tuple(frames.bucket_edges(first, max(first, last)))


def _training_line(
    arm: Arm, one: Known, members: Sequence[str], curve: str, edges: tuple[int, ...], axis: Axis
) -> Line:
    """A metric of training, pooled within each bucket and over members; a bucket that the run did not fill has none."""
    ends = [edge for edge in edges if edge <= (one.info.last_step or 0)]
    own = tuple(dict.fromkeys([*ends, *([one.info.last_step] if one.info.last_step else [])]))
    empty = Line(arm.name, one.token, one.info.seed, (), ())
    if len(own) < 2:
        return empty
    source, what = one.source(), CURVES[curve]
    slots = [slot for slot, member in enumerate(one.info.members) if member.name in members]
    if what[1] is None:
        numerator, denominator = source.ask("metric_history", what[0], own)
    else:
        history = source.ask("member_history", own)
        numerator, denominator = history[what[0]], history[what[1]]
    top, bottom = numerator[:, slots].sum(axis=1), denominator[:, slots].sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(bottom > 0, top / bottom, np.nan)
    if not np.isfinite(value).any():
        return empty
    x = _spent(source, one, members, slots, own, axis)
    if x is None:
        return empty
    shares = CURVES[curve][2] and len(arm.runs) == 1
    bounds = tuple(zip(*(part.tolist() for part in frames.wilson(top, bottom)[1:]), strict=True)) if shares else ()
    return Line(arm.name, one.token, one.info.seed, tuple(x.tolist()), tuple(value.tolist()), bounds)


def _spent(
    source: Source, one: Known, members: Sequence[str], slots: Sequence[int], edges: tuple[int, ...], axis: Axis
) -> np.ndarray | None:
    """Where each bucket's end lies on the axis; None where the run did not record it in every step."""
    if axis.basis == EQUAL_STEPS:
        return np.array(edges[1:], float)
    if axis.cost == "rollout_tokens":
        tokens = source.ask("metric_history", "response_tokens", edges)[0]
        return np.cumsum(tokens[:, slots].sum(axis=1))
    name = "gpu_seconds" if axis.cost == "gpu_seconds" else "seconds_cpu"
    seconds, counted = source.ask("run_metric_history", name, edges)
    if not np.array_equal(counted, [high - low for low, high in pairwise(edges)]):
        return None
    share = len(slots) / max(len(one.result().members), 1)
    return np.cumsum(seconds) * share / axis.per_unit


def _differences(arms: Sequence[Arm], axis: Axis) -> None:
    names = [arm.name for arm in arms]
    left, right = st.columns(2)
    with left:
        base = pick("Baseline", names, key="base", keep=False)
    with right:
        which = pick(
            "Checkpoint", list(CHECKPOINTS), key="ckpt", help="The last evaluation, the best one, or its repeats."
        )
    baseline = arms[names.index(base)]
    comparison = Comparison(tuple(arms), (base,), axis.cost, CHECKPOINTS[which])
    parts.title(
        "Differences",
        "held-out score in percent, paired by seed",
        "Arm less baseline of the same seed, over the members and test benchmarks of both: mean and 95 % t interval "
        "over n seeds. The arm's newest evaluation within what the baseline spent counts; ± is the standard deviation "
        "over seeds.",
    )
    if not comparison.benchmarks:
        parts.nothing("These runs have no test benchmark.")
        return
    members = frames_compare.common_members(arms)
    drawn, table = frames_compare.difference_rows(comparison, baseline, axis.basis, members)
    if len(drawn):
        parts.chart(
            charts_compare.differences(parts.colours(), len(drawn)), key="compare_differences", differences=drawn
        )
    parts.sortable_table(
        pd.DataFrame(table),
        key="compare_table",
        data=lambda: frames_compare.difference_numbers(comparison, baseline, axis.basis, members),
        height="content",
    )
    within = {EQUAL_STEPS: "steps"}.get(axis.basis, axis.unit)
    said = [f"Evaluation: {CHECKPOINTS[which].description}, within the baseline's {within}"]
    said += frames_compare.unpaired_notes(comparison, baseline, axis.basis)
    said += frames_compare.protocol_notes(arms, frames_compare.common_benchmarks(arms))
    if all(len(arm.runs) == 1 for arm in arms):
        said.append("one run an arm: no interval; choose seed sets, or read the problems' own intervals on Evaluation")
    parts.caption(safe_text.inline(" · ".join(said) + "."))


def _settings(groups: Sequence[Group]) -> None:
    """The keys of the configuration that differ, and nothing else."""
    parts.title("Settings that differ", "keys of the configuration, secrets masked")
    table = frames_compare.differing_settings({group.name: settings_of(group.runs[0].info) for group in groups})
    if table.empty:
        parts.nothing("None, apart from the seed, the places on disk, checkpoints and deadlines.")
        return
    parts.sortable_table(table, key="compare_settings", height="content" if len(table) <= 15 else 560)
    seeds = "; ".join(f"{group.name}: {', '.join(str(one.info.seed) for one in group.runs)}" for group in groups)
    parts.caption(safe_text.inline(f"Seeds: {seeds}."))
