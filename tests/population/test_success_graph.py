"""The success graph counts what happened, is bounded in size, and survives a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graft.complementarity import complementarity
from graft.groups import Group, Response
from population.success_graph import StepCounts, SuccessGraph

MEMBERS = ("a", "b", "c")


def group(member: str, prompt: int, rewards: list[int], ungraded: int = 0) -> Group:
    response = Response(np.array([1], np.int32), "x", np.array([-0.5], np.float32), True, 0)
    graded = np.array([i >= ungraded for i in range(len(rewards))])
    return Group(member, prompt, (response,) * len(rewards), np.array(rewards, np.float64), graded)


def keyed(step: dict[str, list[Group]]) -> dict[str, dict[int, Group]]:
    return {member: {g.prompt: g for g in own} for member, own in step.items()}


def random_steps(seed: int, steps: int = 6) -> list[dict[str, list[Group]]]:
    rng = np.random.default_rng(seed)
    batches = [rng.choice(20, 8, replace=False) for _ in range(steps)]
    return [
        {m: [group(m, int(p) * 10, rng.integers(0, 2, 4).tolist()) for p in batch] for m in MEMBERS}
        for batch in batches
    ]


def filled(steps: list[dict[str, list[Group]]]) -> SuccessGraph:
    graph = SuccessGraph(MEMBERS, range(0, 200, 10))
    for number, step in enumerate(steps, 1):
        graph.record(number, keyed(step))
    return graph


def test_counts_equal_a_recount_of_all_groups() -> None:
    steps = random_steps(0)
    graph = filled(steps)
    for column, member in enumerate(MEMBERS):
        for row, prompt in enumerate(range(0, 200, 10)):
            own = [g for step in steps for g in step[member] if g.prompt == prompt]
            assert graph.attempts[row, column] == sum(g.n for g in own)
            assert graph.successes[row, column] == sum(g.successes for g in own)
            assert np.isnan(graph.rate[row, column]) == (not own)


def test_the_step_counts_are_those_of_the_step_alone() -> None:
    steps = random_steps(1, steps=2)
    counts = StepCounts.of(keyed(steps[1]))
    assert counts.successes["b"] == {g.prompt: g.successes for g in steps[1]["b"]}
    assert counts.attempts["c"] == {g.prompt: 4 for g in steps[1]["c"]}


def test_a_group_with_a_verifier_fault_counts_for_nobody() -> None:
    graph = SuccessGraph(MEMBERS, [1])
    groups = keyed({"a": [group("a", 1, [0, 0], ungraded=1)], "b": [group("b", 1, [0, 1])], "c": []})
    counts = StepCounts.of(groups)
    graph.record(1, groups)
    assert counts.attempts == {"a": {}, "b": {1: 2}, "c": {}}
    assert graph.attempts.tolist() == [[0, 2, 0]]


def test_a_member_that_is_not_of_the_step_has_nothing_recorded() -> None:
    graph = SuccessGraph(MEMBERS, [1])
    groups = keyed({"a": [group("a", 1, [0, 1])], "c": [group("c", 1, [1, 1])]})
    graph.record(1, groups)
    assert set(StepCounts.of(groups).attempts) == {"a", "c"}
    assert graph.attempts.tolist() == [[2, 0, 2]]
    assert graph.last_step.tolist() == [[1, 0, 1]]


def test_counts_saturate_instead_of_wrapping() -> None:
    graph = SuccessGraph(("a",), [1])
    graph.attempts[:] = 65534
    graph.record(1, keyed({"a": [group("a", 1, [1, 1, 1])]}))
    assert graph.attempts[0, 0] == 65535


def test_complementarity_over_all_attempts_equals_the_formula() -> None:
    graph = filled(random_steps(2))
    expected, support = complementarity(graph.successes.T, graph.attempts.T)
    np.testing.assert_allclose(graph.complementarity()[0], expected)
    np.testing.assert_array_equal(graph.complementarity()[1], support)


def test_the_views_hold_the_arrays_numbers() -> None:
    graph = filled(random_steps(3))
    view = graph.prompt_view([0, 50])
    assert set(view.nodes) == {*MEMBERS, 0, 50}
    for prompt, member, edge in view.edges(data=True):
        prompt, member = (prompt, member) if isinstance(prompt, int) else (member, prompt)
        assert edge["successes"] == graph.successes[prompt // 10, MEMBERS.index(member)]
    share, support = graph.complementarity()
    for source, receiver, edge in graph.member_view().edges(data=True):
        i, j = MEMBERS.index(receiver), MEMBERS.index(source)
        assert (edge["complementarity"], edge["support"]) == (share[i, j], support[i, j])


def test_save_and_load_give_the_same_graph_and_another_data_set_is_refused(tmp_path: Path) -> None:
    graph = filled(random_steps(4))
    graph.save(tmp_path / "graph.npz")
    restored = SuccessGraph(MEMBERS, range(0, 200, 10))
    restored.load(tmp_path / "graph.npz")
    for name in ("attempts", "successes", "rate", "last_step"):
        np.testing.assert_array_equal(getattr(restored, name), getattr(graph, name))
    with pytest.raises(ValueError, match="another data set"):
        SuccessGraph(MEMBERS, [1, 2]).load(tmp_path / "graph.npz")


def test_an_unknown_prompt_is_an_error() -> None:
    with pytest.raises(KeyError, match="prompt 7 is not in the run's data set"):
        SuccessGraph(("a",), [1, 2]).record(1, keyed({"a": [group("a", 7, [1])]}))
