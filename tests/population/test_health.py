"""Health of a population: measures worked out by hand, and warnings that come once, where they should, also after a
resume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from graft.complementarity import effective_sources, failure_correlation, mixing_modulus, phi_coefficient
from graft.groups import Group, Response
from graft.selection import Transfer
from population import health
from population.exchange import Graft, GraftedResponse
from population.health import PERIOD, look, measures
from population.rollouts import Rollout, StepRollouts
from population.updates import Mismatch, UpdateReport
from server.store.reader import Reader, open_reader
from server.store.records import (
    EventRecord,
    GraftedRecord,
    GroupRecord,
    MemberRecord,
    MetricRecord,
    PromptRecord,
    ResponseRecord,
    RunRecord,
    StepRecord,
    TransferRecord,
)
from server.store.writer import Writer, open_writer

MEMBERS = ("a", "b", "c")
PROMPTS = 12
RUN = RunRecord("run", "run", "graft", tuple(MemberRecord(m, m, m, m, 1) for m in MEMBERS), 100, 0)
Solved = np.ndarray
Scenario = Callable[[int], tuple[Solved, Sequence[TransferRecord]]]


def graded(member: str, prompt: int, rewards: Sequence[float], graded: bool = True) -> Rollout:
    response = Response(np.zeros(2, np.int32), "x", np.full(2, -0.5, np.float32), True, 0)
    marks = np.full(len(rewards), graded)
    return Rollout(Group(member, prompt, (response,) * len(rewards), np.array(rewards), marks), (), ())


def arrival(s: float, tokens: int, own: float, theirs: float) -> GraftedResponse:
    """A response with these mean log-probabilities: its receiver's over `tokens`, its source's over 4."""
    logprobs = np.full(tokens, own, np.float64)
    return GraftedResponse(np.zeros(tokens, np.int32), logprobs, s, 1.0, 0.0, None, 4 * theirs, 4)


def test_measures_of_a_step_are_those_worked_out_by_hand() -> None:
    rollouts = StepRollouts(
        (),
        {
            "a": {1: graded("a", 1, [0, 0]), 2: graded("a", 2, [1, 0]), 3: graded("a", 3, [1, 1])},
            "b": {1: graded("b", 1, [0, 1]), 2: graded("b", 2, [0, 0]), 3: graded("b", 3, [0, 1], graded=False)},
            "c": {1: graded("c", 1, [0, 0]), 2: graded("c", 2, [0, 0]), 3: graded("c", 3, [1, 0])},
        },
        {},
        {},
    )
    grafts = {
        "a": [Graft(Transfer("a", 1, "b", 0.5), (arrival(0.9, 2, -0.3, -0.2), arrival(0.8, 5, -0.4, -0.1)))],
        "b": [Graft(Transfer("b", 2, "a", 0.5), (arrival(0.9, 2, -0.6, -0.5),))],
        "c": [],
    }
    recent = np.zeros((3, 3), np.int64)
    recent[2, 0] = 6
    found = {(m.member, m.name): (m.numerator, m.denominator) for m in measures(rollouts, grafts, recent)}
    carried = recent.copy()
    carried[0, 1] = carried[1, 0] = 1
    # b could not be graded on prompt 3, so nobody is compared on it.
    expected = {
        (None, "union_solved"): (2, 2), ("a", "solved"): (1, 2), ("b", "solved"): (1, 2), ("c", "solved"): (0, 2),
        (None, "effective_sources"): (effective_sources(carried), 1), (None, "mixing_modulus"): (1.0, 1),
        ("a", "receiver_logprob/b"): (-0.7, 2), ("a", "source_logprob/b"): (-0.3, 2),
        ("b", "receiver_logprob/a"): (-0.6, 1), ("b", "source_logprob/a"): (-0.5, 1),
    }  # fmt: skip
    assert set(found) == set(expected)
    for key, ratio in expected.items():
        assert found[key] == pytest.approx(ratio), key
    assert mixing_modulus(carried) == pytest.approx(1.0)
    assert effective_sources(carried) == pytest.approx(math.exp(-(7 / 8 * math.log(7 / 8) + 1 / 8 * math.log(1 / 8))))


def test_a_step_without_transfers_says_nothing_about_sources() -> None:
    rollouts = StepRollouts((), {"a": {1: graded("a", 1, [0, 0], graded=False)}}, {}, {})
    assert measures(rollouts, {"a": []}, np.zeros((1, 1), np.int64)) == []


def record(step: int, solved: Solved, transfers: Sequence[TransferRecord]) -> StepRecord:
    """A step in which member i solved prompt q in one of two rollouts where solved[i, q]."""
    nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)

    def response(reward: float) -> ResponseRecord:
        return ResponseRecord("", *nothing, reward, 0.0, int(reward), "stop", 0)

    groups = tuple(
        GroupRecord(member, prompt, (response(float(solved[i, prompt])), response(0.0)))
        for i, member in enumerate(MEMBERS)
        for prompt in range(PROMPTS)
    )
    prompts = tuple(PromptRecord(prompt, str(prompt), "", "made up") for prompt in range(PROMPTS))
    metrics = [MetricRecord(None, "union_solved", float(solved.any(axis=0).sum()), PROMPTS)]
    metrics += [MetricRecord(m, "solved", float(own.sum()), PROMPTS) for m, own in zip(MEMBERS, solved, strict=True)]
    return StepRecord(step, prompts, groups, tuple(transfers), tuple(metrics))


def transfer(receiver: str, source: str, prompt: int, admitted: int = 8, held_out: bool = False) -> TransferRecord:
    responses = () if held_out else tuple(grafted(index, index < admitted) for index in range(8))
    return TransferRecord(receiver, source, prompt, 0.5, False, held_out, responses)


def grafted(index: int, admitted: bool) -> GraftedRecord:
    s = 0.9 if admitted else 0.1
    return GraftedRecord(index, s, s if admitted else 0.0, None if admitted else "floor", 1, -1.0, 1, -1.0)


def go_on(writer: Writer, url: str, scenario: Scenario, first: int, last: int) -> None:
    """Commit steps and look after each, as a run does."""
    with open_reader(url) as reader:
        for step in range(first, last + 1):
            writer.commit(record(step, *scenario(step)))
            for event in look(reader, "run", step):
                writer.event(event)


def events(reader: Reader) -> list[tuple[int | None, str | None, str]]:
    return [(event.step, event.member, event.message) for event in reversed(reader.events("run", 1000))]


def watched(folder: Path, scenario: Scenario, steps: int) -> list[tuple[int | None, str | None, str]]:
    url = str(folder / "store.db")
    with open_writer(url) as writer:
        writer.start_run(RUN)
        go_on(writer, url, scenario, 1, steps)
        writer.finish("finished")
    with open_reader(url) as reader:
        return events(reader)


def apart(step: int, chance: float) -> Solved:
    return np.random.default_rng([step, 7]).random((3, PROMPTS)) < chance


def alike(step: int, chance: float) -> Solved:
    """All members solve the same prompts, but for a few."""
    rng = np.random.default_rng([step, 8])
    return (rng.random((1, PROMPTS)) < chance) ^ (rng.random((3, PROMPTS)) < 0.03)


def copies(step: int) -> tuple[Solved, Sequence[TransferRecord]]:
    return (apart(step, 0.6) if step <= PERIOD else alike(step, 0.85)), ()


def test_members_that_become_copies_are_named_once(tmp_path: Path) -> None:
    ((step, member, text),) = watched(tmp_path, copies, 3 * PERIOD)
    assert (step, member) == (2 * PERIOD, None)
    assert text.startswith(f"becoming copies: from steps 1-{PERIOD} to {PERIOD + 1}-{2 * PERIOD} the members'")


def test_members_that_grow_better_each_in_its_own_way_are_not_copies(tmp_path: Path) -> None:
    assert watched(tmp_path, lambda step: (apart(step, 0.5 if step <= PERIOD else 0.65), ()), 2 * PERIOD) == []


def test_one_source_that_gives_everything_is_named_at_its_onset_only(tmp_path: Path) -> None:
    def scenario(step: int) -> tuple[Solved, Sequence[TransferRecord]]:
        balanced = [transfer("a", "b", 0), transfer("b", "a", 1)]
        return apart(step, 0.5), [transfer("b", "a", 1), transfer("c", "a", 2)] if step > PERIOD else balanced

    ((step, member, text),) = watched(tmp_path, scenario, 3 * PERIOD)
    assert (step, member) == (2 * PERIOD, None)
    assert text.startswith(f"one source: a gave {2 * PERIOD} of the {2 * PERIOD} groups")


def test_a_source_that_never_receives_is_no_finding(tmp_path: Path) -> None:
    def scenario(step: int) -> tuple[Solved, Sequence[TransferRecord]]:
        solved = apart(step, 0.5)
        solved[2] = False
        return solved, [transfer("b", "a", 1), transfer("b", "a", 2)]

    assert watched(tmp_path, scenario, PERIOD) == []


def test_an_edge_whose_admission_collapses_is_named_with_its_receiver(tmp_path: Path) -> None:
    def scenario(step: int) -> tuple[Solved, Sequence[TransferRecord]]:
        return apart(step, 0.5), [transfer("a", "b", 0, admitted=7 if step <= PERIOD else 1), transfer("b", "a", 1)]

    ((step, member, text),) = watched(tmp_path, scenario, 2 * PERIOD)
    assert (step, member) == (2 * PERIOD, "a")
    assert f"of b's responses {PERIOD} of {8 * PERIOD} passed the gate" in text
    assert f"{7 * PERIOD} of {8 * PERIOD} before" in text


def harmful(step: int) -> tuple[Solved, Sequence[TransferRecord]]:
    """a solves prompt 0 one step after it was withheld (every second step), and not after it was grafted."""
    solved = apart(step, 0.5)
    solved[0, 0] = step % 2 == 0
    return solved, [transfer("a", "b", 0, held_out=step % 2 == 1), transfer("b", "a", 1), transfer("a", "b", 2)]


def test_a_graft_that_harms_is_named_for_its_edge_and_in_all(tmp_path: Path) -> None:
    found = watched(tmp_path, harmful, PERIOD)
    assert [(step, member) for step, member, _ in found] == [(PERIOD, None), (PERIOD, "a")]
    assert found[1][2].startswith("negative uptake: after groups of b ")


def test_a_few_visits_decide_nothing(tmp_path: Path) -> None:
    def scenario(step: int) -> tuple[Solved, Sequence[TransferRecord]]:
        solved, (first, *others) = harmful(step)
        return solved, [first, *others] if step >= PERIOD - 7 else others

    assert watched(tmp_path, scenario, PERIOD) == []


def test_a_resumed_run_gives_the_warnings_of_an_unbroken_one(tmp_path: Path) -> None:
    def scenario(step: int) -> tuple[Solved, Sequence[TransferRecord]]:
        solved, transfers = harmful(step)
        return np.hstack([solved[:, :1], copies(step)[0][:, 1:]]), transfers

    unbroken = watched(tmp_path / "unbroken", scenario, 3 * PERIOD)
    assert len(unbroken) >= 2
    url = str(tmp_path / "broken.db")
    with open_writer(url) as writer:
        writer.start_run(RUN)
        go_on(writer, url, scenario, 1, 2 * PERIOD + 3)
    for checkpoint, last in ((2 * PERIOD - 5, 2 * PERIOD + 2), (2 * PERIOD, 3 * PERIOD)):
        with open_writer(url) as writer:
            writer.resume_run("run", checkpoint)
            go_on(writer, url, scenario, checkpoint + 1, last)
    with open_reader(url) as reader:
        assert events(reader) == unbroken


def test_the_stored_counts_give_the_failure_correlation_of_the_window(tmp_path: Path) -> None:
    watched(tmp_path, copies, 30)
    with open_reader(str(tmp_path / "store.db")) as reader:
        pairs = reader.pair_counts("run", 11, 30)
    solved = np.hstack([copies(step)[0] for step in range(11, 31)])
    expected = failure_correlation(solved.astype(int), np.full(solved.shape, 2))
    found = phi_coefficient(pairs["both_graded"], pairs["failed_beside"], pairs["failed_together"])
    off = ~np.eye(3, dtype=bool)
    np.testing.assert_allclose(found[off], expected[off], rtol=1e-12)


def test_a_period_is_looked_at_once_and_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_findings", lambda *_: {("x", None, None): "found"})
    with open_writer(str(tmp_path / "store.db")) as writer:
        writer.start_run(RUN)
        with open_reader(str(tmp_path / "store.db")) as reader:
            assert look(reader, "run", PERIOD - 1) == []
            assert look(reader, "run", PERIOD) == [EventRecord("warning", "found", None, PERIOD)]
            assert look(reader, "run", 2 * PERIOD) == []


def test_a_member_whose_engine_and_trainer_disagree_is_named_from_the_alarm_on() -> None:
    def report(gap: float) -> UpdateReport:
        return UpdateReport(1e-6, (), Mismatch(tokens=100, gap=gap, far=7))

    updates = {"a": report(4.9), "b": report(5.0), "c": UpdateReport(1e-6, (), Mismatch())}
    (event,) = health.mismatches(3, updates, 0.05)
    assert (event.member, event.step, event.level) == ("b", 3, "warning")
    assert "0.05 nats over 100 tokens, 7 of them" in event.message
