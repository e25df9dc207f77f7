"""A comparison as CSV: one row for each arm, member and benchmark; shares in [0, 1], empty where there is no number."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from server.store.comparison import BASES, Arm, Comparison

# No member can have such a name, and a benchmark is unlikely to.
MEAN_MEMBER, AVERAGE_BENCHMARK = "(mean)", "(average)"


def as_csv(comparison: Comparison) -> str:
    """The table with its header."""
    text = io.StringIO()
    rows = [row for arm in comparison.arms for row in _rows(comparison, arm)]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(comparison: Comparison, arm: Arm) -> Iterator[dict[str, object]]:
    for member in (None, *arm.members):
        for benchmark in (None, *comparison.benchmarks):
            before, after = comparison.before(arm, member, benchmark), comparison.after(arm, member, benchmark)
            row: dict[str, object] = {
                "arm": arm.name,
                "member": member or MEAN_MEMBER,
                "benchmark": benchmark or AVERAGE_BENCHMARK,
                "checkpoint": comparison.checkpoint.name,
                "n": after.n,
                "seeds": " ".join(str(seed) for seed in after.by_seed),
                "before_mean": before.mean,
                "after_mean": after.mean,
                "after_sd": after.sd,
                "after_by_seed": " ".join(repr(value) for value in after.by_seed.values()),
            }
            row |= {kind: comparison.spent(arm, kind, member).mean for kind in comparison.cost_kinds}
            yield row | _differences(comparison, arm, member, benchmark)


def _differences(comparison: Comparison, arm: Arm, member: str | None, benchmark: str | None) -> dict[str, object]:
    cells: dict[str, object] = {}
    for baseline in comparison.baselines:
        for basis in BASES:
            paired = None
            if baseline != arm.name:
                paired = comparison.against(arm, comparison.arm(baseline), basis, member, benchmark)
            low, high = (paired.interval if paired else None) or (None, None)
            name = f"against_{baseline}_{basis}"
            cells |= {
                f"{name}_n": paired.n if paired else None,
                f"{name}_mean": paired.mean if paired else None,
                f"{name}_low": low,
                f"{name}_high": high,
            }
    return cells
