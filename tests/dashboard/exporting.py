"""Exports for the tests: by the command in a process of its own, or in this one, which is faster."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from dashboard.export.command import command

DEADLINE_S = 900


def export(url: str, to: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`python -m dashboard.export` over a store."""
    environment = {**os.environ, "GRAFT_STORE_URL": url}
    command = [sys.executable, "-m", "dashboard.export", "--to", str(to), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)


class Done(NamedTuple):
    """How a command ended, in the words of `subprocess`."""

    returncode: int
    stdout: str
    stderr: str


def exported_here(url: str, to: Path, *options: str) -> Done:
    """The same command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["export", "--to", str(to), *options]
    with (
        mock.patch.dict(os.environ, {"GRAFT_STORE_URL": url}),
        mock.patch.object(sys, "argv", argv),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = command()
    return Done(code, out.getvalue(), err.getvalue())


class Page(HTMLParser):
    """What a browser would make of a report: its elements, what they lead to, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)
