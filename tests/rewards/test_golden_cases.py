"""tests/cases/verifier.csv: every row right, except those listed with their reason, which must stay wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from server.rewards import RewardService, Verdict

CASES = Path(__file__).parents[1] / "cases" / "verifier.csv"

# case -> why this row cannot come out as the file says. A row that starts to pass must leave this table.
EXCEPTIONS = {
    "long-text": (
        "the file keeps only the first 80 characters of a 100 kB response, so the final answer that made it right is "
        "gone; test_extract.py grades such a response in full"
    ),
}


def rows() -> list[dict[str, str]]:
    with CASES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    cases = rows()
    with RewardService(workers=2, timeout_s=1.0) as service:
        graded = service.grade([(row["gold"], row["prediction"]) for row in cases])
    return {row["case"]: verdict for row, verdict in zip(cases, graded, strict=True)}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["case"])
def test_golden_row_is_right_or_a_listed_exception(row: dict[str, str], verdicts: dict[str, Verdict]) -> None:
    agrees = verdicts[row["case"]].reward == float(row["expected"])
    if row["case"] in EXCEPTIONS:
        assert not agrees, f"{row['case']} passes now: take it out of EXCEPTIONS"
    else:
        assert agrees, verdicts[row["case"]]


def test_every_exception_names_a_row() -> None:
    assert set(EXCEPTIONS) <= {row["case"] for row in rows()}


def test_no_injected_code_ran(verdicts: dict[str, Verdict]) -> None:
    assert verdicts["code-exec"].reward == 0.0
    assert not list(Path.cwd().glob("PWNED*"))
