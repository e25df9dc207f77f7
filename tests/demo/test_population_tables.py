"""The tables of docs/population.md are made from a comparison, and every arm they name is in the shipped sweeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from population.compare.command import compare
from population.compare.saved import as_json
from population.demo.population_tables import ALONE, CELLS, DEFAULT, PageError, fill, main, report

STUDY = Path("docs/demo_study.json")


def test_the_tables_show_what_compare_computes() -> None:
    tree = json.loads(as_json(compare([str(STUDY)], store="", baselines=(DEFAULT, ALONE))))
    row = next(r for r in tree["results"] if (r["arm"], r["member"], r["benchmark"]) == ("normaliser-own", None, None))
    against, (low, high) = (row["against"][DEFAULT]["end"][key] for key in ("mean", "interval"))
    text = report(tree)
    difference = f"{against:+.3f} [{low:+.3f}, {high:+.3f}]"
    lines = text.splitlines()
    assert f"{row['after']['mean']:.3f} ± {row['after']['sd']:.3f}" in next(x for x in lines if "| normaliser-own" in x)
    assert f"| own | – | – | {difference} | – |" in lines
    assert "| bytes | – | – | the default | – |" in lines
    assert "receiver <- source" in lines[-2]  # the runs' stores are not there: no row of uptake


def test_a_section_of_a_page_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a -->\nold\n<!-- end of a -->\nbetween\n<!-- b -->\n<!-- end of b -->\nafter\n")
    for text in ("new", "newer\n"):
        fill(page, "a", text)
    assert page.read_text() == (
        "before\n<!-- a -->\n\nnewer\n\n<!-- end of a -->\nbetween\n<!-- b -->\n<!-- end of b -->\nafter\n"
    )
    with pytest.raises(PageError, match="no section 'c'"):
        fill(page, "c", "new")
    main(str(page), f"b={STUDY}")
    assert "| balance-none |" in page.read_text()


@pytest.mark.parametrize("suite", ["", "_gym"])
def test_the_study_has_every_arm_of_the_tables_and_one_setting_for_each(suite: str) -> None:
    sweep = yaml.safe_load(Path(f"configs/sweeps/population_study{suite}.yaml").read_text())
    arms = {arm["name"]: arm.get("settings", {}) for arm in sweep["arms"]}
    for normaliser, cells in CELLS.items():
        for floor, name in cells.items():
            expected = {"exchange.normaliser": normaliser, "exchange.floor": float(floor)}
            assert {"exchange.normaliser": "bytes", "exchange.floor": 0.8} | arms[name] == expected
    assert arms[ALONE] == {"method": "grpo"}
    page = Path("docs/population.md").read_text()
    assert f"<!-- {'gym' if suite else 'wordings'} -->" in page
