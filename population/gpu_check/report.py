"""Runs the parts, each in a process with a deadline, and writes what they found."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from population.machine import Probe, run_probe
from population.memory import GIB

# The interpreter of another environment that has sglang.
SGLANG_PYTHON = "GRAFT_SGLANG_PYTHON"
CODE = "from population.gpu_check.parts import main; main()"
# The whole check, and the longest that each part may take of it.
WHOLE_S = 470.0


@dataclass(frozen=True)
class Part:
    """One part and what is asked of it."""

    part: str
    family: str
    deadline_s: float

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.part if self.part == "matmul" else f"{self.part} {self.family}"


PARTS = (
    Part("matmul", "", 60.0),
    Part("train", "qwen3", 100.0),
    Part("train", "llama", 100.0),
    Part("sample", "qwen3", 90.0),
    Part("sglang", "qwen3", 200.0),
)


@dataclass(frozen=True)
class Outcome:
    """What a part found, or why it found nothing. `skipped`: it cannot run on this machine."""

    part: Part
    facts: dict[str, Any]
    failure: str
    seconds: float
    skipped: bool = False


def run(
    console: Console,
    folder: Path,
    *,
    device: Literal["cuda", "cpu"] = "cuda",
    parts: Sequence[Part] = PARTS,
    whole_s: float = WHOLE_S,
) -> int:
    """Run the parts one after the other and write `report.json` and `report.txt` into the folder; the exit code.

    On a CPU the sizes are small: that run proves the script, not the machine.
    """
    started = time.monotonic()
    outcomes = []
    for part in parts:
        left = whole_s - (time.monotonic() - started)
        console.print(f"{part.name} ...", highlight=False)
        outcomes.append(examine(part, device, min(part.deadline_s, left)))
    folder.mkdir(parents=True, exist_ok=True)
    facts = [
        {"part": o.part.name, "seconds": o.seconds, "failure": o.failure, "skipped": o.skipped, **o.facts}
        for o in outcomes
    ]
    (folder / "report.json").write_text(json.dumps({"device": device, "parts": facts}, indent=1) + "\n")
    with (folder / "report.txt").open("w") as file:
        Console(file=file, width=120).print(table(outcomes))
    console.print(table(outcomes))
    console.print(f"Written to {folder / 'report.json'} and {folder / 'report.txt'}.", highlight=False, soft_wrap=True)
    return int(any(outcome.failure and not outcome.skipped for outcome in outcomes))


def examine(part: Part, device: str, deadline_s: float) -> Outcome:
    """One part in a process of its own."""
    if part.part == "sglang" and SGLANG_PYTHON not in os.environ and importlib.util.find_spec("sglang") is None:
        return Outcome(part, {}, f"sglang is not installed here, nor named by {SGLANG_PYTHON}", 0.0, skipped=True)
    if deadline_s <= 0:
        return Outcome(part, {}, "not started: the time for the whole check was used up", 0.0)
    asked = {
        "part": part.part,
        "family": part.family,
        "device": device,
        "scale": "full" if device == "cuda" else "small",
    }
    started = time.monotonic()
    probe: Probe = run_probe(CODE, json.dumps(asked), deadline_s)
    return Outcome(part, dict(probe.facts), probe.failure, time.monotonic() - started)


def table(outcomes: Sequence[Outcome]) -> Table:
    """The report as people read it."""
    peak = next((o.facts["matmul_tflops"] for o in outcomes if "matmul_tflops" in o.facts), None)
    shown = Table("part", "seconds", "found", title="graft doctor --gpu")
    for outcome in outcomes:
        if outcome.skipped:
            found = f"not run: {outcome.failure}"
        else:
            found = f"FAILED: {outcome.failure}" if outcome.failure else "; ".join(said(outcome.facts, peak))
        shown.add_row(outcome.part.name, f"{outcome.seconds:.0f}", found)
    return shown


def said(facts: dict[str, Any], peak: float | None) -> list[str]:
    """The facts of one part in words; what was not measured is not there."""
    lines = []
    if "matmul_tflops" in facts:
        lines.append(f"{facts['device']}: {facts['matmul_tflops']:.3g} TFLOP/s in a bfloat16 product")
    if "parameters" in facts:
        lines.append(f"{facts['parameters'] / 1e6:.1f} M parameters, {facts['attention']}, {facts['layout']}")
    if "tokens_per_second" in facts:
        lines.append(f"{facts['tokens_per_second']:,.0f} tokens/s")
    if "tflops" in facts:
        share = f", {facts['tflops'] / peak:.0%} of that product's" if peak else ""
        lines.append(f"{facts['tflops']:.3g} TFLOP/s of the model's own{share}")
    if "estimated_bytes" in facts:
        estimate = f"plan estimates {facts['estimated_bytes'] / GIB:.2f} GiB"
        if "peak_bytes" in facts:
            estimate = f"peak {facts['peak_bytes'] / GIB:.2f} GiB, {estimate}"
        lines.append(estimate)
    if facts.get("freed_by_sleep") is not None:
        lines.append(f"sleep frees {facts['freed_by_sleep'] / GIB:.2f} GiB")
    if "refused_asleep" in facts:
        lines.append("sampling asleep is refused" if facts["refused_asleep"] else "SAMPLED WHILE ASLEEP")
        lines.append(f"samples of weight version {facts['version_after_waking']} after waking")
    return lines + [str(note) for note in facts.get("notes", ())]
