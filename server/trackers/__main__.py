"""A process that shows a run to one tracker while it is trained: python -m server.trackers.

Standard input holds one line of JSON (store, run, after, settings), and later one line with the run's outcome. The end
of the input without an outcome means that the run's process is gone. A fault is one line on standard error.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from server.store.reader import open_reader
from server.store.records import StoreError
from server.trackers.exporter import Exporter
from server.trackers.tracker import Outcome, Settings, TrackerError, open_tracker

POLL_S = 2.0


def main() -> int:
    """Follow the run to its end; the exit code."""
    asked = json.loads(sys.stdin.readline())
    settings = Settings(**{**asked["settings"], "folder": Path(asked["settings"]["folder"])})
    ended, outcome = threading.Event(), ["failed"]

    def listen() -> None:
        outcome[0] = sys.stdin.readline().strip() or "failed"
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        follow(asked["store"], asked["run"], asked["after"], settings, ended, outcome)
    except Exception as fault:
        known = isinstance(fault, (TrackerError, StoreError))
        print("" if known else f"{type(fault).__name__}: ", " ".join(str(fault).split()), sep="", file=sys.stderr)
        return 1
    return 0


def follow(store: str, run: str, after: int, settings: Settings, ended: threading.Event, outcome: list[str]) -> None:
    """Export steps as they are committed until `ended`, then the rest, and close with `outcome[0]`."""
    with open_reader(store) as reader:
        info = reader.run(run)
        tracker = open_tracker(settings, info, after)
        exporter, seen = Exporter(reader, run, tracker, after), -1
        exporter.skip_evaluations()
        while True:
            last_look = ended.is_set()
            revision = reader.revision(run)
            if revision != seen:
                exporter.advance()
                seen = revision
            if last_look:
                break
            ended.wait(POLL_S)
    names: dict[str, Outcome] = {"finished": "finished", "interrupted": "interrupted"}
    tracker.finish(names.get(outcome[0], "failed"))


if __name__ == "__main__":
    sys.exit(main())
