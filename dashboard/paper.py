"""The paper's figures beside a run's, and why they are not comparable. `paper_tables.yaml` names their source."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

AVERAGE = "Avg"
BENCHMARKS = ("MATH500", "AIME2024", "AIME2025", "AMC23", "Minerva")
_FILE = Path(__file__).resolve().parent / "paper_tables.yaml"
# Method of a run -> how the paper's table 1 calls it.
_METHODS = {
    "grpo": "GRPO_n8", "grpo-n16": "GRPO_n16", "grpo-n32": "GRPO_n32", "graft": "GRAFT", "hacpo": "HACPO", "sgt": "SGT",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A row of table 1: percent, and the standard deviation over five inference seeds, by benchmark and `Avg`; and the
    GPU hours up to its checkpoint where table 5 has them."""

    model: str
    method: str
    peer: str
    scores: Mapping[str, tuple[float, float]]
    gpu_hours: float | None = None


@cache
def tables() -> Mapping[str, Any]:
    """Everything in the file."""
    tree: Mapping[str, Any] = yaml.safe_load(_FILE.read_text("utf-8"))
    return tree


@cache
def table_1() -> tuple[Row, ...]:
    """Single models first, then pairs, in the paper's order."""
    table, rows = tables()["table1"], []
    for model, methods in table["single_model_baselines"].items():
        rows += [_row(model, method, "", cells) for method, cells in methods.items()]
    for entry in table["cross_model"]:
        rows += [_row(entry["updated"], method, entry["peer"], entry[method]) for method in ("HACPO", "SGT", "GRAFT")]
    return tuple(rows)


def _row(model: str, method: str, peer: str, cells: Mapping[str, Any]) -> Row:
    scores = {name: (float(cells[name]["mean"]), float(cells[name]["sd"])) for name in (*BENCHMARKS, AVERAGE)}
    # Table 5 has the cost of the first pair alone.
    hours = (
        tables()["table5_gpu_hours"][method].get(model.split("-")[0]) if {model, peer or model} <= _pair_1() else None
    )
    shown = method.replace("GRPO_n", "GRPO n = ")
    return Row(model, shown, peer, scores, None if hours is None else float(hours["best_ckpt_gpu_h"]))


def _pair_1() -> set[str]:
    return set(tables()["pairs"][1])


def clipping() -> str:
    """Table 9 in a sentence: shares of clipped tokens where peers come last, and first."""
    table = tables()["table9_clipping"]

    def span(part: str, order: str) -> str:
        return " and ".join(f"{rows[order]:.3f} %" for rows in table[part].values())

    return (
        f"The paper's first pair, steps 1–48 (table 9; other models and budget, so not comparable): peers last, own "
        f"{span('self', 'last')}, peers' {span('grafted', 'last')}; peers first, peers' {span('grafted', 'first')}."
    )


def canonical(benchmark: str) -> str | None:
    """The paper's name of a benchmark ("math-500" -> "MATH500"); None for another one."""
    key = re.sub(r"[^a-z0-9]", "", benchmark.lower())
    known = {name.lower(): name for name in BENCHMARKS} | {"aime24": "AIME2024", "aime25": "AIME2025"}
    return known.get(key) or {"minervamath": "Minerva", "amc2023": "AMC23"}.get(key)


def base_model(model: str) -> str:
    """The model's name without its owner."""
    return model.rstrip("/").rsplit("/", 1)[-1]


def rows_for(models: Sequence[str], method: str) -> tuple[list[Row], bool]:
    """(rows of the paper for these models, whether one of them is the paper's).

    Of its models: GRPO with 8 rollouts, GRAFT, and the run's own method, with the peers that the run has too. Without
    one of its models, its first pair, so that there is something to look at.
    """
    ours = {base_model(model) for model in models}
    known = [model for model in dict.fromkeys(row.model for row in table_1()) if model in ours]
    shown = known or list(tables()["pairs"][1])
    names = {"GRPO n = 8", "GRAFT", _METHODS.get(method, "GRAFT").replace("GRPO_n", "GRPO n = ")}
    peers = ours if known else set(shown)
    rows = [
        row
        for row in table_1()
        if row.model in shown and row.method in names and (not row.peer or row.peer in peers or not peers - {row.model})
    ]
    return rows, bool(known)


def differences(
    config: Mapping[str, Any], models: Sequence[str], method: str, total_steps: int, benchmarks: Sequence[str]
) -> list[str]:
    """Why this run's figures are not comparable with the paper's, one short reason each; empty where they are.

    Reads the recorded configuration; what it does not say counts as different.
    """
    paper, protocol = tables()["table3_hyperparameters"], tables()["evaluation"]
    found = []
    pairs = [set(pair) for pair in tables()["pairs"].values()]
    ours = {base_model(model) for model in models}
    if not any(ours == pair or (ours < pair and len(ours) == 1 and method.startswith("grpo")) for pair in pairs):
        found.append("other models")
    if method not in _METHODS:
        found.append(f"the paper has no method {method} in table 1")
    missing = [name for name in BENCHMARKS if name not in {canonical(one) for one in benchmarks}]
    if missing:
        found.append("other benchmarks" if len(missing) == len(BENCHMARKS) else f"without {', '.join(missing)}")
    rollouts = _METHODS.get(method, "").partition("_n")[2] or str(paper["rollouts_per_prompt_per_model"])
    wanted = (
        ("steps", total_steps, paper["steps_total"]),
        ("prompts a step", _get(config, "data", "prompts_per_step"), paper["prompt_batch_size"]),
        ("rollouts a prompt", _get(config, "rollouts", "rollouts_per_prompt"), int(rollouts)),
        ("response tokens", _get(config, "rollouts", "max_response_tokens"), paper["max_response_tokens"]),
        ("learning rate", _get(config, "update", "learning_rate"), paper["learning_rate"]),
        ("repeats of the best checkpoint", _get(config, "evaluation", "repeats"), protocol["eval_runs"]),
    )
    found += [
        f"{own if own is not None else 'unknown'} {name} (paper {want})" for name, own, want in wanted if own != want
    ]
    evaluated = [one for one in _get(config, "evaluation", "benchmarks") or () if canonical(str(one.get("name")))]
    for key, want in (
        ("responses_per_prompt", protocol["samples_per_problem"]),
        ("temperature", protocol["temperature"]),
        ("top_p", protocol["top_p"]),
    ):
        if any(one.get(key) != want for one in evaluated):
            found.append(f"another {key} in evaluation (paper {want})")
    return found


def _get(config: Mapping[str, Any], section: str, key: str) -> Any:
    part = config.get(section)
    return part.get(key) if isinstance(part, Mapping) else None
