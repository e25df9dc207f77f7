"""`graft doctor --gpu`: parts in processes of their own, and a report that says what failed and what was not run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from population.gpu_check import report
from population.gpu_check.report import Outcome, Part, examine, said, table
from population.memory import GIB


def text(outcomes: list[Outcome]) -> str:
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(table(outcomes))
    return console.export_text()


def test_the_script_runs_on_a_cpu_and_writes_what_it_found(tmp_path: Path) -> None:
    parts = [Part("matmul", "", 120.0), Part("train", "qwen3", 300.0)]
    console = Console(file=io.StringIO())
    assert report.run(console, tmp_path, device="cpu", parts=parts, whole_s=400.0) == 0
    matmul, train = json.loads((tmp_path / "report.json").read_text())["parts"]
    assert matmul["matmul_tflops"] > 0
    assert train["tokens_per_second"] > 0
    assert train["grad_norm"] > 0
    assert "peak_bytes" not in train
    assert "tokens/s" in (tmp_path / "report.txt").read_text()


def test_a_part_that_fails_is_named_and_the_exit_code_says_so(tmp_path: Path) -> None:
    parts = [Part("unheard-of", "", 120.0), Part("train", "llama", 0.0)]
    assert report.run(Console(file=io.StringIO()), tmp_path, device="cpu", parts=parts, whole_s=200.0) == 1
    first, second = json.loads((tmp_path / "report.json").read_text())["parts"]
    assert "unheard-of" in first["failure"]
    assert "not started" in second["failure"]


def test_sglang_is_left_out_and_said_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(report.SGLANG_PYTHON, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = examine(Part("sglang", "qwen3", 10.0), "cpu", 10.0)
    assert outcome.skipped
    assert "not run: sglang is not installed here" in text([outcome])


def test_the_report_relates_training_to_the_product_and_the_peak_to_the_estimate() -> None:
    facts = {
        "parameters": 350_000_000,
        "attention": "sdpa",
        "layout": "packed",
        "tokens_per_second": 1e5,
        "tflops": 300.0,
        "peak_bytes": 10 * GIB,
        "estimated_bytes": 9 * GIB,
    }
    lines = said(facts, 600.0)
    assert "300 TFLOP/s of the model's own, 50% of that product's" in lines
    assert "peak 10.00 GiB, plan estimates 9.00 GiB" in lines
    assert "300 TFLOP/s of the model's own" in said(facts, None)
