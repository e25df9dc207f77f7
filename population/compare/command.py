"""What ``graft compare`` does: select runs, compare them, and show the result in one form."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from enum import Enum

from rich.console import Console

from population.compare.arms import CompareError, select
from population.compare.csv_rows import as_csv
from population.compare.latex import latex
from population.compare.saved import as_json
from population.compare.tables import markdown, print_tables
from server.store.comparison import Comparison, default_baseline, default_cost
from server.store.results import CHECKPOINTS, COSTS


class Format(Enum):
    """How a comparison is shown."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    LATEX = "latex"
    MARKDOWN = "markdown"


def one_format(*, json: bool, csv: bool, latex: bool, markdown: bool) -> Format:
    """The form that was asked for; a table for none. Raises CompareError for more than one."""
    asked = {Format.JSON: json, Format.CSV: csv, Format.LATEX: latex, Format.MARKDOWN: markdown}
    wanted = [form for form, chosen in asked.items() if chosen]
    if len(wanted) > 1:
        raise CompareError(f"--{wanted[0].value} and --{wanted[1].value}: choose one form")
    return wanted[0] if wanted else Format.TABLE


def compare(
    selectors: Sequence[str],
    *,
    store: str,
    baselines: Sequence[str] = (),
    checkpoint: str = "last",
    cost: str | None = None,
    unfinished: bool = False,
) -> Comparison:
    """The comparison of what selectors name. Raises RunError or StoreError, one line."""
    for kind, value, known in (("checkpoint", checkpoint, CHECKPOINTS), ("cost", cost or "rollouts", COSTS)):
        if value not in known:
            raise CompareError(f"--{kind} {value}: there is no such {kind}; choose from {', '.join(known)}")
    selection = select(selectors, store, unfinished=unfinished)
    arms = selection.finish()
    names = [arm.name for arm in arms]
    wanted = tuple(dict.fromkeys(baselines or [name for name in selection.baselines if name in names]))
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
            raise CompareError(f"--baseline {name}: there is no such arm; {hint}")
    return Comparison(
        arms=arms,
        baselines=wanted or (default_baseline(arms),),
        cost=cost or selection.cost or default_cost(arms),
        checkpoint=CHECKPOINTS[checkpoint],
        notes=tuple(selection.notes),
    )


def show(console: Console, comparison: Comparison, form: Format) -> None:
    """Print a comparison: tables for people, or text for programs, unwrapped."""
    writers = {Format.JSON: as_json, Format.CSV: as_csv, Format.LATEX: latex, Format.MARKDOWN: markdown}
    if form is Format.TABLE:
        print_tables(console, comparison)
    else:
        console.file.write(writers[form](comparison))
