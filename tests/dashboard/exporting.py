"""Exports for the tests, made as the command makes them: in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

DEADLINE_S = 900


def export(url: str, to: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`python -m dashboard.export` over a store."""
    environment = {**os.environ, "GRAFT_STORE_URL": url}
    command = [sys.executable, "-m", "dashboard.export", "--to", str(to), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)


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
