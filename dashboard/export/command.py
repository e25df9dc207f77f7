"""The command line of ``python -m dashboard.export``. The store's URL is read from GRAFT_STORE_URL, so that a password
in it never stands on a command line. A fault a user can mend is one line on standard error and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from rich.console import Console

from dashboard.export import collect
from dashboard.export.collect import ExportError
from dashboard.export.run import PARTS, ROWS, THEMES, Order, export
from dashboard.launch import STORE_VARIABLE
from server.store.reader import StoreError


def command() -> int:
    """Command line; returns the exit code."""
    arguments = _parser().parse_args()
    url = os.environ[STORE_VARIABLE]
    console = Console(stderr=True, quiet=arguments.quiet)
    try:
        pages = collect.pages(arguments.page)
        scope = collect.scope(url, arguments.run, _steps(arguments.steps), arguments.member)
        wanted = {*(arguments.only or PARTS), *([ROWS] if arguments.rows else [])}
        order = Order(pages, wanted, arguments.theme)
        with console.status("") as status:
            counts = export(
                url, scope, order, arguments.to, overwrite=arguments.overwrite, told=lambda what: status.update(what)
            )
    except (ExportError, StoreError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {arguments.to}: {error.strerror or error}; nothing was written", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    if not arguments.quiet:
        said = ", ".join(f"{count:,} {'file' if count == 1 else 'files'} of {kind}" for kind, count in counts.items())
        print(f"{arguments.to}: {said}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="graft export", description="Write a recorded run as files.")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--run", default="latest", help="uid, or latest")
    parser.add_argument("--page", action="append", default=[], metavar="NAME")
    parser.add_argument("--steps", default=":", metavar="A:B")
    parser.add_argument("--member", action="append", default=[], metavar="NAME")
    parser.add_argument("--only", action="append", choices=(*PARTS, ROWS), default=[])
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--theme", choices=THEMES, default="light")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    return parser


def _steps(text: str) -> tuple[int | None, int | None]:
    """ "10:20", "10:" or ":20"; ExportError for anything else."""
    found = re.fullmatch(r"(\d{0,9}):(\d{0,9})", text)
    if found is None:
        raise ExportError(f"--steps {text!r} is no range of steps; write it as 10:20, 10: or :20")
    first, last = (int(part) if part else None for part in found.groups())
    return first, last
