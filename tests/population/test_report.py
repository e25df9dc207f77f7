"""The closing summary shows the record's numbers, with counts and intervals."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from graft.complementarity import wilson_interval
from population.report import ABSENT, print_summary, rate, summarise
from server.store.reader import open_reader
from tests.store.synthetic import make_store


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


def test_a_rate_has_its_counts_and_interval_and_nothing_over_nothing_is_a_dash() -> None:
    low, high = wilson_interval(37, 128)
    assert rate(37, 128) == f"28.9%\n37 of 128\n[{100 * low:.1f}, {100 * high:.1f}]"
    assert rate(0, 0) == ABSENT
