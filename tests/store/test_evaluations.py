"""Repeats, roles and votes are stored beside the evaluations in the course of training; the best checkpoint is read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from server.store.best import choose, selecting
from server.store.reader import open_reader
from server.store.records import EvaluationRecord, StoreError
from server.store.scores import combined, mean_interval, share_interval
from server.store.writer import Writer
from tests.store.backends import raw
from tests.store.synthetic import Scenario

SCENARIO = Scenario(members=2, steps=6, prompts=2, n=2)
A, B = SCENARIO.names
BENCHMARKS = [{"name": "held", "role": "validation"}, {"name": "one", "role": "test"}, {"name": "two", "role": "test"}]


def record(member: str, benchmark: str, step: int, right: int, repeat: int = 0) -> EvaluationRecord:
    role = "validation" if benchmark == "held" else "test"
    votes = {1: (4 - right,) if right < 4 else ()}
    return EvaluationRecord(member, benchmark, step, ((1, right, 4),), 0.6, 0, role, repeat, votes)


def begin(writer: Writer, best: dict[str, str] | None, benchmarks: object = BENCHMARKS) -> None:
    evaluation = {"benchmarks": benchmarks} | ({} if best is None else {"best": best})
    writer.start_run(replace(SCENARIO.run(), config={"evaluation": evaluation}))


@pytest.mark.parametrize(
    ("best", "role", "step_of_a"),
    [
        (None, "validation", 2),
        ({"rule": "mean", "split": "auto"}, "validation", 2),
        ({"rule": "mean", "split": "test"}, "test", 1),
        ({"rule": "last", "split": "auto"}, "validation", 3),
    ],
)
def test_the_best_checkpoint_is_read_by_the_runs_own_rule(
    writer: Writer, url: str, best: dict[str, str] | None, role: str, step_of_a: int
) -> None:
    begin(writer, best)
    right = {0: (4, 4, 4), 1: (1, 3, 3), 2: (3, 3, 2), 3: (3, 2, 2)}
    for step, counts in right.items():
        if step:
            writer.commit(SCENARIO.step(step))
        for benchmark, k in zip(("held", "one", "two"), counts, strict=True):
            writer.record_evaluation(record(A, benchmark, step, k))
    with open_reader(url) as reader:
        (found,) = reader.best("latest")
        # The untrained step 0 is no candidate, of equals the earliest is taken; B was never measured.
        assert (found.member, found.step, found.selected_on) == (A, step_of_a, role)
        chosen = [k for one, k in zip(BENCHMARKS, right[step_of_a], strict=True) if one["role"] == role]
        assert found.score == pytest.approx(sum(chosen) / len(chosen) / 4)
        assert {e.role for e in reader.evaluations("latest") if e.benchmark != "held"} == {"test"}


def test_repeats_leave_the_course_of_training_as_it_was(writer: Writer, url: str) -> None:
    begin(writer, None, [{"name": "one"}])
    writer.commit(SCENARIO.step(1))
    course = [record(A, "one", 1, 3), record(B, "one", 1, 2)]
    repeats = [record(A, "one", 1, k, repeat) for repeat, k in ((1, 1), (2, 4))]
    for one in (*course, *repeats, repeats[0]):
        writer.record_evaluation(one)
    with open_reader(url) as reader:
        assert [e.mean for e in reader.evaluations("latest")] == [0.75, 0.5]
        assert [part.tolist() for part in reader.evaluation_problems("latest", "one", 1, A)] == [[1], [3], [4]]
        assert reader.evaluation_records("latest", 1) == course
        assert reader.repeats("latest") == repeats


def test_a_resumed_run_has_only_the_repeats_of_steps_it_kept(writer: Writer, url: str) -> None:
    begin(writer, {"rule": "last"}, [{"name": "one"}])
    for step in (1, 2):
        writer.commit(SCENARIO.step(step))
        for repeat in (0, 1):
            writer.record_evaluation(record(A, "one", step, step, repeat))
    writer.finish("finished")
    writer.resume_run(SCENARIO.uid, 1)
    with open_reader(url) as reader:
        assert reader.repeats("latest") == [record(A, "one", 1, 1, 1)]


def test_votes_that_are_not_known_stay_unknown(writer: Writer, url: str) -> None:
    begin(writer, None, [{"name": "one"}])
    rows = ((1, 1, 4), (2, 0, 4), (3, 4, 4))
    mixed = EvaluationRecord(A, "one", 0, rows, 0.6, 0, votes={1: (2, 1), 3: ()})
    writer.record_evaluation(mixed)
    with open_reader(url) as reader:
        assert reader.evaluation_records("latest", 0) == [mixed]
    with raw(url) as database:
        stored = database.rows("SELECT votes FROM evaluation_problems ORDER BY prompt")
    assert [row["votes"] for row in stored] == ["2 1", None, ""]
    for wrong in ({1: (4,)}, {1: (0, 1)}):
        with pytest.raises(StoreError, match="wrong answers of 4 responses"):
            writer.record_evaluation(replace(mixed, votes=wrong))
    with pytest.raises(StoreError, match="repeat -1 is less than 0"):
        writer.record_evaluation(replace(mixed, repeat=-1))


def test_equal_means_are_a_tie_however_they_were_summed() -> None:
    first, second = {"x": 0.1, "y": 0.2 + 0.3}, {"x": 0.3, "y": 0.1 + 0.2}
    assert choose({2: first, 5: second}, ["x", "y"], "mean") == 2
    assert choose({5: first, 2: second}, ["x", "y"], "mean") == 2
    # A step that lacks a benchmark cannot be compared.
    assert choose({1: {"x": 1.0}, 2: first}, ["x", "y"], "mean") == 2
    assert choose({1: first}, [], "mean") is None
    assert choose({0: first}, ["x"], "last") is None


def test_the_test_sets_select_only_where_nothing_is_held_out() -> None:
    assert selecting({"x": "test", "y": "test"}, "auto") == ("test", ("x", "y"))
    assert selecting({"x": "test", "y": "validation"}, "auto") == ("validation", ("y",))
    assert selecting({"x": "test", "y": "validation"}, "test") == ("test", ("x",))


def test_joint_scores_average_members_by_problem_and_have_their_interval_over_problems(
    writer: Writer, url: str
) -> None:
    begin(writer, None)
    right = {("one", A): (4, 0, 2, 1), ("one", B): (3, 1, 2, 0), ("two", A): (1, 4), ("two", B): (1, 2)}
    for step in (0, 1, 2):
        if step:
            writer.commit(SCENARIO.step(step))
        for (benchmark, member), counts in right.items():
            # At step 2 one member was measured on one of them alone.
            if step < 2 or (benchmark, member) == ("one", A):
                rows = tuple((key, min(4, k + step), 4) for key, k in enumerate(counts))
                writer.record_evaluation(EvaluationRecord(member, benchmark, step, rows, 0.6, 0))
    with open_reader(url) as reader:
        found = reader.joint_scores("latest", (A, B), ("one", "two"), (0, 1, 2))
        alone = reader.joint_scores("latest", (A,), ("one",), (0, 2))
    assert sorted(found) == [0, 1]
    shares = [np.add(right[name, A], right[name, B]) / 8 for name in ("one", "two")]
    assert found[0] == pytest.approx(combined([share_interval(one, 8 * len(one)) for one in shares]))
    assert alone[0] == pytest.approx(mean_interval(right["one", A], [4] * 4))
    assert sorted(alone) == [0, 2]
