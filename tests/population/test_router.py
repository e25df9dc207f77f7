"""The router remembers edge rates, draws controls reproducibly, and for two members selects as the paper does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from graft.methods import METHODS
from population.config import ExchangeConfig
from population.router import Router
from population.success_graph import StepCounts

PAIRS = json.loads(Path("tests/cases/selection_pair.json").read_text())


def counts(successes: dict[str, dict[int, int]], n: int = 8) -> StepCounts:
    return StepCounts(successes, {name: dict.fromkeys(own, n) for name, own in successes.items()})


def random_counts(seed: int, members: int = 3, prompts: int = 40) -> StepCounts:
    rng = np.random.default_rng(seed)
    return counts({f"m{i}": {p: int(rng.choice([0, 0, 0, 2, 5, 8])) for p in range(prompts)} for i in range(members)})


def test_a_method_without_exchange_routes_nothing() -> None:
    assert Router(METHODS["grpo"], ExchangeConfig(), 0).route(1, random_counts(0)).transfers == ()


@pytest.mark.parametrize("balance", ["circulation", "pairwise", "receiver"])
def test_two_members_exchange_exactly_the_papers_selection(balance: str) -> None:
    settings = ExchangeConfig(balance=balance, holdout=0.0)  # type: ignore[arg-type]
    for step, case in enumerate(PAIRS, 1):
        number = {name: i for i, name in enumerate(case["successes"]["A"])}
        successes = {m: {number[q]: k for q, k in own.items()} for m, own in case["successes"].items()}
        routing = Router(METHODS["graft"], settings, 0).route(step, counts(successes, case["n"]))
        for source, receiver, key in (("A", "B", "a_to_b"), ("B", "A", "b_to_a")):
            got = {t.prompt for t in routing.grafted if (t.source, t.receiver) == (source, receiver)}
            assert got == {number[q] for q in case[key]}


def test_controls_are_about_the_configured_share_recorded_and_not_grafted() -> None:
    router = Router(METHODS["graft"], ExchangeConfig(holdout=0.25), 0)
    routings = [router.route(step, random_counts(step)) for step in range(1, 60)]
    chosen, held = sum(len(r.transfers) for r in routings), sum(len(r.held_out) for r in routings)
    assert abs(held / chosen - 0.25) < 0.05
    for routing in routings:
        assert len(routing.grafted) + len(routing.held_out) == len(routing.transfers)
        assert not {(t.receiver, t.prompt) for t in routing.grafted} & routing.held_out


def test_routing_is_a_function_of_seed_step_counts_and_edge_rates() -> None:
    settings = ExchangeConfig(holdout=0.3)
    first, again, other = (Router(METHODS["graft"], settings, seed) for seed in (0, 0, 1))
    assert first.route(4, random_counts(4)) == again.route(4, random_counts(4))
    assert any(
        first.route(s, random_counts(s)).held_out != other.route(s, random_counts(s)).held_out for s in range(1, 6)
    )


def test_an_edge_rate_starts_at_one_and_averages_the_admitted_weights_of_steps_in_which_it_was_used() -> None:
    router = Router(METHODS["graft"], ExchangeConfig(edge_rate_decay=0.9), 0)
    router.observe({("a", "b"): [1.0, 0.0, 0.5, 0.5]})
    assert router.edge_rates == {("a", "b"): pytest.approx(0.9 + 0.1 * 0.5)}
    router.observe({("b", "a"): [0.0]})
    assert router.edge_rates["a", "b"] == pytest.approx(0.95)
    assert router.edge_rates["b", "a"] == pytest.approx(0.9)


def test_drawing_one_success_of_a_slot_does_not_turn_the_router_away_from_the_source_it_used() -> None:
    step = counts({"a": {1: 0}, "b": {1: 7}, "c": {1: 1}})
    router = Router(METHODS["graft-sgt"], ExchangeConfig(balance="none", holdout=0.0), 0)
    for number in range(1, 60):
        (chosen,) = router.route(number, step).grafted
        assert (chosen.source, chosen.value) == ("b", 7 / 8)
        router.observe({("a", "b"): [1.0, *[0.0] * 7]})


def test_a_low_edge_rate_moves_a_slot_to_the_more_compatible_peer() -> None:
    step = counts({"a": {1: 0}, "b": {1: 4}, "c": {1: 4}})
    router = Router(METHODS["graft"], ExchangeConfig(balance="none", holdout=0.0), 0)
    router.edge_rates = {("a", "b"): 0.2, ("a", "c"): 0.9}
    assert [t.source for t in router.route(1, step).grafted] == ["c"]
    router.edge_rates = {("a", "b"): 0.9, ("a", "c"): 0.2}
    assert [t.source for t in router.route(1, step).grafted] == ["b"]


def test_the_two_best_candidates_by_estimate_of_every_failed_group_are_scored() -> None:
    step = random_counts(3, members=5)
    router = Router(METHODS["graft"], ExchangeConfig(router="scored"), 0)
    router.edge_rates = {("m0", "m1"): 0.1, ("m0", "m2"): 0.9, ("m3", "m4"): 0.5}
    chosen = router.to_score(3, step)
    assert len({(t.receiver, t.prompt, t.source) for t in chosen}) == len(chosen)
    for receiver, own in step.successes.items():
        for prompt in own:
            values = sorted(
                (
                    other[prompt] / 8 * router.edge_rates.get((receiver, source), 1.0)
                    for source, other in step.successes.items()
                    if source != receiver and 1 <= other[prompt] < 8
                ),
                reverse=True,
            )
            found = [t.value for t in chosen if (t.receiver, t.prompt) == (receiver, prompt)]
            assert sorted(found, reverse=True) == pytest.approx(values[:2] if own[prompt] == 0 else [])
    assert Router(METHODS["graft"], ExchangeConfig(), 0).to_score(3, step) == []
    assert Router(METHODS["grpo"], ExchangeConfig(router="scored"), 0).to_score(3, step) == []


def test_a_measured_value_decides_between_the_sources_of_a_slot() -> None:
    step = counts({"a": {1: 0}, "b": {1: 6}, "c": {1: 2}})
    router = Router(METHODS["graft"], ExchangeConfig(balance="none", holdout=0.0, router="scored"), 0)
    assert [t.source for t in router.route(1, step).grafted] == ["b"]
    (chosen,) = router.route(1, step, {("a", 1, "b"): 0.1, ("a", 1, "c"): 0.2}).grafted
    assert (chosen.source, chosen.value) == ("c", 0.2)


def test_with_one_source_a_slot_measured_values_change_the_order_and_nothing_else() -> None:
    settings = ExchangeConfig(holdout=0.0, router="scored", ties=False)
    router = Router(METHODS["graft"], settings, 0)
    for number in range(1, 20):
        step = random_counts(number, members=2)
        candidates = router.to_score(number, step)
        estimated = router.route(number, step).grafted
        values = {(t.receiver, t.prompt, t.source): (t.prompt + 1) / 100 for t in candidates}
        measured = router.route(number, step, values).grafted
        for receiver in ("m0", "m1"):
            pool = sorted(t.prompt for t in candidates if t.receiver == receiver)
            taken = [sorted(t.prompt for t in own if t.receiver == receiver) for own in (estimated, measured)]
            assert len(taken[0]) == len(taken[1])
            assert taken[1] == pool[len(pool) - len(taken[1]) :]


def test_a_checkpoint_restores_the_edge_rates() -> None:
    router = Router(METHODS["graft"], ExchangeConfig(), 0)
    router.observe({("a", "b"): [0.3], ("b", "c"): [0.0]})
    restored = Router(METHODS["graft"], ExchangeConfig(), 0)
    restored.restore(json.loads(json.dumps(router.state())))
    assert restored.edge_rates == router.edge_rates
