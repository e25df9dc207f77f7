"""How `graft doctor` asks the machine: installed versions, child processes with a deadline, memory.

A broken package can neither crash nor hang the one who asks: what has to be imported to be believed is imported in a
child process.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

IMPORT_DEADLINE_S = 120.0
STORE_DEADLINE_S = 30.0

# Each package is reported on a line of its own as soon as it is there, so that a crash or a hang names its cause.
IMPORTS_PROBE = """
import json, os, sys
def say(**facts): print(json.dumps(facts), flush=True)
try:
    import torch
    say(torch=torch.__version__, cuda_build=torch.version.cuda or "", threads=torch.get_num_threads())
    devices = []
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            devices.append([p.name, p.total_memory])
    say(devices=devices)
    if not devices: os.environ["DS_ACCELERATOR"] = "cpu"
except Exception as error:
    say(torch_error=f"{type(error).__name__}: {error}"[:300])
    sys.exit(0)
for name in ("transformers", "deepspeed"):
    try:
        say(**{name: __import__(name).__version__})
    except Exception as error:
        say(**{name + "_error": f"{type(error).__name__}: {error}"[:300]})
"""

MODULE_PROBE = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps({"imported": True}))
"""

VERIFIER_PROBE = """
import json
from math_verify import parse, verify
gold, answer = parse("\\\\boxed{1/2}"), parse("\\\\boxed{0.5}")
print(json.dumps({"verified": bool(verify(gold, answer))}))
"""

# A network file system may refuse WAL or block on its locks: only opening a real file there tells.
SQLITE_PROBE = """
import json, os, sqlite3, sys, tempfile
print(json.dumps({"sqlite": sqlite3.sqlite_version}), flush=True)
with tempfile.TemporaryDirectory(dir=sys.argv[1], prefix=".graft-doctor-") as folder:
    base = sqlite3.connect(os.path.join(folder, "probe.db"))
    mode = base.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    base.execute("CREATE TABLE t (x)")
    base.execute("BEGIN IMMEDIATE")
    base.execute("INSERT INTO t VALUES (1)")
    base.commit()
    base.close()
print(json.dumps({"journal": mode}), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a child process reported (JSON objects, merged), and why it ended early ("" when it did not)."""

    facts: dict[str, object]
    failure: str = ""


def installed_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def declared_requirements(distribution: str) -> list[str]:
    """The requirement lines a distribution declares, or none when it is not installed."""
    try:
        return importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def run_probe(code: str, argument: str, deadline_s: float) -> Probe:
    """Run Python code in a child; every output line that is a JSON object adds to the facts."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-c", code, argument]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, env=environment)
        output, failure = done.stdout, ""
        if done.returncode < 0:
            failure = f"the process was killed by signal {-done.returncode}"
        elif done.returncode > 0:
            failure = last_line(done.stderr) or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        partial = error.stdout or b""
        output = partial.decode(errors="replace") if isinstance(partial, bytes) else partial
        failure = f"no answer within {deadline_s:.0f} s"
    facts: dict[str, object] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            facts.update(json.loads(line))
    return Probe(facts, failure)


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The functions the checks ask the machine with; a test puts its own in their place."""

    version: Callable[[str], str | None] = installed_version
    requirements: Callable[[str], list[str]] = declared_requirements
    probe: Callable[[str, str, float], Probe] = run_probe
    which: Callable[[str], str | None] = shutil.which
    python: tuple[int, int, int] = sys.version_info[:3]


def available_memory() -> int | None:
    """Bytes a new process may use: what the kernel calls available, or less where a control group sets a limit."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    limit, used = (read_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    if available is not None and limit is not None and used is not None:
        return min(available, max(limit - used, 0))
    return available


def gpu_memory_of(machine: Machine | None = None) -> int | None:
    """Bytes of this machine's smallest GPU by nvidia-smi; None where there is none, or no answer."""
    program = (machine or Machine()).which("nvidia-smi")
    if program is None:
        return None
    question = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(question, capture_output=True, text=True, timeout=STORE_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    sizes = [int(line) * 2**20 for line in done.stdout.split("\n") if line.strip().isdigit()]
    return min(sizes, default=None) if done.returncode == 0 else None


def read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
