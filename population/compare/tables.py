"""A comparison for people: tables of text, on a terminal or as Markdown.

Accuracies are in percent and differences in points. First the mean over members, then every member, as the paper's
tables 7 and 8 have one part for each model, then the cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from server.store.comparison import AT_END, BASES, EQUAL_COST, EQUAL_ROLLOUTS, Arm, Comparison, Paired, Spread
from server.store.results import COSTS, Protocol, Selection

ABSENT = "–"
MEAN_OF_MEMBERS, AVERAGE = "mean of the members", "average"
# More seeds than this would not fit a line.
SHOWN_SEEDS = 5


@dataclass(frozen=True)
class TextTable:
    """A titled table of text cells; the first column is the arm."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(comparison: Comparison) -> list[TextTable]:
    """All tables of a comparison."""
    parts = [_mean_table(comparison)]
    parts += [_difference_table(comparison, baseline) for baseline in comparison.baselines]
    if len(comparison.members) > 1:
        parts += [_member_table(comparison, member) for member in comparison.members]
    return [*parts, _cost_table(comparison)]


def _whole(comparison: Comparison) -> str:
    """What a value without a member is called."""
    return MEAN_OF_MEMBERS if len(comparison.members) > 1 else comparison.members[0]


def _mean_table(comparison: Comparison) -> TextTable:
    """Accuracy, mean over members, with every seed where they fit."""
    rows = []
    for arm in comparison.arms:
        after = comparison.after(arm)
        by_seed = " ".join(points(value) for value in after.by_seed.values()) if after.n <= SHOWN_SEEDS else ABSENT
        rows.append((*_accuracies(comparison, arm, None), by_seed))
    by_seed_heading = "by seed" if len(comparison.benchmarks) == 1 else f"{AVERAGE} by seed"
    return TextTable(_whole(comparison), (*_headings(comparison), by_seed_heading), tuple(rows))


def _difference_table(comparison: Comparison, baseline: str) -> TextTable:
    """Every other arm against one baseline, mean over members and benchmarks."""
    names = {AT_END: "at the end", EQUAL_ROLLOUTS: "equal rollouts", EQUAL_COST: f"equal {COSTS[comparison.cost]}"}
    rows = [
        (arm.name, *(_difference(comparison, arm, baseline, basis, None) for basis in BASES))
        for arm in comparison.arms
        if arm.name != baseline
    ]
    title = f"against {baseline}, {_whole(comparison)}"
    return TextTable(title, ("arm", *(names[basis] for basis in BASES)), tuple(rows))


def _member_table(comparison: Comparison, member: str) -> TextTable:
    """One member under every arm that trains it."""
    arms = [arm for arm in comparison.arms if member in arm.members]
    differences = [f"against {baseline}" for baseline in comparison.baselines]
    rows = [
        (
            *_accuracies(comparison, arm, member),
            *(_difference(comparison, arm, baseline, AT_END, member) for baseline in comparison.baselines),
        )
        for arm in arms
    ]
    return TextTable(member, (*_headings(comparison), *differences), tuple(rows))


def columns_of(comparison: Comparison) -> list[tuple[str, str | None]]:
    """(heading, benchmark) of the accuracy columns; the average (None) is left out where it is the only benchmark."""
    single: list[tuple[str, str | None]] = [(name, name) for name in comparison.benchmarks]
    return single if len(single) == 1 else [*single, (AVERAGE, None)]


def _headings(comparison: Comparison) -> tuple[str, ...]:
    return ("arm", "n", "before", *(heading for heading, _ in columns_of(comparison)))


def _accuracies(comparison: Comparison, arm: Arm, member: str | None) -> tuple[str, ...]:
    """Arm, n, accuracy before, then mean and standard deviation of each accuracy column."""
    columns = [spread(comparison.after(arm, member, benchmark)) for _, benchmark in columns_of(comparison)]
    n = max((comparison.after(arm, member, benchmark).n for _, benchmark in columns_of(comparison)), default=0)
    return (arm.name, str(n), points(comparison.before(arm, member).mean), *columns)


def _difference(comparison: Comparison, arm: Arm, baseline: str, basis: str, member: str | None) -> str:
    if baseline == arm.name:
        return ABSENT
    return signed(comparison.against(arm, comparison.arm(baseline), basis, member), of=len(arm.runs))


def _cost_table(comparison: Comparison) -> TextTable:
    """Whole runs, all their members, mean over seeds."""
    kinds = comparison.cost_kinds
    rows = []
    for arm in comparison.arms:
        spent = [comparison.spent(arm, kind).mean for kind in kinds]
        rows.append((arm.name, str(len(arm.runs)), *(ABSENT if cost is None else f"{cost:,.0f}" for cost in spent)))
    return TextTable("cost of a run", ("arm", "n", *(COSTS[kind] for kind in kinds)), tuple(rows))


def points(share: float | None, digits: int = 1) -> str:
    """A share in percent."""
    return ABSENT if share is None else f"{100 * share:.{digits}f}"


def spread(values: Spread, digits: int = 1) -> str:
    """Mean ± standard deviation in percent."""
    if values.mean is None or values.sd is None:
        return points(values.mean, digits)
    return f"{points(values.mean, digits)} ± {points(values.sd, digits)}"


def signed(paired: Paired, *, of: int, digits: int = 1) -> str:
    """A difference in points with its interval, and the number of pairs where it is not that of the arm's runs."""
    if paired.mean is None:
        return ABSENT
    text = f"{100 * paired.mean:+.{digits}f}"
    if paired.interval is not None:
        text += f" [{100 * paired.interval[0]:+.{digits}f}, {100 * paired.interval[1]:+.{digits}f}]"
    return text if paired.n == of else f"{text} ({paired.n} of {of})"


def notes(comparison: Comparison) -> Iterator[str]:
    """What a reader must know to read the tables."""
    yield (
        f"Accuracy in percent at {comparison.checkpoint.description}; ± is the standard deviation over n seeds; "
        "differences are in points, paired by seed, with 95 % t intervals."
    )
    yield (
        "At equal rollouts or cost: the arm's newest evaluation within what the baseline spent in its whole run on the "
        "same members. Seconds are of training steps, without evaluation and checkpoints."
    )
    if len(comparison.benchmarks) > 1:
        yield f"The average is the unweighted mean of {', '.join(comparison.benchmarks)}."
    yield from _selections(comparison)
    yield from _protocols(comparison)
    yield from _unpaired(comparison)
    for arm in comparison.arms:
        others = [b for b in comparison.baselines if not set(arm.members) <= set(comparison.arm(b).members)]
        for baseline in others:
            both = [name for name in arm.members if name in comparison.arm(baseline).members]
            yield f"{arm.name} against {baseline}: over {', '.join(both) or 'no member'}, which both train."
    yield from comparison.notes
    for arm in comparison.arms:
        if arm.description:
            yield f"{arm.name}: {arm.description}"


def _selections(comparison: Comparison) -> Iterator[str]:
    """What the best checkpoints were selected on; nothing where the last ones are compared."""
    if comparison.checkpoint.name == "last":
        return
    by_selection: dict[Selection, list[str]] = {}
    for arm in comparison.arms:
        for run in arm.runs.values():
            names = by_selection.setdefault(run.selection, [])
            names += [] if arm.name in names else [arm.name]
    for one, names in by_selection.items():
        where = "held-out validation problems" if one.role == "validation" else "the test sets themselves"
        of = "" if len(by_selection) == 1 else f" ({', '.join(names)})"
        yield f"Best checkpoints{of}: rule {one.rule} on {where}: {', '.join(one.benchmarks) or 'none'}."


def _protocols(comparison: Comparison) -> Iterator[str]:
    """How each benchmark was measured, and where arms differ in it."""
    runs = [(arm.name, run) for arm in comparison.arms for run in arm.runs.values()]
    for benchmark in comparison.benchmarks:
        found: dict[Protocol, str] = {}
        for arm, run in runs:
            if benchmark in run.protocol:
                found.setdefault(run.protocol[benchmark], arm)
        texts = [
            f"{one.problems} problems, {one.responses} responses, temperature {one.temperature:g}" for one in found
        ]
        if len(texts) == 1:
            yield f"{benchmark}: {texts[0]}."
        else:
            listed = "; ".join(f"{text} ({arm})" for text, arm in zip(texts, found.values(), strict=True))
            yield f"{benchmark} was not measured alike, so its differences mean little: {listed}."


def _unpaired(comparison: Comparison) -> Iterator[str]:
    """Seeds that only one side has."""
    for baseline in comparison.baselines:
        for arm in comparison.arms:
            if arm.name == baseline:
                continue
            paired = comparison.against(arm, comparison.arm(baseline))
            for name, seeds in ((arm.name, paired.unpaired), (baseline, paired.unpaired_baseline)):
                if seeds:
                    listed = ", ".join(str(seed) for seed in seeds)
                    yield f"{arm.name} against {baseline}: seed {listed} of {name} has no partner and is not in it."


def print_tables(console: Console, comparison: Comparison) -> None:
    """The comparison on a terminal."""
    for part in tables(comparison):
        table = Table(title=part.title, title_justify="left")
        for heading in part.headings:
            first = heading == "arm"
            table.add_column(heading, justify="left" if first else "right", no_wrap=first)
        for row in part.rows:
            table.add_row(*row)
        console.print(table)
    for note in notes(comparison):
        console.print(note, highlight=False, markup=False)


def markdown(comparison: Comparison) -> str:
    """The comparison as Markdown, with its notes as a list."""
    parts = [f"**{part.title}**\n\n{markdown_table(part)}" for part in tables(comparison)]
    return "\n".join([*parts, *(f"- {_cell(note)}" for note in notes(comparison))]) + "\n"


def markdown_table(part: TextTable) -> str:
    """One table as Markdown."""
    rows = [part.headings, ("---",) * len(part.headings), *part.rows]
    return "".join("| " + " | ".join(_cell(cell) for cell in row) + " |\n" for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
