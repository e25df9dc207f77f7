"""`graft doctor`: what this machine can run, and for everything it cannot, why and what to do.

Nothing heavy is imported here. Versions are read from the installed metadata; where only a real import tells the
truth (torch, DeepSpeed, the verifier), it happens in a child process with a deadline (`population.machine`).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from population.machine import (
    IMPORT_DEADLINE_S,
    IMPORTS_PROBE,
    MODULE_PROBE,
    SQLITE_PROBE,
    STORE_DEADLINE_S,
    VERIFIER_PROBE,
    Machine,
    Probe,
    available_memory,
)

Status = Literal["ok", "missing", "problem"]

DISTRIBUTION = "graft-population"
GIB = 1024**3
SETUP = "make setup"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, slots=True)
class Check:
    """One row: a name, how it stands, why, and the command or step that mends it ("" when nothing needs mending).

    `required` rows decide whether the embedded default (CPU, SQLite, no cluster) can run.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""
    required: bool = False


def check_python(machine: Machine) -> Check:
    found = ".".join(map(str, machine.python))
    if machine.python < (3, 11):
        return Check("Python", "problem", f"{found}; 3.11 or newer is needed", "install Python 3.11", required=True)
    return Check("Python", "ok", f"{found}, {platform.system()} {platform.machine()}", required=True)


def check_packages(machine: Machine) -> Check:
    """Every dependency of the base install is there, in the range it is declared with."""
    faults, count = [], 0
    for line in machine.requirements(DISTRIBUTION):
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        count += 1
        found = machine.version(requirement.name)
        if found is None:
            faults.append(f"{requirement.name} is not installed")
        elif not requirement.specifier.contains(found, prereleases=True):
            faults.append(f"{requirement.name} is {found}, wanted {requirement.specifier}")
    if faults:
        return Check("Packages", "problem", "; ".join(faults), SETUP, required=True)
    if not count:
        return Check("Packages", "problem", f"{DISTRIBUTION} itself is not installed here", SETUP, required=True)
    return Check("Packages", "ok", f"all {count} that the base install needs, in range", required=True)


def check_memory() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = available_memory()
    if memory is None:
        return Check("Cores and memory", "ok", f"{cores} cores, memory unknown on this system")
    detail = f"{cores} cores, {memory / GIB:.1f} GiB of memory free"
    if memory < 2 * GIB:
        return Check("Cores and memory", "problem", f"{detail}; the demo needs about 2 GiB", "close other programs")
    return Check("Cores and memory", "ok", detail)


def check_disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    detail = f"{free / GIB:.1f} GiB free at {folder}"
    if free < GIB:
        fix = "free some space, or choose another folder for the run"
        return Check("Disk", "problem", f"{detail}; a run needs at least 1 GiB", fix, required=True)
    return Check("Disk", "ok", detail, required=True)


def check_import(name: str, label: str, probe: Probe, machine: Machine) -> Check:
    """torch, transformers or DeepSpeed, as the child process found it."""
    installed = machine.version(name)
    if installed is None:
        return Check(label, "missing", "not installed", SETUP, required=True)
    if name in probe.facts:
        return Check(label, "ok", str(probe.facts[name]), required=True)
    reason = probe.facts.get(f"{name}_error") or probe.facts.get("torch_error") or probe.failure or "no answer"
    return Check(label, "problem", f"{installed} is installed but does not import: {reason}", SETUP, required=True)


def check_gpu(probe: Probe, machine: Machine) -> Check:
    devices = probe.facts.get("devices")
    if isinstance(devices, list) and devices:
        listed = ", ".join(f"{name} ({memory / GIB:.0f} GiB)" for name, memory in devices)
        return Check("GPU", "ok", listed)
    if not machine.which("nvidia-smi"):
        return Check("GPU", "missing", "no NVIDIA driver: training and sampling run on the CPU")
    if probe.facts.get("cuda_build") == "":
        fix = "pip install -e '.[gpu]' -c constraints-gpu.txt"
        return Check("GPU", "problem", "there is an NVIDIA driver, but torch is a CPU build", fix)
    return Check("GPU", "problem", "torch sees no device", "nvidia-smi (does the driver answer and fit CUDA?)")


def check_sglang(machine: Machine) -> Check:
    """SGLang pins its neighbours exactly; another release beside it fails late and strangely."""
    fix = "pip install -e '.[gpu]' -c constraints-gpu.txt"
    if machine.version("sglang") is None and not machine.which("nvidia-smi"):
        return Check("SGLang", "missing", "not installed, and no GPU for it: rollouts use the embedded engine")
    clashes = []
    for line in machine.requirements("sglang"):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.name not in {"torch", "transformers", "tokenizers"} or requirement.marker:
            continue
        other = machine.version(requirement.name)
        if other is None or not requirement.specifier.contains(other, prereleases=True):
            clashes.append(f"wants {requirement.name}{requirement.specifier}, found {other or 'none'}")
    if clashes:
        return Check("SGLang", "problem", f"{machine.version('sglang')} {'; '.join(clashes)}", fix)
    return check_optional(machine, "sglang", "SGLang", "rollouts use the embedded engine", fix)


def check_optional(machine: Machine, distribution: str, label: str, without: str, fix: str) -> Check:
    """A package that only some runs need; `without` says what happens without it."""
    found = machine.version(distribution)
    if found is None:
        return Check(label, "missing", f"not installed: {without}", fix)
    probe = machine.probe(MODULE_PROBE, distribution, IMPORT_DEADLINE_S)
    if probe.facts.get("imported") is not True:
        reason = probe.failure or "no answer"
        return Check(label, "problem", f"{found} is installed but does not import: {reason}", fix)
    return Check(label, "ok", found)


def check_sqlite(folder: Path, machine: Machine) -> Check:
    probe = machine.probe(SQLITE_PROBE, str(folder), STORE_DEADLINE_S)
    version, journal = probe.facts.get("sqlite", "unknown version"), probe.facts.get("journal")
    if journal == "wal":
        return Check("SQLite", "ok", f"{version}, write-ahead log works at {folder}", required=True)
    fix = "choose a folder on a local disk for the store"
    reason = probe.failure or f"the journal stays '{journal}'"
    return Check("SQLite", "problem", f"{version}, no write-ahead log at {folder}: {reason}", fix, required=True)


def check_verifier(machine: Machine) -> Check:
    found = machine.version("math-verify")
    if found is None:
        return Check("Verifier", "missing", "math-verify is not installed: only exact answers are graded", SETUP)
    probe = machine.probe(VERIFIER_PROBE, "", IMPORT_DEADLINE_S)
    if probe.facts.get("verified") is True:
        return Check("Verifier", "ok", f"math-verify {found}, a worker process graded 1/2 = 0.5")
    reason = probe.failure or "it does not find 1/2 = 0.5"
    return Check("Verifier", "problem", f"math-verify {found}: {reason}", SETUP)


def check_browser(machine: Machine) -> Check:
    path = next((found for name in CHROMIUM_NAMES if (found := machine.which(name))), None)
    if path is None:
        return Check("Chromium", "missing", "only the browser tests need it", "apt-get install chromium")
    return Check("Chromium", "ok", path)


def diagnose(folder: Path | None = None, machine: Machine | None = None) -> list[Check]:
    """Every check, in the order it is shown.

    folder is where runs are to be written (default: the working directory); a folder that does not exist yet is judged
    by its nearest existing parent.
    """
    machine = machine or Machine()
    target = (folder or Path.cwd()).absolute()
    while not target.is_dir() and target != target.parent:
        target = target.parent
    cluster = "pip install -e '.[cluster]' -c constraints.txt"
    with ThreadPoolExecutor(max_workers=3) as pool:
        imports = pool.submit(machine.probe, IMPORTS_PROBE, "", IMPORT_DEADLINE_S)
        sqlite = pool.submit(check_sqlite, target, machine)
        verifier = pool.submit(check_verifier, machine)
        dashboard = pool.submit(check_optional, machine, "streamlit", "Dashboard", "no dashboard", SETUP)
        sglang = pool.submit(check_sglang, machine)
        ray = pool.submit(
            check_optional, machine, "ray", "Ray", "a run is one process (graft train --cluster needs it)", cluster
        )
        driver = pool.submit(check_optional, machine, "psycopg", "PostgreSQL", "stores are SQLite files", SETUP)
        found = imports.result()
        return [
            check_python(machine),
            check_packages(machine),
            check_memory(),
            check_disk(target),
            check_import("torch", "torch", found, machine),
            check_import("transformers", "transformers", found, machine),
            check_import("deepspeed", "DeepSpeed", found, machine),
            check_gpu(found, machine),
            sqlite.result(),
            driver.result(),
            verifier.result(),
            dashboard.result(),
            sglang.result(),
            ray.result(),
            check_browser(machine),
        ]


def can_run(checks: Sequence[Check]) -> bool:
    """Whether the embedded default can run."""
    return all(check.status == "ok" for check in checks if check.required)


def run(as_json: bool = False, folder: Path | None = None) -> int:
    """Print the report; 0 when the embedded default can run here, else 1."""
    checks = diagnose(folder)
    if as_json:
        print(json.dumps({"can_run": can_run(checks), "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        show(checks, Console())
    return 0 if can_run(checks) else 1


def show(checks: Sequence[Check], console: Console) -> None:
    """The report as a table for people."""
    styles = {"ok": "green", "missing": "yellow", "problem": "red"}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "status", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for check in checks:
        style = styles[check.status] if check.status != "missing" or check.required else "dim"
        table.add_row(check.name, f"[{style}]{check.status}[/]", escape(check.detail), escape(check.fix))
    console.print(table)
    if can_run(checks):
        console.print("\nThe embedded default can run here: make demo")
    else:
        broken = ", ".join(check.name for check in checks if check.required and check.status != "ok")
        console.print(f"\n[red]The embedded default can't run here[/]: {broken}")
