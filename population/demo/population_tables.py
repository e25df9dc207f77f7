"""Fills the results of docs/population.md: ``python -m population.demo.population_tables PAGE SECTION=SELECTOR...``.

A section is the text between ``<!-- SECTION -->`` and ``<!-- end of SECTION -->``. Accuracies and differences are
those of ``graft compare --json`` over the selectors; admission and uptake are read from the stores of its runs, where
these are.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graft.complementarity import uptake
from population.compare.command import compare
from population.compare.saved import as_json
from population.errors import RunError
from server.store.reader import open_reader

ABSENT = "–"
DEFAULT = "graft"
ALONE = "grpo"
FLOORS = ("0", "0.5", "0.8", "0.9")
CELLS: Mapping[str, Mapping[str, str]] = {
    "bytes": {"0": "floor-0", "0.8": DEFAULT, "0.9": "floor-0.9"},
    "own": {"0.5": "own-floor-0.5", "0.8": "normaliser-own"},
    "reference": {"0.5": "reference-floor-0.5", "0.8": "normaliser-reference"},
}
"""Normaliser -> floor -> arm."""
Z = 1.959963984540054


class PageError(RunError, ValueError):
    """A page without the section that is to be filled; names both."""


def fill(page: Path, section: str, text: str) -> None:
    """Replace a section of a page. Raises PageError where the page does not have it."""
    begin, end = f"<!-- {section} -->\n", f"<!-- end of {section} -->"
    old = page.read_text()
    if begin not in old or end not in old:
        raise PageError(f"{page}: no section {section!r}; put {begin.strip()} and {end} around it")
    head, _, rest = old.partition(begin)
    page.write_text(f"{head}{begin}\n{text.strip()}\n\n{end}{rest.partition(end)[2]}")


def report(tree: Mapping[str, Any]) -> str:
    """The tables of one suite as Markdown; ``tree`` is a comparison as ``graft compare --json`` writes it."""
    overall = {row["arm"]: row for row in tree["results"] if row["member"] is None and row["benchmark"] is None}
    runs = {arm["name"]: arm["runs"] for arm in tree["arms"]}
    return "\n\n".join(
        [
            _table(("arm", "by seed", "mean ± sd", "admitted", f"against {DEFAULT}", f"against {ALONE}", "CPU s"),
                   (_arm(row, runs[name]) for name, row in overall.items())),
            f"Normaliser × floor, difference to `{DEFAULT}` at the end:",
            _table(("normaliser", *(f"floor {floor}" for floor in FLOORS)), _cells(overall)),
            f"Uptake in `{DEFAULT}`, its seeds together (prompts solved at the next visit, of those seen again):",
            _table(("receiver <- source", "grafted", "withheld", "uptake"), _uptakes(runs.get(DEFAULT, []))),
        ]
    )  # fmt: skip


def _arm(row: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    after = row["after"]
    seeds = " ".join(f"{value:.3f}" for value in after["by_seed"].values())
    spread = "" if after["sd"] is None else f" ± {after['sd']:.3f}"
    cpu = row["cost"].get("cpu_seconds")
    return [
        row["arm"], seeds, f"{after['mean']:.3f}{spread}", _admitted(runs),
        _difference(row, DEFAULT), _difference(row, ALONE), ABSENT if cpu is None else f"{cpu:.0f}",
    ]  # fmt: skip


def _difference(row: Mapping[str, Any], baseline: str) -> str:
    paired = row["against"].get(baseline)
    if paired is None or paired["end"]["mean"] is None:
        return ABSENT
    interval = paired["end"]["interval"]
    bounds = "" if interval is None else f" [{interval[0]:+.3f}, {interval[1]:+.3f}]"
    return f"{paired['end']['mean']:+.3f}{bounds}"


def _cells(overall: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    for normaliser, arms in CELLS.items():
        cells = []
        for floor in FLOORS:
            arm = arms.get(floor, "")
            cells.append(
                "the default" if arm == DEFAULT else _difference(overall[arm], DEFAULT) if arm in overall else ABSENT
            )
        yield [normaliser, *cells]


def _stored(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """(reader, run) of the runs whose store is there; a saved comparison may have outlived it."""
    for run in runs:
        if Path(run["store"].removeprefix("sqlite:///")).is_file():
            with open_reader(run["store"]) as reader:
                yield reader, reader.run(run["uid"])


def _admitted(runs: Sequence[Mapping[str, Any]]) -> str:
    admitted = responses = 0
    for reader, run in _stored(runs):
        counts = reader.pair_counts(run.uid, 1, run.last_step)
        admitted += int(counts["admitted"].sum())
        responses += int(counts["responses"].sum())
    return f"{admitted / responses:.0%}" if responses else ABSENT


def _uptakes(runs: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """One row for each edge and one for all; counts of all seeds together."""
    names: tuple[str, ...] = ()
    keys = ("grafted_solved", "grafted_seen", "held_out_solved", "held_out_seen")
    total: dict[str, np.ndarray] = {}
    for reader, run in _stored(runs):
        names = tuple(member.name for member in run.members)
        pairs, _ = reader.uptake(run.uid, 1, run.last_step)
        for key in keys:
            total[key] = total.get(key, 0) + np.asarray(pairs[key])
    for i, receiver in enumerate(names):
        for j, source in enumerate(names):
            counts = [int(total[key][i, j]) for key in keys]
            if counts[1] or counts[3]:
                yield _uptake(f"{receiver} <- {source}", counts)
    if names:
        yield _uptake("all", [int(total[key].sum()) for key in keys])


def _uptake(name: str, counts: Sequence[int]) -> list[str]:
    found = uptake(*counts)
    text = ABSENT if math.isnan(found.difference) else f"{found.difference:+.3f} ± {Z * found.standard_error:.3f}"
    return [name, f"{counts[0]} of {counts[1]}", f"{counts[2]} of {counts[3]}", text]


def _table(headings: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def main(page: str, *sections: str) -> None:
    """Command line; a section may have several selectors, separated by commas."""
    for text in sections:
        section, _, selectors = text.partition("=")
        comparison = compare(selectors.split(","), store="", baselines=(DEFAULT, ALONE))
        fill(Path(page), section, report(json.loads(as_json(comparison))))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RunError as error:
        sys.exit(str(error))
