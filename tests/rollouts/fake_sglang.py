"""Stands in for a server of SGLang: the same command line, processes, keys and /ready, and faults on demand.

Its model folder says how it behaves: a file `behaviour` with words among
    never     is never ready
    crash     names an error and ends before it is ready
    stubborn  its processes ignore SIGTERM
    noisy     prints lines for ever
Its processes' ids stand in the file `processes` of that folder: the server's, and one that has left its group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

SCHEDULER = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def main() -> None:
    options = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    keys = dict(line.split(": ") for line in Path(options["--config"]).read_text().splitlines())
    model = Path(options["--model-path"])
    behaviour = (model / "behaviour").read_text().split() if (model / "behaviour").exists() else []
    if "stubborn" in behaviour:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"server_args=ServerArgs({' '.join(sys.argv[1:])} api_key={keys['api-key']!r})", flush=True)
    if "crash" in behaviour:
        print("Traceback (most recent call last):\nValueError: no such model\nserver: good-bye", flush=True)
        sys.exit(3)
    scheduler = subprocess.Popen([sys.executable, "-c", SCHEDULER], start_new_session=True, stdout=subprocess.PIPE)
    assert scheduler.stdout is not None
    scheduler.stdout.readline()  # from here on it ignores SIGTERM
    (model / "processes").write_text(f"{os.getpid()} {scheduler.pid}")
    if "noisy" in behaviour:
        Thread(target=chatter, daemon=True).start()
    status = 503 if "never" in behaviour else 200

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/ready" or self.headers["Authorization"] == f"Bearer {keys['api-key']}"
            self.send_response(status if known else 401)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    HTTPServer((options["--host"], int(options["--port"])), Answer).serve_forever()


def chatter() -> None:
    while True:
        print("x" * 99, flush=True)


if __name__ == "__main__":
    main()
