"""``graft replay``: from a question about a recorded run to a printed and stored answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from population.errors import ReplayError
from population.replay import replay
from population.replay_report import Summary, print_replay, summarise
from population.replay_settings import settings_of
from server.store.reader import ReplayRecord, RunInfo, open_reader
from server.store.replays import record_replay


@dataclass(frozen=True)
class Question:
    """A recorded run, the settings that differ, the members to leave out, and the steps (None: all)."""

    run: str
    overrides: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    first: int | None = None
    last: int | None = None


def ask(url: str, question: Question) -> tuple[ReplayRecord, Summary]:
    """Replay the run; what the store keeps of it, and the summary. Writes nothing."""
    with open_reader(url) as reader:
        run = reader.run(question.run)
        first, last = window(run, question.first, question.last)
        settings = settings_of(run, question.overrides, question.without)
        summary = summarise(replay(reader, run, settings, first, last), [member.name for member in run.members])
    wanted = settings.wanted
    asked: dict[str, Any] = {
        "set": list(question.overrides),
        "without": list(question.without),
        "method": wanted.method,
        "seed": wanted.seed,
        "exchange": wanted.exchange.model_dump(mode="json"),
    }
    return ReplayRecord(run.uid, first, last, asked, summary.as_dict()), summary


def window(run: RunInfo, first: int | None, last: int | None) -> tuple[int, int]:
    """The steps to replay. ReplayError for a run without steps, or for steps that it does not have."""
    if run.first_step is None or run.last_step is None:
        raise ReplayError(f"run {run.uid}: no step is recorded yet; replay it after its first step")
    low, high = first or run.first_step, last or run.last_step
    if not run.first_step <= low <= high <= run.last_step:
        raise ReplayError(
            f"run {run.uid}: steps {low} to {high} are not among its recorded steps {run.first_step} to "
            f"{run.last_step}; change --first or --last"
        )
    return low, high


def answer(console: Console, url: str, question: Question, *, as_json: bool, keep: bool) -> None:
    """Replay, store unless told otherwise, and print."""
    record, summary = ask(url, question)
    identity = record_replay(url, record) if keep else None
    if as_json:
        document = {"run": record.run, "first_step": record.first_step, "last_step": record.last_step}
        print(json.dumps({**document, "id": identity, "settings": record.settings, "result": record.result}, indent=2))
        return
    print_replay(console, title(record), summary)
    if identity is not None:
        console.print(f"stored as replay {identity} of run {record.run}", highlight=False)


def title(record: ReplayRecord) -> str:
    """What was replayed under what."""
    changes: Sequence[str] = [*record.settings["set"], *(f"without {name}" for name in record.settings["without"])]
    exchange = record.settings["exchange"]
    return (
        f"{record.run}, steps {record.first_step} to {record.last_step}: recorded (then) and under "
        f"{', '.join(changes) or 'the same settings'} (now); s by {exchange['normaliser']}, floor {exchange['floor']:g}"
    )
