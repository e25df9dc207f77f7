"""The success graph in the store: bounded look-ups, against a recount of the written records."""

from __future__ import annotations

import numpy as np
import pytest

from server.store.reader import Reader, open_reader
from server.store.writer import open_writer
from tests.store.conftest import SHARED_STEPS
from tests.store.synthetic import Scenario, write_run

SCENARIO = Scenario(steps=SHARED_STEPS, nan_loss_at=5)


def _places(first: int, last: int) -> dict[tuple[int, int], tuple[list[bool], list[bool], list[bool]]]:
    """{(step, prompt): (attempted, all fail, solved)} of the records."""
    found = {}
    for number in range(first, last + 1):
        step = SCENARIO.step(number)
        for prompt in {group.prompt for group in step.groups}:
            own = {group.member: group for group in step.groups if group.prompt == prompt}
            members = [own.get(name) for name in SCENARIO.names]
            found[number, prompt] = (
                [group is not None for group in members],
                [group is not None and not group.successes and not group.errors for group in members],
                [group is not None and group.successes > 0 for group in members],
            )
    return found


def test_the_newest_places_are_those_of_the_records(reader: Reader) -> None:
    places = reader.newest_places("latest", 5, 20)
    expected = _places(5, 20)
    assert places.first_step == 5
    assert places.step.tolist() == sorted(places.step.tolist(), reverse=True)
    found = {
        (step, prompt): (attempted, failed, solved)
        for step, prompt, attempted, failed, solved in zip(
            places.step.tolist(), places.prompt.tolist(), places.attempted.tolist(), places.all_fail.tolist(),
            places.solved.tolist(), strict=True,
        )
    }  # fmt: skip
    assert found == expected


def test_the_newest_groups_are_those_of_the_records(reader: Reader) -> None:
    found = reader.newest_groups("latest", 5, 20)
    assert found.first_step == 5
    assert found.step.tolist() == sorted(found.step.tolist(), reverse=True)
    columns = (found.step, found.member, found.prompt, found.n, found.successes, found.errors)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    written = [(number, group) for number in range(5, 21) for group in SCENARIO.step(number).groups]
    assert sorted(rows) == sorted(
        (number, SCENARIO.names.index(group.member), group.prompt, group.n, group.successes, group.errors)
        for number, group in written
    )
    cut = reader.newest_groups("latest", 5, 20, 16 * len(SCENARIO.names) + 1)
    assert (cut.first_step, len(cut.step)) == (20, 16 * len(SCENARIO.names))


@pytest.mark.parametrize(("limit", "first_step"), [(16, 20), (17, 20), (40, 19), (10_000, 5)])
def test_a_limit_keeps_whole_steps_and_says_from_where(reader: Reader, limit: int, first_step: int) -> None:
    places = reader.newest_places("latest", 5, 20, limit)
    # 16 prompts a step: a limit on a step's end cannot tell whether the step is whole.
    assert places.first_step == first_step
    assert len(places.step) == (min(limit, 16) if limit <= 16 else 16 * (21 - first_step))
    assert len(places.step) <= limit


def test_the_newest_transfers_add_up_to_the_counts_of_pairs(reader: Reader) -> None:
    newest = reader.newest_transfers("latest", 3, 18)
    pairs = reader.pair_counts("latest", 3, 18)
    assert newest.first_step == 3
    size = len(SCENARIO.names)
    for name, column in (("responses", newest.responses), ("admitted", newest.admitted), ("n_s", newest.n_s)):
        sums = np.zeros((size, size), np.int64)
        np.add.at(sums, (newest.receiver, newest.source), column)
        np.testing.assert_array_equal(sums, pairs[name])
    for name, totals in (("sum_s", newest.sum_s), ("sum_w", newest.sum_w)):
        found = np.zeros((size, size))
        np.add.at(found, (newest.receiver, newest.source), totals)
        np.testing.assert_allclose(found, pairs[name])


def test_a_prompts_visits_are_every_group_it_had(reader: Reader) -> None:
    prompt = SCENARIO.step(7).prompts[0].key
    expected = sorted(
        (number, SCENARIO.names.index(group.member), group.successes, group.n, group.errors)
        for number in range(3, 21)
        for group in SCENARIO.step(number).groups
        if group.prompt == prompt
    )
    visits = reader.prompt_visits("latest", prompt, 3, 20)
    found = zip(visits.step, visits.member, visits.successes, visits.n, visits.errors, strict=True)
    assert [tuple(map(int, row)) for row in found] == expected
    assert len(expected) > len(SCENARIO.names)
    assert not len(reader.prompt_visits("latest", 12345, 1, 24).step)


def test_patterns_are_added_up_over_so_many_rows_at_most(reader: Reader) -> None:
    assert reader.patterns_from("latest", 3, 20) == 3
    first = reader.patterns_from("latest", 3, 20, 30)
    assert 3 < first <= 20
    rows = [
        len({tuple(solved) for (step, _), (_, _, solved) in _places(number, number).items() if step == number})
        for number in range(first, 21)
    ]
    assert sum(rows) <= 30
    assert reader.patterns_from("latest", 3, 20, 1) == 20


def test_an_empty_run_has_an_empty_graph(url: str) -> None:
    with open_writer(url) as writer:
        writer.start_run(Scenario(3, 2).run())
    with open_reader(url) as reader:
        assert reader.newest_places("latest", 1, 10).solved.shape == (0, 3)
        assert not len(reader.newest_transfers("latest", 1, 10).sum_s)
        assert not len(reader.newest_groups("latest", 1, 10).n)
        assert reader.patterns_from("latest", 1, 10) == 1


def test_a_step_with_no_transfer_is_not_taken_for_missing(url: str) -> None:
    with open_writer(url) as writer:
        write_run(writer, Scenario(2, 3, 4, n=2, method="grpo"))
    with open_reader(url) as reader:
        assert reader.newest_transfers("latest", 1, 3).first_step == 1
