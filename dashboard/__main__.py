"""``python -m dashboard``: serve the store named in the environment until told to stop; prints the address once it
answers.

The store's URL is read from GRAFT_STORE_URL, so that a password in it never stands on a command line. A fault a user
can mend is one line on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from dashboard.launch import STORE_VARIABLE, DashboardError, end_with_parent, serve


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="dashboard", description="Serve the dashboard of a store.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8501, help="0 picks a free one")
    parser.add_argument(
        "--insecure", action="store_true", help="allow an address that others can reach, without login or encryption"
    )
    parser.add_argument("--auth", choices=["none", "oidc"], default="none", help="oidc: readers log in")
    parser.add_argument("--secrets", type=Path, default=Path(".streamlit/secrets.toml"), help="settings of --auth oidc")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name browsers use, for instance a proxy's"
    )
    parser.add_argument(
        "--end-with-parent", action="store_true", help="stop when the process that started this one ends"
    )
    arguments = parser.parse_args()
    if arguments.end_with_parent:
        end_with_parent(os.getppid())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        with serve(
            os.environ[STORE_VARIABLE],
            host=arguments.host,
            port=arguments.port,
            insecure=arguments.insecure,
            secrets=arguments.secrets if arguments.auth == "oidc" else None,
            names=arguments.allow_host,
        ) as server:
            print(server.url, flush=True)
            return server.wait()
    except DashboardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
