"""Evaluation: how good is every member on held-out problems, against what it cost and what the paper printed?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import charts, charts_compare, formats, frames, frames_evaluation, paper, parts, safe_text
from dashboard.controls import Choice, pick
from dashboard.frames_evaluation import MEAN, OTHERS, Scored
from dashboard.several import Known, known_runs
from dashboard.source import Source
from server.store.reader import EvaluationSummary, MeanInterval, RunResult

NO_BASELINE = "none"
# Other runs whose best checkpoints are drawn beside this one's.
MOST_RUNS = 40


def draw(source: Source, choice: Choice) -> None:
    """The whole page, at one revision of the store."""
    parts.status_line(source, choice.window(source.info))
    evaluations = source.evaluations()
    if not evaluations:
        with st.container(border=True):
            configured = source.info.config.get("evaluation", {}).get("benchmarks")
            parts.nothing("No evaluation yet." if configured else "No benchmark is configured for this run.")
            _paper(source, [])
        return
    known, _ = known_runs()
    base = _baseline(source, known)
    slots = choice.slots(source.info)
    benchmarks = list(dict.fromkeys(one.benchmark for one in evaluations))
    with parts.guarded():
        members = _members(source, slots, evaluations, base)
        with parts.card(stretch=False):
            _table(source, members, evaluations, benchmarks, base)
        with parts.card(stretch=False):
            _several(members, benchmarks)
        beside = parts.side_by_side()
        with beside, parts.card():
            _curves(source, slots, evaluations, benchmarks)
        with beside, parts.card():
            _frontier(source, known, base)
        with parts.card(stretch=False):
            _paper(source, members)


def _baseline(source: Source, known: Sequence[Known]) -> Known | None:
    """The run that this one is measured against, of any store."""
    others = {one.token: one for one in known if (one.info.uid, one.url) != (source.info.uid, source.url)}
    token = pick(
        "Baseline",
        [NO_BASELINE, *others],
        key="against",
        width=340,
        help="Another run, a GRPO run for instance: differences are taken problem by problem, and its line is dashed.",
    )
    return others.get(token)


def _last_steps(evaluations: Sequence[EvaluationSummary]) -> dict[tuple[str, str], int]:
    """{(benchmark, member): last evaluated step}."""
    return {(one.benchmark, one.member): one.step for one in sorted(evaluations, key=lambda one: one.step)}


def _members(
    source: Source, slots: Sequence[int], evaluations: Sequence[EvaluationSummary], base: Known | None
) -> list[Scored]:
    best = {one.member: one for one in source.best()}
    steps = tuple((name, one.step) for name, one in best.items())
    changes = {}
    if base is not None:
        other = base.source()
        compared = [(one.url, one.file, one.info.uid, one.evaluation_mark) for one in (source, other)]
        changes = _changes(repr(compared), source, other)
    scores, repeats = source.ask("scores", steps), source.ask("scores", steps, repeats=True)
    found = []
    for slot in slots:
        name = source.info.members[slot].name
        found.append(
            Scored(
                name,
                parts.labels(source.info, 20)[slot],
                best.get(name),
                {one.benchmark: one for one in scores if one.member == name},
                {one.benchmark: one for one in repeats if one.member == name},
                changes.get(name, {}),
            )
        )
    return found


@st.cache_data(show_spinner=False, max_entries=32)
def _changes(compared: str, _source: Source, _other: Source) -> dict[str, dict[str, MeanInterval]]:
    """{member: {benchmark: last evaluation less the baseline's last one}}, over the problems that both have."""
    own, theirs = _last_steps(_source.evaluations()), _last_steps(_other.evaluations())
    found: dict[str, dict[str, MeanInterval]] = {}
    for (benchmark, member), step in own.items():
        beside = theirs.get((benchmark, member))
        if beside is not None:
            change, _ = frames_evaluation.paired_by_problem(
                _source.ask("evaluation_problems", benchmark, step, member),
                _other.ask("evaluation_problems", benchmark, beside, member),
            )
            found.setdefault(member, {})[benchmark] = change
    return found


def _table(
    source: Source,
    members: Sequence[Scored],
    evaluations: Sequence[EvaluationSummary],
    benchmarks: Sequence[str],
    base: Known | None,
) -> None:
    parts.title(
        "Benchmarks",
        "pass@1 before training, last and best",
        "Mean over problems of the share of right responses, with a 95 % interval over problems (Wilson at their "
        "effective number, since responses to one problem are alike).",
    )
    selection = source.result().selection
    selecting = () if selection.rule == "last" else selection.benchmarks
    rows = frames_evaluation.table(members, evaluations, benchmarks, selecting, base is not None)
    column = st.column_config
    notes = {
        "For": "Selection: its scores chose the best checkpoints, so that theirs on it are high by luck too. Report: "
        "it is a test set.",
        "Before": "At step 0.",
        "Best": "The checkpoint that the run's own rule chose, and its step.",
        "Repeated": "The best checkpoint measured again: mean ± standard deviation over n passes, in percent.",
        "n": "Problems × responses to each.",
        "Less baseline": "Last evaluation less the baseline's last one, in points, paired by problem, with a 95 % "
        "interval over problems.",
    }
    parts.sortable_table(
        rows,
        key="evaluation_table",
        data=lambda: frames_evaluation.score_numbers(members, evaluations),
        height="content" if len(rows) <= 20 else 700,
        column_config={name: column.TextColumn(name, help=text) for name, text in notes.items() if name in rows},
    )
    parts.caption(safe_text.inline(" · ".join(_notes(members, evaluations, base))) + ".")


def _several(members: Sequence[Scored], benchmarks: Sequence[str]) -> None:
    """pass@k and maj@k of the best checkpoints."""
    parts.title(
        "Several responses",
        "pass@k and maj@k of the best checkpoint, in the course of training",
        "pass@k: the chance that one of k responses is right; maj@k: that their majority is, only where answers were "
        "told apart. Both unbiased over all sets of k responses. Intervals, 95 %: over problems, Wilson at their "
        "effective number. n: problems × responses to each.",
    )
    rows = frames_evaluation.table_of_k(members, benchmarks)
    if rows.empty:
        parts.nothing("No trained checkpoint was evaluated yet.")
        return
    parts.sortable_table(
        rows,
        key="evaluation_several",
        data=lambda: frames_evaluation.numbers_of_k(members, benchmarks),
        height="content" if len(rows) <= 20 else 700,
    )


def _notes(members: Sequence[Scored], evaluations: Sequence[EvaluationSummary], base: Known | None) -> list[str]:
    chosen = [member.best for member in members if member.best is not None]
    said = []
    if chosen:
        where = "validation sets" if chosen[0].selected_on == "validation" else "the test sets themselves"
        said.append(f"best: rule {chosen[0].rule} on {where} ({', '.join(chosen[0].benchmarks)})")
    heat = sorted({one.temperature for one in evaluations})
    said.append(f"temperature {', '.join(formats.number(one, 1) for one in heat)}")
    said.append("one run: intervals are over problems; over seeds, see Compare")
    if base is not None:
        said.append(f"baseline {base.token}: {base.info.method}, seed {base.info.seed}")
    return said


def _curves(
    source: Source, slots: Sequence[int], evaluations: Sequence[EvaluationSummary], benchmarks: Sequence[str]
) -> None:
    tests = _tests(evaluations)
    chosen = pick("Score", [*([MEAN] if len(tests) > 1 else []), *benchmarks], key="score", hide_label=True)
    parts.title(
        "Score over training", safe_text.inline(formats.clean(chosen, 40)), "With 95 % intervals over problems."
    )
    scores = frames_evaluation.figures(evaluations, tests if chosen == MEAN else [chosen])
    members, asked = [member.name for member in source.info.members], len(slots)
    last = [next(reversed(scores[name].values())).mean if scores.get(name) else np.nan for name in members]
    slots = frames.most_telling(slots, frames.unlike(np.array(last)))
    names = [members[slot] for slot in slots]
    labels = [parts.labels(source.info)[slot] for slot in slots]
    curves, hover = frames_evaluation.curves(names, labels, scores)
    if curves.empty:
        parts.nothing("No step has all of these benchmarks.")
        return
    spec = charts.curves(
        labels, parts.colours(), quantity="held-out score", height=parts.curve_height(len(labels)) + 60, slots=slots
    )
    parts.chart(spec, key="evaluation_curves", curves=curves, hover=hover)
    parts.cut_note(len(slots), asked, "furthest from the mean at last")


def _tests(evaluations: Sequence[EvaluationSummary]) -> list[str]:
    """The benchmarks that report; a run that only has others is shown by those."""
    own = {one.benchmark: one.role for one in evaluations}
    return [name for name, role in own.items() if role == "test"] or list(own)


def _frontier(source: Source, known: Sequence[Known], base: Known | None) -> None:
    """Score against what it cost, as in the paper's figure 3a."""
    own: RunResult = source.result()
    tests, cost = _tests(source.evaluations()), frames_evaluation.cost_kind(own)
    parts.title(
        "Score against cost",
        "mean over members and test sets",
        "As the paper's figure 3a: hours of all members together up to each evaluation, without evaluation and "
        "checkpoints, with 95 % intervals over problems. Large: the best evaluation of a run, and all of other runs. "
        "Grey steps: the highest score that a cost bought in any of them.",
    )
    if cost is None:
        parts.nothing("This run recorded its time in only a part of its steps.")
        return
    kind, unit = cost
    here = next((one for one in known if (one.info.uid, one.url) == (source.info.uid, source.url)), None)
    drawn = [("this run", here.token if here else own.uid, _points(source, own, kind, tests))]
    if base is not None:
        drawn.append(("baseline", base.token, _points(base.source(), base.result(), kind, tests)))
    others = [one for one in known if one is not here and one is not base and _alike(one, source)][:MOST_RUNS]
    drawn += [(OTHERS, one.token, _points(one.source(), one.result(), kind, tests, best=True)) for one in others]
    with_points = [one for one in drawn if one[2]]
    if not with_points:
        parts.nothing("No step has all test sets of all members.")
        return
    kinds = list(dict.fromkeys(role for role, _, _ in with_points))
    spec = charts_compare.frontier(parts.colours(), kinds, x_title=unit)
    parts.chart(spec, key="evaluation_frontier", **frames_evaluation.frontier(with_points, unit))
    text = f"{formats.counted(len(with_points), 'run')} with these members and test sets"
    if base is not None and "baseline" not in kinds:
        text += f" · the baseline {base.token} has no such evaluations or no {unit}"
    parts.caption(safe_text.inline(text + "."))


def _points(
    source: Source, run: RunResult, kind: str, tests: Sequence[str], best: bool = False
) -> dict[int, tuple[float, MeanInterval]]:
    """{step: (hours, score)} of a run's evaluations, or of its best one alone; a run without some of it has none."""
    hours = frames_evaluation.cost_steps(run, kind, tests)
    steps = tuple(sorted(hours))
    if best and steps:
        steps = (frames_evaluation.best_step(run, steps, tests),)
    scores = source.joint_scores(run.members, tuple(tests), steps)
    return {step: (hours[step], score) for step, score in scores.items()}


def _alike(one: Known, source: Source) -> bool:
    """Whether a run trains the same models, by name."""
    return [member.name for member in one.info.members] == [member.name for member in source.info.members]


def _paper(source: Source, members: Sequence[Scored]) -> None:
    """The paper's table 1 beside ours, and what makes them not comparable."""
    info = source.info
    models = [member.model for member in info.members]
    rows, ours = paper.rows_for(models, info.method)
    benchmarks = list(dict.fromkeys(name for member in members for name in member.scores))
    reasons = paper.differences(info.config, models, info.method, info.total_steps, benchmarks)
    parts.title(
        "The paper's figures",
        "table 1, percent, best checkpoint",
        "Paper: mean ± standard deviation over five inference seeds of one trained checkpoint, chosen on the same test "
        "sets (arXiv 2609.37868). Ours: mean ± standard deviation over the repeats of the best checkpoint.",
    )
    if reasons:
        why = safe_text.inline("; ".join(formats.clean(one, 120) for one in reasons))
        parts.text(f":orange-badge[not comparable] {why}\\.")
    else:
        parts.text(":green-badge[same setting] by the recorded configuration\\.")
    scored = [member for member in members if any(paper.canonical(name) for name in member.scores)]
    run = source.result()
    spent = {one.name: run.spent("gpu_seconds", one.best.step, [one.name]) for one in scored if one.best}
    hours = {name: seconds / 3600 for name, seconds in spent.items() if seconds is not None}
    table: pd.DataFrame = frames_evaluation.paper_table(scored, {m.name: m.model for m in info.members}, hours, rows)
    parts.sortable_table(table, key="evaluation_paper", height="content")
    if not ours:
        parts.caption("None of this run's models is in the paper; its first pair is shown.")
