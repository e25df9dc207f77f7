"""The selection rules that the paper's is compared with, and what restricts all of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.selection import any_success, every_success, everyone, exchange, random_prompts
from tests.graft.test_selection import BALANCED, attempts_of, random_batch, triples

RULES = [exchange, any_success, every_success, everyone, random_prompts]
batches = st.tuples(st.integers(0, 100_000), st.integers(2, 6))


def lost_and_found(successes):
    """Every (receiver, prompt, source) with k_receiver = 0 and k_source >= 1."""
    return {
        (receiver, q, source)
        for receiver, failed in successes.items()
        for source, solved in successes.items()
        for q in failed
        if failed[q] == 0 and solved[q] >= 1
    }


def pairs(transfers):
    return {(t.receiver, t.prompt) for t in transfers}


@settings(max_examples=60)
@given(batches)
def test_any_success_serves_every_lost_prompt_from_its_best_source(batch):
    successes, attempts, rates = random_batch(*batch)
    found = any_success(successes, attempts, edge_rates=rates)
    possible = lost_and_found(successes)
    assert triples(found) <= possible
    assert len(found) == len(pairs(found)) == len({(receiver, q) for receiver, q, _ in possible})
    for t in found:
        values = [
            successes[source][q] / 8 * rates[receiver, source]
            for receiver, q, source in possible
            if (receiver, q) == (t.receiver, t.prompt)
        ]
        assert t.value == pytest.approx(max(values), rel=1e-6)
        assert not t.tie


def test_any_success_takes_sources_that_solved_everything():
    successes = {"a": {0: 0, 1: 0}, "b": {0: 8, 1: 3}}
    assert triples(any_success(successes, attempts_of(successes))) == {("a", 0, "b"), ("a", 1, "b")}
    assert triples(exchange(successes, attempts_of(successes), balance="none")) == {("a", 1, "b")}


@settings(max_examples=60)
@given(batches)
def test_every_success_takes_every_source_of_every_lost_prompt(batch):
    successes, attempts, _ = random_batch(*batch)
    found = every_success(successes, attempts)
    assert triples(found) == lost_and_found(successes)
    assert len(found) == len(triples(found))


@settings(max_examples=30)
@given(st.integers(0, 100_000))
def test_for_two_members_every_and_any_success_are_one(seed):
    successes, attempts, rates = random_batch(seed)
    assert every_success(successes, attempts, edge_rates=rates) == any_success(successes, attempts, edge_rates=rates)


@settings(max_examples=40)
@given(batches)
def test_everyone_gets_every_other_members_group_on_every_prompt(batch):
    successes, attempts, _ = random_batch(*batch)
    found = everyone(successes, attempts, min_successes=5)
    assert len(found) == len(triples(found))
    assert triples(found) == {(r, q, s) for r in successes for s in successes if r != s for q in successes[r]}
    assert all(t.value == pytest.approx(successes[t.source][t.prompt] / 8) for t in found)


def test_groups_that_were_not_graded_are_in_no_rule():
    successes = {"a": {0: 0, 1: 0, 2: 2}, "b": {0: 4, 1: 8, 2: 0}, "c": {0: 4, 2: 4}}
    attempts = {"a": {0: 8, 1: 0, 2: 8}, "b": {0: 8, 1: 8, 2: 8}, "c": {0: 0, 2: 8}}
    assert triples(everyone(successes, attempts)) == {
        (r, 2, s) for r in "abc" for s in "abc" if r != s
    } | {("a", 0, "b"), ("b", 0, "a")}  # fmt: skip
    assert triples(every_success(successes, attempts)) == {("a", 0, "b"), ("b", 2, "a"), ("b", 2, "c")}


@settings(max_examples=60)
@given(batches, st.sampled_from([*BALANCED, "none"]), st.booleans())
def test_random_prompts_takes_as_many_per_edge_as_exchange_and_none_twice(batch, balance, ties):
    successes, attempts, rates = random_batch(*batch)
    options = {"edge_rates": rates, "balance": balance, "ties": ties, "seed": batch[0]}
    found = random_prompts(successes, attempts, **options)
    chosen = exchange(successes, attempts, **options)
    assert Counter((t.receiver, t.source) for t in found) == Counter((t.receiver, t.source) for t in chosen)
    assert len(pairs(found)) == len(found)
    assert found == random_prompts(successes, attempts, **options)


def test_random_prompts_are_uniform_over_the_batch_whatever_the_rewards():
    # Each edge moves one group; the paper's rule would always move prompts 0 and 1.
    successes = {"a": {0: 0, 1: 3, 2: 8, 3: 0}, "b": {0: 3, 1: 0, 2: 8, 3: 0}}
    counts = Counter(
        (t.receiver, t.prompt)
        for seed in range(800)
        for t in random_prompts(successes, attempts_of(successes), seed=seed)
    )
    assert sorted(counts) == [(member, q) for member in "ab" for q in range(4)]
    assert all(abs(count - 200) < 55 for count in counts.values())  # four standard errors are 49


def test_a_receivers_random_prompts_are_uniform_over_its_edges_together():
    successes = {"a": {0: 0, 1: 0, 2: 1, 3: 1}, "b": {0: 3, 1: 0, 2: 8, 3: 8}, "c": {0: 0, 1: 3, 2: 8, 3: 8}}
    found = [
        random_prompts(successes, attempts_of(successes), balance="none", receivers=["a"], seed=s) for s in range(900)
    ]
    assert all([t.source for t in transfers] and {t.source for t in transfers} == {"b", "c"} for transfers in found)
    counts = Counter(tuple(t.prompt for t in sorted(transfers, key=lambda t: t.source)) for transfers in found)
    assert len(counts) == 12  # ordered pairs of distinct prompts
    assert all(abs(count - 75) < 36 for count in counts.values())  # four standard errors are 33


def test_random_prompts_stay_within_what_both_attempted():
    # a lost 0 to b and 1 to c; b attempted only 0, so the draw must leave it to b's edge.
    successes = {"a": {0: 0, 1: 0, 2: 4}, "b": {0: 4}, "c": {0: 0, 1: 4, 2: 0}}
    for seed in range(40):
        found = random_prompts(successes, attempts_of(successes), balance="none", receivers={"a"}, seed=seed)
        sources = {t.source: t.prompt for t in found}
        assert sources["b"] == 0
        assert sources["c"] in (1, 2)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=20)
@given(st.integers(0, 100_000))
def test_only_named_receivers_receive_and_any_member_gives(rule, seed):
    successes, attempts, _ = random_batch(seed, members=4)
    names = sorted(successes)
    found = rule(successes, attempts, balance="none", receivers=names[:2])
    assert {t.receiver for t in found} <= set(names[:2])
    if rule is not random_prompts:
        whole = [t for t in rule(successes, attempts, balance="none") if t.receiver in names[:2]]
        assert [(t.receiver, t.prompt, t.value) for t in found] == [(t.receiver, t.prompt, t.value) for t in whole]
    assert rule(successes, attempts, balance="none", receivers=names) == rule(successes, attempts, balance="none")
    assert rule(successes, attempts, balance="none", receivers=[]) == []


def test_equal_receivers_are_equal_among_those_that_may_receive():
    successes = {"a": {0: 0, 1: 0}, "b": {0: 4, 1: 4}, "c": {0: 0, 1: 8}}
    assert exchange(successes, attempts_of(successes), balance="receiver", ties=False) == []
    found = exchange(successes, attempts_of(successes), balance="receiver", ties=False, receivers=["a", "c"])
    assert Counter(t.receiver for t in found) == {"a": 1, "c": 1}


def test_given_values_replace_the_estimate_and_decide_the_source():
    successes = {"r": {0: 0}, "strong": {0: 7}, "weak": {0: 1}}
    estimated = exchange(successes, attempts_of(successes), balance="none")
    assert [(t.source, t.value) for t in estimated] == [("strong", 7 / 8)]
    scored = exchange(
        successes, attempts_of(successes), balance="none", values={("r", 0, "strong"): 0.05, ("r", 0, "weak"): 0.1}
    )
    assert [(t.source, t.value) for t in scored] == [("weak", 0.1)]
    # The other keeps its estimate when only one is given.
    one = exchange(successes, attempts_of(successes), balance="none", values={("r", 0, "strong"): 0.05})
    assert [(t.source, t.value) for t in one] == [("weak", 1 / 8)]


@settings(max_examples=40)
@given(batches, st.sampled_from([*BALANCED, "none"]))
def test_values_equal_to_the_estimates_select_an_exchange_of_the_same_worth(batch, balance):
    successes, attempts, rates = random_batch(*batch)
    values = {(r, q, s): successes[s][q] / 8 * rates[r, s] for r, q, s in lost_and_found(successes)}
    plain = exchange(successes, attempts, edge_rates=rates, balance=balance, ties=False)
    given_values = exchange(successes, attempts, values=values, balance=balance, ties=False)
    assert len(given_values) == len(plain)
    assert sum(t.value for t in given_values) == pytest.approx(sum(t.value for t in plain), rel=1e-9)


def test_a_candidate_of_value_0_comes_last_but_is_one():
    successes = {"r": {0: 0, 1: 0}, "s": {0: 2, 1: 2}}
    options = {"balance": "none", "values": {("r", 0, "s"): 0.0}}
    assert len(exchange(successes, attempts_of(successes), **options)) == 2
    kept = exchange(successes, attempts_of(successes), max_peer_share=0.5, ties=False, **options)
    assert [t.prompt for t in kept] == [1]


@pytest.mark.parametrize("rule", [any_success, every_success, everyone])
@settings(max_examples=30)
@given(batches, st.floats(0.1, 1))
def test_guards_hold_for_rules_without_balance(rule, batch, share):
    successes, attempts, rates = random_batch(*batch)
    capped = rule(successes, attempts, edge_rates=rates, max_peer_share=share)
    assert all(count <= share * 24 + 1e-9 for count in Counter(r for r, _ in pairs(capped)).values())
    shared = rule(successes, attempts, edge_rates=rates, max_source_share=share)
    assert all(count <= share * len(shared) + 1e-9 for count in Counter(t.source for t in shared).values())
    if rule is not everyone:
        assert all(successes[t.source][t.prompt] >= 3 for t in rule(successes, attempts, min_successes=3))


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_members_and_prompts_does_not_matter_to_any_rule(rule):
    for seed in range(10):
        successes, attempts, _ = random_batch(seed, members=4)
        shuffled = {m: dict(reversed(successes[m].items())) for m in reversed(successes)}
        assert rule(successes, attempts, seed=seed) == rule(shuffled, attempts_of(shuffled), seed=seed)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_names_what_it_cannot_use(rule):
    arguments = {"a": {1: 0}, "b": {1: 2}}, {"a": {1: 8}, "b": {1: 8}}
    with pytest.raises(ValueError, match="balance must be one of"):
        rule(*arguments, balance="fair")
    with pytest.raises(ValueError, match=r"the value of source 'b' for 'a' on prompt 1 must lie in \[0, 1\], got nan"):
        rule(*arguments, values={("a", 1, "b"): float("nan")})
    with pytest.raises(TypeError, match="eligible"):
        rule(*arguments, eligible=[])
    assert rule({}, {}) == []
    assert rule({"a": {1: 0}}, {"a": {1: 8}}) == []
