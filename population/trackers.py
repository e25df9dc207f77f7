"""Trackers beside a run: each a process of its own that reads the store, so that none can hold the run up or end it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from population.config import TrackerConfig
from server.store.records import EventRecord, StoreError
from server.store.writer import Writer
from server.trackers.tracker import Outcome

# How long the end of a run waits for a tracker to send the rest.
FINISH_S = 60.0
# How long it waits for the warning of one that ended badly to be stored.
_WARN_S = 120.0


@contextmanager
def followed(trackers: Sequence[TrackerConfig], folder: Path, url: str, store: Writer, after: int) -> Iterator[None]:
    """Show the run that `store` holds to trackers, from step `after` + 1 on; `folder` takes what they keep here.

    A tracker that fails, or has not sent everything `FINISH_S` after the end, becomes a warning of the run.
    """
    with ExitStack() as stack:
        started = [_Follower(tracker, folder, url, store, after) for tracker in trackers]
        outcome: Outcome = "failed"
        try:
            for follower in started:
                stack.callback(follower.kill)
            yield
            outcome = "finished"
        except KeyboardInterrupt:
            outcome = "interrupted"
            raise
        finally:
            for follower in started:
                follower.tell(outcome)
            for follower in started:
                follower.wait()


class _Follower:
    """One tracker's process and the thread that notices its end."""

    def __init__(self, tracker: TrackerConfig, folder: Path, url: str, store: Writer, after: int) -> None:
        self._kind, self._uid, self._store, self._late = tracker.kind, store.uid, store, False
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "server.trackers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            text=True,
            # Ctrl-C reaches the run alone, which then says how it ended.
            start_new_session=True,
        )
        settings: dict[str, Any] = tracker.model_dump(mode="json") | {"folder": str(tracker.folder or folder)}
        # Not on the command line and not in the environment: both can be read by others, and the URL has a password.
        self._write({"store": url, "run": self._uid, "after": after, "settings": settings})
        self._watch = threading.Thread(target=self._notice, name=f"tracker {self._kind}", daemon=True)
        self._watch.start()

    def tell(self, outcome: Outcome) -> None:
        """Say how the run ended."""
        self._write(outcome)

    def wait(self) -> None:
        """Let it send the rest, and kill it when that takes too long."""
        try:
            self._process.wait(FINISH_S)
        except subprocess.TimeoutExpired:
            self._late = True
            self.kill()
        self._watch.join(_WARN_S)

    def kill(self) -> None:
        """End it at once; harmless when it has ended."""
        self._process.kill()
        self._process.wait()

    def _write(self, message: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
            self._process.stdin.flush()

    def _notice(self) -> None:
        """A tracker that ends badly is one warning in the store."""
        code = self._process.wait()
        if code == 0:
            return
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        reason = f"was not done {FINISH_S:.0f} s after the run" if self._late else (lines or [f"exit code {code}"])[-1]
        remedy = f"the run goes on without it; send it later: graft store export --to {self._kind} --run {self._uid}"
        # A store that takes no warning stops the run by itself.
        with suppress(StoreError):
            self._store.event(EventRecord("warning", f"tracker {self._kind}: {reason}; {remedy}"))
