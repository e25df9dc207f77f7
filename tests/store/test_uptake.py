"""Uptake: what receivers did at their next visit, from the group rows, against a recount of the records."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from server.store.read_uptake import UPTAKE_COUNTS
from server.store.reader import open_reader
from server.store.writer import open_writer
from tests.store.synthetic import Scenario, write_run


def recount(scenario: Scenario, first: int, last: int, until: int, every: int = 1) -> tuple[Counter, Counter]:
    """(by (name, receiver, source), by name) of the written records."""
    steps = {number: scenario.step(number) for number in range(1, scenario.steps + 1)}
    edges: Counter = Counter()
    places: dict[tuple[int, str, int], tuple[str, bool | None]] = {}
    for number in (number for number in range(first, last + 1) if number % every == 0):
        for one in steps[number].transfers:
            later = [
                group.successes > 0
                for after in range(number + 1, until + 1)
                for group in steps[after].groups
                if (group.member, group.prompt) == (one.receiver, one.prompt) and group.errors == 0
            ]
            side, solved = "held_out" if one.held_out else "grafted", later[0] if later else None
            places[number, one.receiver, one.prompt] = side, solved
            edges.update({(name, one.receiver, one.source): 1 for name in names_of(side, solved)})
    return edges, Counter(name for side, solved in places.values() for name in names_of(side, solved))


def names_of(side: str, solved: bool | None) -> list[str]:
    return [side, *([f"{side}_seen"] if solved is not None else []), *([f"{side}_solved"] if solved else [])]


@pytest.mark.parametrize("sources", [1, 3])
def test_uptake_counts_the_next_visit_of_every_grafted_and_withheld_place(url: str, sources: int) -> None:
    scenario = Scenario(4, 14, 10, n=3, held_out_share=0.4, error_share=0.05, sources=sources)
    with open_writer(url) as writer:
        write_run(writer, scenario)
    with open_reader(url) as reader:
        for first, last, until in ((1, 14, None), (3, 9, None), (1, 14, 8)):
            pairs, total = reader.uptake("latest", first, last, until=until)
            edges, places = recount(scenario, first, last, until or 14)
            assert total == {name: places[name] for name in UPTAKE_COUNTS}
            for name in UPTAKE_COUNTS:
                expected = [[edges[name, i, j] for j in scenario.names] for i in scenario.names]
                np.testing.assert_array_equal(pairs[name], expected)
            assert total["held_out_seen"] > total["held_out_solved"] > 0
            assert total["grafted"] > total["grafted_seen"] > total["grafted_solved"] > 0


@pytest.mark.parametrize(("first", "last", "every"), [(1, 14, 2), (3, 9, 3), (6, 7, 5), (4, 4, 4)])
def test_uptake_of_every_so_many_steps_is_that_of_their_transfers(url: str, first: int, last: int, every: int) -> None:
    scenario = Scenario(3, 14, 8, n=2, held_out_share=0.4)
    with open_writer(url) as writer:
        write_run(writer, scenario)
    with open_reader(url) as reader:
        pairs, total = reader.uptake("latest", first, last, every=every)
    edges, places = recount(scenario, first, last, 14, every)
    assert total == {name: places[name] for name in UPTAKE_COUNTS}
    for name in UPTAKE_COUNTS:
        np.testing.assert_array_equal(
            pairs[name], [[edges[name, i, j] for j in scenario.names] for i in scenario.names]
        )


def test_a_run_without_transfers_has_no_uptake(url: str) -> None:
    with open_writer(url) as writer:
        write_run(writer, Scenario(2, 3, 4, n=2, method="grpo"))
    with open_reader(url) as reader:
        pairs, total = reader.uptake("latest", 1, 3)
        assert total == dict.fromkeys(UPTAKE_COUNTS, 0)
        assert all(not counts.any() for counts in pairs.values())
