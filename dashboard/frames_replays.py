"""Frames of a replay on the Transfers page: what was recorded beside what other settings would have moved. Pure.

A replay's `result` is that of `ReplayRecord`: edges with `then` (recorded) and `now` (replayed) sides. Responses that
did not move in the record have no s, so that it is unknown whether a replay would admit them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from dashboard import formats
from dashboard.configuration import flat
from server.store.reader import ReplayRecord, RunInfo

# With more pairs than this, pairs of one receiver are one row.
MOST_PAIRS = 12
ALL = "all"


@dataclass(frozen=True, slots=True)
class Side:
    """Counts of one side: transfers (withheld ones included), and their responses; `known` ones of `admitted`."""

    transfers: int
    admitted: int
    known: int
    unknown: int

    @classmethod
    def of(cls, counts: Mapping[str, Any]) -> Side:
        """One side of an edge, or of all of them, as the store keeps it."""
        admitted = counts["admitted"]
        return cls(
            int(counts["selected"]), int(admitted["numerator"]), int(admitted["denominator"]), int(counts["unknown"])
        )

    def __add__(self, other: Side) -> Side:
        return Side(
            self.transfers + other.transfers,
            self.admitted + other.admitted,
            self.known + other.known,
            self.unknown + other.unknown,
        )

    def admission(self) -> str:
        """ "47 of 88 responses (53.4 %), 12 unknown"."""
        share = f" ({formats.rate(self.admitted, self.known)})" if self.known else ""
        unknown = f", {formats.count(self.unknown)} unknown" if self.unknown else ""
        return f"{formats.of(self.admitted, self.known, 'response')}{share}{unknown}"


@dataclass(frozen=True, slots=True)
class Row:
    """A pair, or a receiver with all its sources: recorded, replayed, and the transfers that are in both."""

    label: str
    then: Side
    now: Side
    both: int


def rows_of(result: Mapping[str, Any], labels: Mapping[str, str]) -> tuple[list[Row], bool]:
    """(rows in slot order; whether they are receivers rather than pairs).

    `labels`: {member: how it is called}.
    """
    edges = [one for one in result["edges"] if one["then"]["selected"] or one["now"]["selected"]]
    pooled = len(edges) > MOST_PAIRS
    found: dict[str, Row] = {}
    for edge in edges:
        receiver = labels.get(edge["receiver"], edge["receiver"])
        label = receiver if pooled else f"{receiver} ← {labels.get(edge['source'], edge['source'])}"
        row = _row(label, edge)
        found[label] = _sum(label, [found[label], row]) if label in found else row
    return list(found.values()), pooled


def _row(label: str, edge: Mapping[str, Any]) -> Row:
    return Row(label, Side.of(edge["then"]), Side.of(edge["now"]), int(edge["both"]))


def _sum(label: str, rows: Iterable[Row]) -> Row:
    then, now, both = Side(0, 0, 0, 0), Side(0, 0, 0, 0), 0
    for row in rows:
        then, now, both = then + row.then, now + row.now, both + row.both
    return Row(label, then, now, both)


def drawn(rows: Sequence[Row], responses: bool) -> dict[str, pd.DataFrame]:
    """Frames "points" and "spans" of `charts_replays.change`: transfers, or admitted responses."""
    points, spans = [], []
    for order, row in enumerate(rows):
        values = []
        for when, side in (("recorded", row.then), ("replayed", row.now)):
            value = side.admitted if responses else side.transfers
            detail = side.admission() if responses else formats.counted(value, "transfer")
            values.append(value)
            points.append((row.label, order, when, value, detail))
        unknown = row.now.unknown if responses else 0
        text = f"{formats.count(values[0])} → {formats.count(values[1])}" + (
            f" to {formats.count(values[1] + unknown)}" if unknown else ""
        )
        spans.append((row.label, order, *values, values[1] + unknown, max(*values, values[1] + unknown), text))
    return {
        "points": pd.DataFrame(points, columns=["row", "order", "when", "value", "detail"]),
        "spans": pd.DataFrame(spans, columns=["row", "order", "recorded", "replayed", "most", "end", "text"]),
    }


def table(rows: Sequence[Row], pooled: bool) -> pd.DataFrame:
    """The same in numbers, all together first."""
    rows = [_sum(ALL, rows), *rows] if len(rows) > 1 else rows
    return pd.DataFrame(
        [
            {
                "Receiver" if pooled else "Receiver ← source": row.label,
                "Transfers recorded": formats.count(row.then.transfers),
                "replayed": formats.count(row.now.transfers),
                "in both": formats.count(row.both),
                "Admitted, recorded": row.then.admission(),
                "Admitted, replayed": row.now.admission(),
            }
            for row in rows
        ]
    )


def numbers(result: Mapping[str, Any]) -> pd.DataFrame:
    """Every pair of members with its counts on both sides, for files."""
    return pd.DataFrame(
        [
            {"receiver": edge["receiver"], "source": edge["source"], "transfers_in_both": edge["both"]}
            | {
                f"{when}_{name}": value
                for when, side in (("recorded", edge["then"]), ("replayed", edge["now"]))
                for name, value in asdict(Side.of(side)).items()
            }
            for edge in result["edges"]
        ]
    )


def settings_that_differ(info: RunInfo, record: ReplayRecord) -> pd.DataFrame:
    """Setting, Recorded, Replayed: of what a replay reads, where it was asked otherwise than the run was recorded."""
    asked = record.settings
    own = dict(flat({"method": info.method, "seed": info.seed, "exchange": info.config.get("exchange", {})}))
    wanted = dict(flat({name: asked[name] for name in ("method", "seed", "exchange") if name in asked}))
    named = {text.partition("=")[0] for text in asked.get("set", ())}
    rows = [
        (key, own.get(key, formats.MISSING), value)
        for key, value in wanted.items()
        # A record from before a setting existed does not say its value.
        if own.get(key) != value and (key in own or key in named)
    ]
    if asked.get("without"):
        rows.append(("members left out", "none", formats.clean(", ".join(asked["without"]), 200)))
    return pd.DataFrame(rows, columns=["Setting", "Recorded", "Replayed"])


def notes(result: Mapping[str, Any]) -> list[str]:
    """What the figures rest on."""
    steps, exact = int(result["steps"]), int(result["exact_steps"])
    unknown = int(result["total"]["now"]["unknown"])
    found = []
    if result["reproduced"]:
        found.append("every transfer, s and weight is the recorded one")
    if unknown:
        found.append(
            f"pale: {formats.counted(unknown, 'response')} that did not move in the record, hence without s, from none "
            "admitted to all"
        )
    if exact < steps:
        found.append(
            f"routing is exact in the first {formats.count(exact)} of {formats.counted(steps, 'step')}; later edge "
            "rates rest on the known responses"
        )
    return found
