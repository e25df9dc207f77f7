"""The dashboard's server, which writes down how long each page took: `python -m tests.benchmarks.timed_dashboard`.

As `dashboard.launch`, with a third argument: the file that gets one line a script run, JSON with the wall and CPU
seconds of the whole process meanwhile. SIGUSR1 lets it collect its garbage.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dashboard import app, launch


def timed(run: Callable[[], None], notes: Path) -> Callable[[], None]:
    """The same, with a line in the notes for every call."""

    def with_note() -> None:
        began, cpu = time.perf_counter(), time.process_time()
        try:
            run()
        finally:
            took = {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}
            with notes.open("a") as file:
                file.write(json.dumps(took) + "\n")

    return with_note


def main(arguments: list[str]) -> None:
    host, port, notes = arguments
    signal.signal(signal.SIGUSR1, lambda *_: gc.collect())
    app.main = timed(app.main, Path(notes))
    launch.main([host, port])


if __name__ == "__main__":
    main(sys.argv[1:])
