"""A recorded run is routed and gated again: exactly as it was, or as other settings would have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from graft.compatibility import admission_weight, normalised_compatibility
from population.cli import app
from population.errors import ConfigError, ReplayError
from population.replay import ReplayedStep, recorded_edge_rates, replay
from population.replay_command import Question, ask
from population.replay_report import Side
from population.replay_settings import settings_of
from server.store.evaluations import mean_interval
from server.store.reader import open_reader
from tests.population.recorded_runs import Recorder, configuration

EXACT: list[tuple[str, dict[str, Any]]] = [
    ("graft", {"normaliser": "own"}),
    ("graft", {"normaliser": "bytes", "balance": "pairwise", "holdout": 0.0, "edge_rate_decay": 0.5}),
    ("graft", {"normaliser": "reference", "balance": "receiver", "ties": False}),
    ("graft", {"balance": "none", "max_source_share": 0.5, "max_peer_share": 0.2, "min_successes": 2}),
    ("graft-random-admission", {}),
    ("graft-random-prompts", {}),
    ("sgt", {"balance": "none"}),
    ("hacpo", {"balance": "none"}),
    ("grpo", {}),
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    """Three members, 6 steps of 20 prompts, n = 4, circulation, own tokens, floor 0.8."""
    return Recorder(configuration(), tmp_path_factory.mktemp("replay")).write()


def replayed(
    run: Recorder, *overrides: str, without: tuple[str, ...] = (), first: int = 1, last: int = 6
) -> list[ReplayedStep]:
    with open_reader(run.url) as reader:
        info = reader.run(run.uid)
        return list(replay(reader, info, settings_of(info, overrides, without), first, last))


@pytest.mark.parametrize(("method", "exchange"), EXACT)
def test_the_same_settings_reproduce_every_transfer_value_s_and_weight(
    tmp_path: Path, method: str, exchange: dict[str, Any]
) -> None:
    run = Recorder(configuration(method, **exchange), tmp_path).write()
    steps = replayed(run)
    for step in steps:
        assert {one.place: one for one in step.now} == {one.place: one for one in step.then}
        assert step.exact
    moved = [one for step in steps for one in step.then]
    assert (len(moved) > 20) is (method != "grpo")
    _, summary = ask(run.url, Question("run"))
    assert summary.reproduced
    assert summary.exact_steps == summary.steps == 6


def test_a_window_starts_from_the_recorded_edge_rates(recorded: Recorder) -> None:
    for step in replayed(recorded, first=4):
        assert {one.place: one for one in step.now} == {one.place: one for one in step.then}
    with open_reader(recorded.url) as reader:
        info = reader.run("run")
        assert recorded_edge_rates(reader, info, 0) == {}
        for step, rates in enumerate(recorded.rates, 1):
            assert recorded_edge_rates(reader, info, step) == rates


@pytest.mark.parametrize("normaliser", ["own", "bytes", "reference"])
def test_what_moved_is_gated_again_under_any_floor_and_normaliser(recorded: Recorder, normaliser: str) -> None:
    steps = replayed(recorded, f"exchange.normaliser={normaliser}", "exchange.floor=0.5")
    said = [r for group in recorded.steps[0].groups for r in group.responses]
    scale = sum(len(r.text.encode()) for r in said) / sum(len(r.token_ids) for r in said)
    checked = 0
    for step in steps:
        for one in step.now:
            for i, outcome in enumerate(one.responses):
                found = recorded.logprobs.get((step.step, one.receiver, one.prompt, one.source, i))
                if outcome is None or found is None:
                    continue
                own, source, text = found
                if normaliser != "own" and not text:
                    assert (outcome.s, outcome.weight, outcome.refusal) == (None, 0.0, "empty")
                    continue
                s = normalised_compatibility(
                    own, source, normaliser=normaliser, text_bytes=len(text.encode()), bytes_per_token=scale
                )
                assert (outcome.s, outcome.weight) == (s, admission_weight(s, 0.5))
                checked += 1
    assert checked > 100


def test_a_transfer_that_was_not_recorded_has_no_outcome(recorded: Recorder) -> None:
    steps = replayed(recorded, "exchange.balance=none", "exchange.holdout=0")
    unknown = 0
    for step in steps:
        carried = {one.place for one in step.then if not one.held_out}
        for one in step.now:
            assert len(one.responses) == 4
            if one.place in carried:
                assert None not in one.responses
            else:
                assert set(one.responses) == {None}
                unknown += 4
    assert unknown > 20
    record, summary = ask(recorded.url, Question("run", ("exchange.balance=none", "exchange.holdout=0")))
    total = record.result["total"]["now"]
    assert total["unknown"] == unknown
    assert total["admitted"]["denominator"] == sum(len(one.responses) for s in steps for one in s.now) - unknown
    low, high = total["bounds"]
    whole = total["admitted"]["denominator"] + unknown
    assert low == pytest.approx(total["admitted"]["numerator"] / whole)
    assert high == pytest.approx((total["admitted"]["numerator"] + unknown) / whole)
    assert not summary.reproduced
    assert summary.exact_steps == 1 + next(i for i, s in enumerate(steps) if any(None in m.responses for m in s.now))


def test_a_response_without_text_is_unknown_where_the_record_never_scored_it(tmp_path: Path) -> None:
    run = Recorder(configuration(normaliser="bytes"), tmp_path).write()
    empty = [
        outcome
        for step in replayed(run, "exchange.normaliser=own")
        for then, now in (
            (t, n) for t in step.then for n in step.now if t.place == n.place and t.held_out is n.held_out
        )
        for outcome, before in zip(now.responses, then.responses, strict=True)
        if before is not None and before.refusal == "empty"
    ]
    assert empty
    assert set(empty) == {None}


def test_members_left_out_neither_give_nor_receive(recorded: Recorder) -> None:
    steps = replayed(recorded, without=("b",))
    assert {name for s in steps for one in s.now for name in (one.receiver, one.source)} == {"a", "c"}
    assert {name for s in steps for one in s.then for name in (one.receiver, one.source)} == {"a", "b", "c"}
    for step in steps:
        given = [(one.source, one.receiver) for one in step.now if not one.tie]
        assert given.count(("a", "c")) == given.count(("c", "a"))


def test_a_method_brings_its_own_settings(recorded: Recorder) -> None:
    with open_reader(recorded.url) as reader:
        run = reader.run("run")
    assert settings_of(run, ["method=graft-floor-0.7"], ()).wanted.exchange.floor == 0.7
    wanted = settings_of(run, ["method=sgt"], ()).wanted
    assert (wanted.method, wanted.exchange.balance) == ("sgt", "none")
    with pytest.raises((ReplayError, ConfigError), match=r"exchange\.floor"):
        settings_of(run, ["method=graft-floor-0.7", "exchange.floor=0.9"], ())


def test_the_interval_is_over_transfers_and_only_where_something_is_unknown() -> None:
    side = Side(selected=3, gated=[(2, 4), (4, 4)], unknown=4)
    assert (side.admitted, side.known, side.bounds) == (6, 8, (0.5, pytest.approx(10 / 12)))
    assert side.interval == mean_interval([2, 4], [4, 4])[1:]
    assert Side(selected=2, gated=[(2, 4), (4, 4)]).interval is None
    assert Side(selected=1, unknown=4).interval is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--set", "update.learning_rate=1"], "a replay routes and gates, it does not train"),
        (["run", "--set", "exchange.flor=0.7"], "did you mean exchange.floor?"),
        (["run", "--set", "exchange.source_logprobs=trainer"], "of one kind"),
        (["run", "--set", "exchange.balance=fair"], "exchange.balance"),
        (["run", "--without", "z"], "run run has no such member; it has a, b, c"),
        (["run", "--without", "a", "--without", "b"], "leaves 1 of 3 members"),
        (["run", "--last", "9"], "steps 1 to 9 are not among its recorded steps 1 to 6"),
        (["other"], "no run 'other'; the newest are: run"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_one_line(recorded: Recorder, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["replay", *arguments, "--store", recorded.url])
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_command_prints_and_stores_the_same_numbers(recorded: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "180")
    command = ["replay", "latest", "--store", recorded.url, "--set", "exchange.floor=0.6"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    document = json.loads(CliRunner().invoke(app, [*command, "--json", "--print-only"]).stdout)
    with open_reader(recorded.url) as reader:
        kept = reader.replays("run")[0]
        assert len(reader.replays("run")) == 1
    assert json.loads(json.dumps(kept.record.result)) == document["result"]
    assert kept.record.settings["set"] == ["exchange.floor=0.6"]
    assert (kept.record.first_step, kept.record.last_step, document["id"]) == (1, 6, None)
    total = document["result"]["total"]
    assert f"{total['now']['admitted']['numerator']:,}/{total['now']['admitted']['denominator']:,}" in shown.stdout
    edges = document["result"]["edges"]
    assert sum(edge["now"]["selected"] for edge in edges) == total["now"]["selected"]
    counted = [o for s in recorded.steps for t in s.transfers for o in t.responses]
    assert total["then"]["admitted"] == {
        "numerator": sum(o.refusal is None for o in counted),
        "denominator": len(counted),
    }
    assert total["then"]["s"]["numerator"] == pytest.approx(sum(o.s for o in counted if o.s is not None))
    assert np.isfinite(total["now"]["weight"]["numerator"])
