"""The same numbers as tables, Markdown, LaTeX, CSV and JSON; what is missing is shown as missing."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from population.compare.command import Format, compare, one_format, show
from population.compare.csv_rows import as_csv
from population.compare.latex import escape, latex
from population.compare.saved import SavedError, as_json, load_saved
from population.compare.tables import markdown, markdown_table, notes, signed, tables
from population.errors import RunError
from server.store.comparison import BASES, Comparison
from server.store.results import CHECKPOINTS, Protocol
from tests.compare.made import GRAFT, GRPO, arm, comparison, run

BOTH = comparison(GRPO, GRAFT)
DEMO = Path(__file__).resolve().parents[2] / "docs"


def test_the_tables_show_mean_and_spread_every_seed_signed_differences_and_cost() -> None:
    text = markdown(BOTH)
    for line in (
        "| grpo | 2 | 20.0 | 70.0 ± 0.0 | 70.0 70.0 |",
        "| graft | 2 | 20.0 | 92.5 ± 3.5 | 90.0 95.0 |",
        "| graft | +22.5 [-9.3, +54.3] | +22.5 [-9.3, +54.3] | +10.0 [+10.0, +10.0] |",
        "| grpo | 2 | 1,728 | 34,560 | 72 |",
        "| graft | 2 | 1,728 | 34,560 | 90 |",
    ):
        assert line in text
    assert [part.title for part in tables(BOTH)] == [
        "mean of the members", "against grpo, mean of the members", "a", "b", "c", "cost of a run",
    ]  # fmt: skip
    assert "grpo: independent GRPO" in text
    assert "at the last evaluation of each run" in text


def test_a_table_for_a_terminal_has_the_same_cells() -> None:
    file = io.StringIO()
    show(Console(file=file, width=160), BOTH, Format.TABLE)
    cells = {cell for part in tables(BOTH) for row in part.rows for cell in row}
    assert all(cell in file.getvalue() for cell in cells)


def test_an_average_stands_beside_several_benchmarks() -> None:
    two = run(0, {"x": {0: [0.1] * 3, 72: [0.5] * 3}, "y": {0: [0.3] * 3, 72: [0.7] * 3}})
    first = tables(comparison(arm("grpo", two)))[0]
    assert first.headings == ("arm", "n", "before", "x", "y", "average", "average by seed")
    assert first.rows == (("grpo", "1", "20.0", "50.0", "70.0", "60.0", "60.0"),)


def test_missing_numbers_unpaired_seeds_and_unlike_protocols_are_said() -> None:
    holed = replace(
        run(5, {"heldout": {0: [0.2] * 3, 72: [0.8] * 3}}, method="graft"), protocol={"heldout": Protocol(5, 20, 0.6)}
    )
    other = comparison(GRPO, arm("graft", GRAFT.runs[0], holed))
    text = list(notes(other))
    assert "graft against grpo: seed 5 of graft has no partner and is not in it." in text
    assert "graft against grpo: seed 1 of grpo has no partner and is not in it." in text
    assert any("heldout was not measured alike" in line for line in text)
    assert signed(other.against(other.arm("graft"), GRPO), of=2) == "+20.0 (1 of 2)"
    alone = comparison(GRPO, arm("graft", holed))
    assert markdown_table(tables(alone)[1]).splitlines()[-1] == "| graft | – | – | – |"


def test_best_checkpoints_say_what_they_were_selected_on() -> None:
    best = Comparison((GRPO,), ("grpo",), "cpu_seconds", CHECKPOINTS["best"])
    assert "Best checkpoints: rule mean on the test sets themselves: heldout." in list(notes(best))


def test_csv_reads_back_as_the_numbers_themselves() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(BOTH))))
    assert len(rows) == 2 * 4 * 2
    row = next(r for r in rows if (r["arm"], r["member"], r["benchmark"]) == ("graft", "a", "heldout"))
    after, difference = BOTH.after(GRAFT, "a", "heldout"), BOTH.against(GRAFT, GRPO, "end", "a", "heldout")
    assert float(row["after_mean"]) == after.mean
    assert float(row["after_sd"]) == after.sd
    assert [float(value) for value in row["after_by_seed"].split()] == list(after.by_seed.values())
    assert difference.interval is not None
    assert (float(row["against_grpo_end_low"]), float(row["against_grpo_end_high"])) == difference.interval
    baseline = next(r for r in rows if r["arm"] == "grpo")
    assert {baseline[f"against_grpo_{basis}_mean"] for basis in BASES} == {""}


def test_json_holds_every_number_and_is_compared_again(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_text(as_json(BOTH))
    saved = load_saved(path)
    assert saved.arms == BOTH.arms
    assert as_json(compare([str(path)], store="")) == path.read_text()
    path.write_text(as_json(replace(BOTH, notes=("left out: c-0",))))
    assert compare([str(path)], store="").notes == ("left out: c-0",)
    tree = json.loads(path.read_text())
    entry = next(r for r in tree["results"] if (r["arm"], r["member"], r["benchmark"]) == ("graft", None, None))
    paired = BOTH.against(GRAFT, GRPO)
    assert paired.interval is not None
    assert entry["against"]["grpo"]["end"]["interval"] == list(paired.interval)
    assert entry["against"]["grpo"]["end"]["mean"] == paired.mean


def test_a_file_that_is_no_comparison_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for text in ("{", "[]", '{"format": "else"}', as_json(BOTH).replace('"uid"', '"id"')):
        path.write_text(text)
        with pytest.raises(SavedError, match=re.escape(str(path))):
            load_saved(path)


def awkward() -> Comparison:
    """Names that mean something to LaTeX, and a member that one arm lacks."""
    odd = arm("50%_n&{x}#1~^\\$<>|", run(0, {"a_b %": {0: [0.1, 0.2], 72: [0.5, 0.5]}}, members="ab"))
    return comparison(odd, arm("grpo", run(0, {"a_b %": {0: [0.1] * 3, 72: [0.25] * 3}})))


def test_latex_has_one_booktabs_table_for_each_member_with_equal_rows() -> None:
    for one in (BOTH, awkward()):
        text = latex(one)
        assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 1 + len(one.members)
        assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 1 + len(one.members)
        columns = len(re.findall("r", re.findall(r"\\begin\{tabular\}\{l(r+)\}", text)[0])) + 1
        rows = [line for line in text.splitlines() if line.endswith(r" \\")]
        assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {columns}
    assert r"92.50 {\scriptsize $\pm$ 3.54}" in latex(BOTH)
    assert r"$+22.50$ {\scriptsize $[-9.27, +54.27]$}" in latex(BOTH)


def test_latex_text_is_escaped() -> None:
    assert escape("50%_n&{x}#1$") == r"50\%\_n\&\{x\}\#1\$"
    assert escape("~^\\") == r"\textasciitilde{}\textasciicircum{}\textbackslash{}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_latex_compiles(tmp_path: Path) -> None:
    body = latex(BOTH) + latex(awkward())
    text = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + body + "\\end{document}\n"
    (tmp_path / "paper.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_documented_tables_are_computed_from_the_recorded_results() -> None:
    study = compare([str(DEMO / "demo_study.json")], store="")
    assert all(list(one.runs) == [0, 1, 2, 3, 4] for one in study.arms)
    text = (DEMO / "demo.md").read_text()
    shown = [part for part in tables(study) if part.title not in study.members]
    assert len(shown) == 4
    for part in shown:
        assert markdown_table(part) in text, part.title


def test_one_form_is_shown_at_a_time() -> None:
    assert one_format(json=False, csv=False, latex=False, markdown=False) is Format.TABLE
    assert one_format(json=False, csv=True, latex=False, markdown=False) is Format.CSV
    with pytest.raises(RunError, match="--json and --latex: choose one form"):
        one_format(json=True, csv=False, latex=True, markdown=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"baselines": ["grp"]}, "--baseline grp: there is no such arm; did you mean 'grpo'"),
        ({"checkpoint": "first"}, "--checkpoint first: there is no such checkpoint; choose from last, best, repeats"),
        ({"cost": "euros"}, "--cost euros: there is no such cost; choose from rollouts"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(options: dict, said: str) -> None:
    with pytest.raises(RunError, match=re.escape(said)):
        compare([str(DEMO / "demo_study.json")], store="", **options)
