"""The closing summary shows the record's numbers, with counts and intervals."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from graft.complementarity import uptake, wilson_interval
from population.report import ABSENT, print_summary, print_uptake, rate, summarise, uptake_cells
from server.store.reader import open_reader
from server.store.writer import open_writer
from tests.store.synthetic import Scenario, make_store, write_run


def test_the_summary_equals_a_recount_of_the_record(tmp_path: Path) -> None:
    with open_reader(make_store(tmp_path, members=3, steps=6, prompts=8, n=4)) as reader:
        run = reader.run("latest")
        summaries = summarise(reader, run)
        rows, _ = reader.transfers(run.uid, 1, 6, limit=10_000)
        evaluations = reader.evaluations(run.uid)
        for i, s in enumerate(summaries):
            own = [row for row in rows if row.receiver == s.name and not row.held_out]
            assert s.rescued[0] == sum(row.admitted > 0 for row in own)
            assert s.admitted == (sum(row.admitted for row in own), sum(row.responses for row in own))
            assert s.all_fail == (
                int(reader.member_counts(run.uid, 1, 6)["all_fail"][i]),
                6 * 8,
            )
            steps = sorted(
                e.step for e in evaluations if e.member == s.name and e.benchmark == evaluations[0].benchmark
            )
            assert s.before is not None
            assert s.before.step == steps[0]
        text = io.StringIO()
        print_summary(Console(file=text, width=120), reader, run, ["try this"])
    shown = text.getvalue()
    for s in summaries:
        assert s.name in shown
        assert f"{s.all_fail[0] / s.all_fail[1]:.1%}" in shown
    assert "try this" in shown


def shown_uptake(folder: Path, scenario: Scenario, until: int | None = None) -> str:
    text = io.StringIO()
    with open_writer(str(folder / "store.db")) as writer:
        write_run(writer, scenario, until=until)
    with open_reader(str(folder / "store.db")) as reader:
        print_uptake(Console(file=text, width=120), reader, reader.run("latest"))
    return text.getvalue()


def test_uptake_is_shown_with_both_shares_and_an_interval(tmp_path: Path) -> None:
    shown = shown_uptake(tmp_path, Scenario(3, 12, 8, n=3, held_out_share=0.4))
    with open_reader(str(tmp_path / "store.db")) as reader:
        total = reader.uptake("latest", 1, 12)[1]
    k, n, held_k, held_n = (
        total[name] for name in ("grafted_solved", "grafted_seen", "held_out_solved", "held_out_seen")
    )
    cells = uptake_cells(total)
    assert cells[0] == f"{k / n:.1%} ({k} of {n})"
    change = 100 * (k / n - held_k / held_n)
    half = 196 * uptake(k, n, held_k, held_n).standard_error
    assert cells[2] == f"{change:+.1f} [{change - half:+.1f}, {change + half:+.1f}]"
    assert all(cell in shown for cell in cells)


def test_uptake_says_why_it_is_not_known(tmp_path: Path) -> None:
    assert shown_uptake(tmp_path / "grpo", Scenario(2, 2, 4, n=2, method="grpo")) == ""
    assert "no group was held out" in shown_uptake(tmp_path / "none", Scenario(3, 4, 8, n=3, held_out_share=0.0))
    assert "met such a prompt again" in shown_uptake(tmp_path / "early", Scenario(3, 9, 16, n=3), until=1)


def test_a_rate_has_its_counts_and_interval_and_nothing_over_nothing_is_a_dash() -> None:
    low, high = wilson_interval(37, 128)
    assert rate(37, 128) == f"28.9%\n37 of 128\n[{100 * low:.1f}, {100 * high:.1f}]"
    assert rate(0, 0) == ABSENT
