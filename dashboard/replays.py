"""The panel of replays: what a recorded run would have exchanged under other settings (`graft replay`)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dashboard import charts_replays, formats, frames_replays, parts, safe_text
from dashboard.controls import pick
from dashboard.source import Source
from server.store.reader import ReplayInfo


def draw(source: Source) -> None:
    """One replay against the record, and which others there are; nothing where nobody asked for one."""
    found: list[ReplayInfo] = source.ask("replays")
    if not found:
        return
    with parts.card(stretch=False):
        parts.title(
            "Replay",
            "the recorded groups routed and gated under other settings, without training",
            "`graft replay` keeps its results here. It says what these settings would have moved of the recorded "
            "groups, not what would have become of the run. Transfers: groups chosen for a receiver, withheld ones "
            "included. Hollow: recorded, filled: replayed.",
        )
        ids = [str(one.id) for one in found]
        chosen = pick("Replay", ids, key="replay", width=200, help="By its number; the newest by itself.")
        if len(found) > 1:
            _list(found)
        replay = next((one for one in found if str(one.id) == chosen), found[0])
        _against_the_record(source, replay)


def _against_the_record(source: Source, replay: ReplayInfo) -> None:
    record = replay.record
    names = [member.name for member in source.info.members]
    labels = dict(zip(names, parts.labels(source.info, 14), strict=True))
    rows, pooled = frames_replays.rows_of(record.result, labels)
    if not rows:
        parts.nothing("Nothing was transferred in these steps, and nothing would have been.")
        return
    beside = parts.side_by_side()
    for title, responses in (("transfers", False), ("admitted responses", True)):
        with beside:
            spec = charts_replays.change(parts.colours(), len(rows), title=title)
            key = f"replay_{'responses' if responses else 'transfers'}"
            parts.chart(spec, key=key, **frames_replays.drawn(rows, responses))
    parts.sortable_table(
        frames_replays.table(rows, pooled),
        key="replay_table",
        data=lambda: frames_replays.numbers(record.result),
        height="content",
    )
    differing = frames_replays.settings_that_differ(source.info, record)
    if differing.empty:
        parts.caption("Replayed under the recorded settings.")
    else:
        parts.text("**Settings that differ**")
        parts.sortable_table(differing, key="replay_settings", height="content")
    said = [formats.steps(record.first_step, record.last_step), *frames_replays.notes(record.result)]
    said += ["with many pairs, those of one receiver are one row"] if pooled else []
    text = " · ".join(said)
    parts.caption(safe_text.inline(f"{text[:1].upper()}{text[1:]}."))


def _list(found: list[ReplayInfo]) -> None:
    parts.sortable_table(pd.DataFrame([_summary(one) for one in found]), key="replay_list")


def _summary(replay: ReplayInfo) -> dict[str, str]:
    record = replay.record
    asked: dict[str, Any] = dict(record.settings)
    changes = [*asked.get("set", ()), *(f"without {name}" for name in asked.get("without", ()))]
    then, now = (frames_replays.Side.of(record.result["total"][side]) for side in ("then", "now"))
    return {
        "Replay": str(replay.id),
        "Asked": formats.ago(replay.created),
        "Steps": formats.steps(record.first_step, record.last_step),
        "Changed": formats.clean(", ".join(changes), 200) if changes else "nothing",
        "Transfers": f"{formats.count(then.transfers)} → {formats.count(now.transfers)}",
        "Admitted responses": f"{formats.count(then.admitted)} → {formats.count(now.admitted)}",
    }
