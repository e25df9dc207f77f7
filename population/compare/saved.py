"""A comparison as JSON: the runs it is made of and every number computed from them; read back, it is compared again.

Shares are in [0, 1], costs as in :mod:`server.store.results`; what is missing is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from population.errors import RunError
from server.store.comparison import BASES, Arm, Comparison, Paired, Spread
from server.store.results import ByStep, Protocol, RunResult, Selection

FORMAT = "graft comparison 1"


class SavedError(RunError, ValueError):
    """A file that is no saved comparison; names the file and the remedy."""


def as_json(comparison: Comparison) -> str:
    """Everything, for programs."""
    head = {
        "format": FORMAT,
        "checkpoint": comparison.checkpoint.name,
        "baselines": comparison.baselines,
        "equal_cost": comparison.cost,
        "notes": comparison.notes,
    }
    arms = [
        {"name": arm.name, "description": arm.description, "runs": [_run_tree(run) for run in arm.runs.values()]}
        for arm in comparison.arms
    ]
    results = [row for arm in comparison.arms for row in _results(comparison, arm)]
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    # One line for each arm and for each result: a changed run is a changed line.
    for key, entries in (("arms", arms), ("results", results)):
        parts.append(f' "{key}": [\n  ' + ",\n  ".join(json.dumps(entry) for entry in entries) + "\n ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _results(comparison: Comparison, arm: Arm) -> list[dict[str, Any]]:
    """One entry for each member (null: mean over the arm's members) and benchmark (null: mean over benchmarks)."""
    rows = []
    for member in (None, *arm.members):
        for benchmark in (None, *comparison.benchmarks):
            against = {
                baseline: {
                    basis: _paired_tree(
                        comparison.against(arm, comparison.arm(baseline), basis, member, benchmark)
                    )
                    for basis in BASES
                }
                for baseline in comparison.baselines
                if baseline != arm.name
            }  # fmt: skip
            rows.append(
                {
                    "arm": arm.name,
                    "member": member,
                    "benchmark": benchmark,
                    "before": _spread_tree(comparison.before(arm, member, benchmark)),
                    "after": _spread_tree(comparison.after(arm, member, benchmark)),
                    "cost": {kind: comparison.spent(arm, kind, member).mean for kind in comparison.cost_kinds},
                    "against": against,
                }
            )
    return rows


def _spread_tree(spread: Spread) -> dict[str, Any]:
    by_seed = {str(seed): value for seed, value in spread.by_seed.items()}
    return {"n": spread.n, "mean": spread.mean, "sd": spread.sd, "by_seed": by_seed}


def _paired_tree(paired: Paired) -> dict[str, Any]:
    return _spread_tree(paired) | {
        "interval": paired.interval,
        "unpaired": paired.unpaired,
        "unpaired_baseline": paired.unpaired_baseline,
    }


def _run_tree(run: RunResult) -> dict[str, Any]:
    tables = {
        name: {key: _table_tree(by_step, run.members) for key, by_step in table.items()}
        for name, table in (("accuracy", run.accuracy), ("repeats", run.repeats), ("cost", run.cost))
    }
    protocol = {name: asdict(one) for name, one in run.protocol.items()}
    names = ("uid", "store", "method", "seed", "status", "last_step", "total_steps", "members")
    head = {name: getattr(run, name) for name in names}
    return head | tables | {"protocol": protocol, "selection": asdict(run.selection)}


def _table_tree(by_step: ByStep, members: Sequence[str]) -> dict[str, list[float | None]]:
    return {str(step): [row.get(name) for name in members] for step, row in by_step.items()}


@dataclass(frozen=True)
class Saved:
    """What a saved comparison was made of."""

    arms: tuple[Arm, ...]
    baselines: tuple[str, ...]
    cost: str
    notes: tuple[str, ...]


def load_saved(path: Path) -> Saved:
    """Read what :func:`as_json` wrote. Raises SavedError."""
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SavedError(f"{path}: cannot be read as JSON ({' '.join(str(error).split())})") from None
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise SavedError(f"{path}: is no comparison of this program (format {FORMAT!r}); write one with --json")
    try:
        arms = tuple(_arm(entry) for entry in tree["arms"])
        return Saved(arms, tuple(tree["baselines"]), tree["equal_cost"], tuple(tree["notes"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SavedError(f"{path}: is not as --json wrote it ({error!r}); write it again") from None


def _arm(entry: Mapping[str, Any]) -> Arm:
    runs = [_run(run) for run in entry["runs"]]
    return Arm(entry["name"], {run.seed: run for run in runs}, entry["description"])


def _run(tree: Mapping[str, Any]) -> RunResult:
    members = tuple(tree["members"])
    tables = {
        name: {key: _table(by_step, members) for key, by_step in tree[name].items()}
        for name in ("accuracy", "repeats", "cost")
    }
    protocol = {name: Protocol(**one) for name, one in tree["protocol"].items()}
    chosen = tree["selection"]
    selection = Selection(chosen["rule"], chosen["role"], tuple(chosen["benchmarks"]))
    return RunResult(**{**tree, "members": members, **tables, "protocol": protocol, "selection": selection})


def _table(by_step: Mapping[str, Sequence[float | None]], members: Sequence[str]) -> dict[int, dict[str, float]]:
    return {
        int(step): {name: value for name, value in zip(members, row, strict=True) if value is not None}
        for step, row in by_step.items()
    }
