"""Commands as people type them: read from Markdown, and what `make` really runs for a target."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHELL_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def bash_commands(markdown: str) -> list[str]:
    """The commands of every ```bash block, in order: continued lines joined, comments and prompts left out."""
    commands = []
    for block in SHELL_BLOCK.findall(markdown):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words:
                commands.append(shlex.join(words))
    return commands


def session_commands() -> list[str]:
    """The README's commands that train, resume, summarise, serve, replay and export, in order: one needs the other."""
    verbs = tuple(f".venv/bin/graft {verb}" for verb in ("train", "summary", "dashboard", "replay", "export"))
    return [command for command in bash_commands((ROOT / "README.md").read_text()) if command.startswith(verbs)]


def made(target: str, args: str = "") -> list[list[str]]:
    """What `make TARGET ARGS=...` runs apart from building the environment, as argument lists.

    Tests run these themselves, so that what they check is what the Makefile holds.
    """
    command = ["make", "--no-print-directory", "-n", target, f"ARGS={args}"]
    # An outer `make test` must not hand its own flags and arguments down.
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True, env=environment)
    lines = [shlex.split(line) for line in done.stdout.splitlines()]
    return [words for words in lines if words and not words[0].startswith("tools/setup") and words[0] != "make:"]


def runnable(words: list[str]) -> list[str]:
    """A command of the checkout with the interpreter's own environment in the place of .venv."""
    here = Path(sys.executable).parent
    if words[0].startswith(".venv/bin/"):
        return [str(here / words[0].removeprefix(".venv/bin/")), *words[1:]]
    return words


def run(words: list[str], *, deadline_s: float, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command of the checkout and return what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(
        runnable(words), cwd=cwd, capture_output=True, text=True, timeout=deadline_s, env=environment, check=False
    )
