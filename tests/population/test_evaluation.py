"""Evaluation: which random numbers it draws, how answers are counted as votes, and what its tables say."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from population.config import RunConfig, parse
from population.errors import DataError, MemberError
from population.evaluation import (
    MANIFEST,
    Benchmark,
    evaluate,
    load_benchmarks,
    load_exported,
    read_manifest,
    wrong_votes,
)
from population.evaluation_report import print_evaluation, scores_of, selection_notes
from server.rewards import RewardService
from server.rewards.verdicts import Verdict, VerdictCode
from server.rollouts.engine import SamplingParams, TokenPrompt
from server.store.records import EvaluationRecord
from server.store.views import BestCheckpoint

RIGHT, WRONG = VerdictCode.RIGHT, VerdictCode.WRONG


def config(*benchmarks: dict[str, Any], **evaluation: Any) -> RunConfig:
    return parse(
        {
            "name": "evaluated", "steps": 1, "seed": 7, "method": "grpo",
            "members": [{"name": "a", "model": "demo:qwen3"}, {"name": "b", "model": "demo:llama"}],
            "data": {"source": "demo:train", "prompts_per_step": 32},
            "evaluation": {"benchmarks": list(benchmarks), **evaluation},
        }
    )  # fmt: skip


class Engine:
    """Answers every prompt with its key and notes how it was asked."""

    def __init__(self) -> None:
        self.asked: list[SamplingParams] = []

    def sample(self, prompts: Sequence[TokenPrompt], params: SamplingParams) -> Any:
        self.asked.append(params)
        return [[SimpleNamespace(text="no answer")] * params.n for _ in prompts]


def asked(steps: dict[str, int], repeat: int) -> tuple[dict[str, list[SamplingParams]], list[EvaluationRecord]]:
    held_out = {"name": "x", "source": "demo:heldout", "limit": 3, "responses_per_prompt": 2, "role": "validation"}
    settings = config(held_out, {**held_out, "name": "y", "skip": 3, "role": "test"})
    engines = {name: Engine() for name in ("a", "b")}

    def draw(name: str, step: int, prompts: Sequence[TokenPrompt], params: SamplingParams) -> Any:
        assert step == steps[name]
        return engines[name].sample(prompts, params)

    with RewardService() as rewards:
        benchmarks = load_benchmarks(settings, rewards)
        ids = {p.key: (1,) for benchmark in benchmarks for p in benchmark.problems}
        records = evaluate(steps, draw, {"a": ids, "b": ids}, benchmarks, rewards, settings, repeat=repeat)
    return {name: engine.asked for name, engine in engines.items()}, records


def test_random_numbers_are_the_same_at_every_step_and_others_in_every_repeat() -> None:
    first, records = asked({"a": 5, "b": 5}, 0)
    later, _ = asked({"a": 90, "b": 35}, 0)
    again, repeated = asked({"a": 90, "b": 35}, 1)
    assert first == later
    streams = {(p.seed, p.step, p.member, p.purpose) for made in (first, again) for own in made.values() for p in own}
    # Two members, two benchmarks, two passes: none shares its samples with another.
    assert len(streams) == 8
    assert {(r.member, r.benchmark, r.step, r.repeat, r.role) for r in records} == {
        (m, b, 5, 0, role) for m in "ab" for b, role in (("x", "validation"), ("y", "test"))
    }
    assert {(r.member, r.step, r.repeat) for r in repeated} == {("a", 90, 1), ("b", 35, 1)}
    assert all(p.temperature == 0.6 and p.top_p == 0.95 for own in first.values() for p in own)


def test_only_the_members_with_a_step_are_measured() -> None:
    made, records = asked({"b": 3}, 2)
    assert made["a"] == []
    assert {r.member for r in records} == {"b"}


def verdicts(*parts: tuple[VerdictCode, str | None]) -> list[Verdict]:
    return [Verdict(code, answer) for code, answer in parts]


@pytest.mark.parametrize(
    ("given", "votes"),
    [
        ([(RIGHT, "1"), (RIGHT, "1.0"), (WRONG, "2")], (1,)),
        # One answer in several spellings is one answer; more frequent ones stand first.
        ([(WRONG, "3"), (WRONG, r"\frac{1}{2}"), (WRONG, "0.5"), (WRONG, "1/2")], (3, 1)),
        # No answer is no vote; an answer that nobody could grade is one.
        ([(VerdictCode.NO_ANSWER, None), (VerdictCode.TIMEOUT, "x^9"), (WRONG, "x^9")], (2,)),
        ([(RIGHT, "4")], ()),
        # A reward that names no answers: nothing to vote on as soon as one is right.
        ([(RIGHT, None), (WRONG, None)], None),
        ([(WRONG, None), (WRONG, None)], ()),
    ],
)
def test_wrong_answers_are_counted_by_what_they_say(
    given: list[tuple[VerdictCode, str | None]], votes: tuple[int, ...] | None
) -> None:
    assert wrong_votes(verdicts(*given)) == votes


def test_benchmarks_can_part_one_source_and_must_not_share_problems() -> None:
    whole = {"name": "tests", "source": "demo:heldout"}
    select = {"name": "select", "source": "demo:heldout", "role": "validation", "limit": 24}
    with RewardService() as rewards:

        def loaded(*benchmarks: dict[str, Any]) -> list[Benchmark]:
            return load_benchmarks(config(*benchmarks), rewards)

        first, rest = loaded(select, {**whole, "skip": 24})
        (all_of_it,) = loaded(whole)
        assert first.problems + rest.problems == all_of_it.problems
        with pytest.raises(DataError, match=r"'select' .* shares 24 problems with 'tests' .*; part them with skip"):
            loaded(select, whole)
        with pytest.raises(DataError, match="shares 4 problems"):
            loaded(select, {**whole, "skip": 20})
        with pytest.raises(DataError, match=r"'tests': skip = 10000 leaves none of the \d+ problems"):
            loaded({**whole, "skip": 10_000})
        # Two test sets may overlap: neither selects.
        assert len(loaded(whole, {**whole, "name": "part", "limit": 5})) == 2


def record(member: str, benchmark: str, right: int, repeat: int, role: str = "test") -> EvaluationRecord:
    problems, votes = ((1, right, 4), (2, 0, 4)), {1: (4 - right,) if right < 4 else (), 2: (2, 1)}
    return EvaluationRecord(member, benchmark, 9, problems, 0.6, 0, cast(Any, role), repeat, votes)


RECORDS = [
    record(member, benchmark, right, repeat, "validation" if benchmark == "select" else "test")
    for repeat, right in ((1, 3), (2, 4))
    for member in ("a", "b")
    for benchmark in ("select", "x", "y")
]
SELECTED = {"step": 9, "score": 0.5, "rule": "mean", "selected_on": "validation", "benchmarks": ["select"]}


def test_the_table_has_every_benchmark_and_the_mean_of_the_tests() -> None:
    text = io.StringIO()
    console = Console(file=text, width=120)
    print_evaluation(console, RECORDS, {"a": SELECTED, "b": None}, (4, 8), as_json=False)
    shown = text.getvalue()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    # Two problems, the second always wrong: 3/4 and 4/4 of the first.
    x = scores_of(RECORDS, (4,))[1]
    interval = f"43.8 [{100 * x.pass1.low:.1f}, {100 * x.pass1.high:.1f}]"
    assert rows[1] == ["a", "9", "x", "2 x 4 x 2", interval, "8.84", "50.0", "50.0"]
    assert [row[2] for row in rows] == ["select (validation)", "x", "y", "mean of 2"] * 2
    assert [row[3] for row in rows][3] == "4 x 4 x 2"
    assert [row[1] for row in rows] == ["9"] * 4 + ["–"] * 4
    assert "held-out problems (role: validation): select (a step 9)" in shown
    assert "not known (b)" in shown
    assert "pass@8" not in shown  # of four responses nothing can be said
    assert "optimistic" not in shown


def test_json_has_every_number_and_how_the_checkpoints_were_selected(capsys: pytest.CaptureFixture[str]) -> None:
    on_tests = {**SELECTED, "selected_on": "test", "benchmarks": ["x", "y"]}
    print_evaluation(Console(), RECORDS, {"a": on_tests, "b": None}, (4,), as_json=True)
    found = json.loads(capsys.readouterr().out)
    a = found["members"]["a"]
    assert a["checkpoint"] == {"step": 9, "rule": "mean", "selected_on": "test", "benchmarks": ["x", "y"], "score": 0.5}
    assert a["benchmarks"]["x"]["pass@1"]["repeats"] == [3 / 8, 4 / 8]
    assert a["benchmarks"]["x"]["pass@1"]["mean"] == pytest.approx(7 / 16)
    assert a["benchmarks"]["select"]["role"] == "validation"
    assert a["benchmarks"]["x"]["maj@k"] == {"4": 0.5}
    assert a["mean"]["problems"] == 4
    assert found["members"]["b"]["checkpoint"] is None
    assert any(note.startswith("warning: selected on the test sets") for note in found["notes"])


def test_selection_is_said_by_rule_and_benchmarks() -> None:
    def chosen(rule: str, on: str, *names: str) -> list[str]:
        return selection_notes([BestCheckpoint("a", 9, 0.5, rule, cast(Any, on), names)])

    assert chosen("last", "test", "x") == ["Checkpoints: the last evaluated of each member, not selected (a step 9)."]
    (held_out,) = chosen("mean", "validation", "x")
    assert "held-out problems" in held_out
    on_tests, warning = chosen("mean", "test", "x", "y")
    assert "on the test sets themselves: x, y (a step 9)" in on_tests
    assert "as in the paper" in warning
    assert selection_notes([]) == []


def test_a_recorded_member_is_not_looked_for_among_the_exported(tmp_path: Path) -> None:
    source = {"store": "sqlite:///other.db", "run": "r", "member": "m"}
    trained = config({"name": "x", "source": "demo:heldout"}).model_dump(mode="json")
    settings = parse(
        {
            **trained, "method": "graft", "exchange": {"balance": "none"},
            "members": [{"name": "z", "source": source}, trained["members"][0]],
        }
    )  # fmt: skip
    with pytest.raises(MemberError, match="member 'a'"), load_exported(settings, tmp_path):
        pass


def test_a_broken_manifest_is_said_in_one_line(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    for text in ("{", "[]"):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(MemberError, match=f"{MANIFEST}: (is not valid JSON|holds no object)"):
            read_manifest(tmp_path)
