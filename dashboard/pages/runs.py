"""Runs & health: every run of the store, is it alive, what went wrong, and how it was configured."""

from __future__ import annotations

import time
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import formats, frames_files, health, parts, safe_text
from dashboard.configuration import flat
from dashboard.controls import Choice, Window, pick, search
from dashboard.source import Source, all_runs
from server.store.reader import EventInfo, RunInfo

EVENTS = 500
# Events in a file, the newest.
FILE_EVENTS = 100_000
SHOWN = 25
# Members whose table stands beside another panel.
MOST_BESIDE = 8
ALL = "all"
LEVELS = (ALL, "warning", "error", "info")
MIB = 2**20
_COLOURS = {"info": "gray", "warning": "orange", "error": "red"}


def draw(source: Source, choice: Choice) -> None:
    """The whole page, at one revision of the store."""
    window = choice.window(source.info)
    parts.status_line(source, window)
    with parts.guarded():
        _store(source)
    with parts.card(stretch=False):
        _runs(source)
    # A long table would leave its neighbour blank.
    below = len(source.info.members) > MOST_BESIDE
    beside = st.container() if below else parts.side_by_side()
    with beside, parts.card(stretch=not below):
        _verifier(source, window)
    with beside, parts.card(stretch=not below):
        _members(source)
    beside = parts.side_by_side() if below else beside
    if window is not None and len(source.info.members) > 1:
        for panel in (health.coverage, health.correlation):
            with beside, parts.card():
                panel(source, window)
    with parts.card(stretch=False):
        _events(source)
    with parts.card(stretch=False):
        _configuration(source)


def _store(source: Source) -> None:
    """How large the record is, and how far the page is behind its writer."""
    size, newest = source.ask_store("size"), source.newest_step()
    figures = (
        ("Database", f"{size['database_bytes'] / MIB:,.1f} MiB", formats.counted(size["runs"], "run")),
        ("Trajectories", f"{size['trajectory_bytes'] / MIB:,.1f} MiB", formats.counted(size["shards"], "file")),
        ("Steps", formats.count(size["steps"]), formats.counted(size["groups"], "group")),
        ("Responses", formats.count(size["responses"]), formats.counted(size["prompts"], "prompt")),
        (
            "Newest commit",
            formats.ago(newest.committed) if newest else formats.MISSING,
            f"step {formats.count(newest.step)} of this run" if newest else "no step yet",
        ),
    )
    with st.grid(5, min_column_width=180):
        for label, value, below in figures:
            with st.container(border=True, height="stretch", gap="xsmall"):
                st.metric(label, value)
                st.caption(below)
    parts.begin("Store", "how large the record is")
    shown = pd.DataFrame(figures, columns=["Figure", "Value", "In"])
    parts.numbers("runs_store", lambda: pd.DataFrame([size]), shown)


def _runs(source: Source) -> None:
    """Every run, newest first."""
    parts.title(
        "Runs",
        "of this store, newest first",
        "A run that calls itself running and has been silent for 90 s is shown as silent: it was probably killed.",
    )
    now = time.time()
    rows = [_run_row(info, info.uid == source.info.uid, now) for info in all_runs()[:SHOWN]]
    table = pd.DataFrame(rows)
    if not any(table["Message"]):
        table = table.drop(columns="Message")
    parts.table(
        table,
        key="runs_runs",
        data=lambda: frames_files.runs(all_runs()),
        alt="Every run with its status and progress",
    )
    if len(all_runs()) > SHOWN:
        parts.caption(f"The newest {SHOWN} of {formats.count(len(all_runs()))} runs; the sidebar has all.")


def _run_row(info: RunInfo, shown: bool, now: float) -> dict[str, str]:
    name = safe_text.inline(formats.clean(info.name, 40))
    return {
        "Run": f"**{name}**" if shown else name,
        "Id": safe_text.inline(formats.clean(info.uid, 60)),
        "Method": safe_text.inline(formats.clean(info.method, 30)),
        "Members": formats.count(len(info.members)),
        "Status": parts.status_badge(info),
        "Steps": f"{formats.count(info.last_step or 0)} of {formats.count(info.total_steps)}",
        "Started": formats.ago(info.created, now),
        "Heartbeat": formats.ago(info.heartbeat, now),
        "Message": safe_text.inline(formats.shorten(formats.clean(info.message, 400), 120)) if info.message else "",
    }


def _verifier(source: Source, window: Window | None) -> None:
    """Answers that no verifier could judge: they are no failures, and their groups never move."""
    parts.title(
        "Verifier",
        "responses that could not be judged",
        "A timeout, a crash or an error of the verifier is neither right nor wrong: such a group is not all-fail.",
    )
    if window is None:
        parts.nothing("No step was committed.")
        return
    counts = source.ask("member_counts", window.first, window.last)
    names = {"member": parts.names(source.info)}
    if not counts["errors"].any():
        judged = formats.counted(int(counts["rollouts"].sum()), "response")
        parts.text(f":green-badge[all judged] {judged} of these steps.")
        parts.numbers("runs_verifier", lambda: frames_files.shares(names, counts["errors"], counts["rollouts"]))
        return
    rows = [
        {
            "Member": safe_text.inline(label),
            "Not judged": formats.of(int(counts["errors"][slot]), int(counts["rollouts"][slot]), "response"),
            "Share": formats.rate_interval(int(counts["errors"][slot]), int(counts["rollouts"][slot])),
        }
        for slot, label in enumerate(parts.labels(source.info))
    ]
    parts.table(
        pd.DataFrame(rows),
        key="runs_verifier",
        data=lambda: frames_files.shares(names, counts["errors"], counts["rollouts"]),
        alt="Verifier faults by member",
    )


def _members(source: Source) -> None:
    parts.title("Members", "models and tokenizers")
    labels = parts.labels(source.info)
    rows = [
        {
            "Member": safe_text.inline(label),
            "Model": safe_text.inline(formats.clean(member.model, 60)),
            "Family": safe_text.inline(formats.clean(member.family, 20)),
            "Parameters": formats.compact(member.parameters) if member.parameters else formats.MISSING,
            "Tokenizer": safe_text.inline(formats.clean(member.tokenizer_sha, 12)),
        }
        for label, member in zip(labels, source.info.members, strict=True)
    ]
    parts.table(
        pd.DataFrame(rows),
        key="runs_members",
        data=lambda: pd.DataFrame([asdict(member) for member in source.info.members]),
        alt="Members with model and tokenizer",
    )


def _events(source: Source) -> None:
    """The newest events that pass the filters."""
    parts.title("Events", "newest first")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        level = pick("Level", list(LEVELS), key="level", default=ALL, segments=True)
        text = search("Search in events", key="find")
    found = [event for event in source.events(EVENTS) if _wanted(event, level, text)]
    if not found:
        parts.nothing("No such event.")
    now = time.time()
    for event in found[:SHOWN]:
        parts.text(_event(event, now))
    parts.numbers("runs_events", lambda: pd.DataFrame([asdict(event) for event in source.events(FILE_EVENTS)]))
    parts.caption(
        f"{formats.count(min(len(found), SHOWN))} of {formats.count(len(found))} among the newest "
        f"{formats.count(EVENTS)} events."
    )


def _wanted(event: EventInfo, level: str, text: str) -> bool:
    member = event.member or ""
    return level in (ALL, event.level) and text.lower() in f"{event.message} {member}".lower()


def _event(event: EventInfo, now: float) -> str:
    level = event.level if event.level in _COLOURS else "info"
    where = [formats.ago(event.created, now)]
    if event.step is not None:
        where.append(f"step {formats.count(event.step)}")
    if event.member:
        where.append(safe_text.inline(formats.clean(event.member, 24)))
    message = safe_text.inline(formats.shorten(formats.clean(event.message, 4_000), 400))
    return f":{_COLOURS[level]}-badge[{level}] {message} :small[:gray[{' · '.join(where)}]]"


def _configuration(source: Source) -> None:
    """Every key of the run's configuration; what looks like a secret is masked."""
    parts.title("Configuration", "as the run recorded it", "Passwords, keys and tokens are masked.")
    text = search("Search in keys and values", key="key")
    rows = [
        {"Key": key, "Value": value}
        for key, value in flat(source.info.config)
        if text.lower() in f"{key} {value}".lower()
    ]
    if not rows:
        parts.nothing("No such key.")
        return
    parts.sortable_table(
        pd.DataFrame(rows),
        key="configuration",
        width="stretch",
        height="content" if len(rows) <= 12 else 460,
    )
