"""Which groups move: the paper's rule for two members, and its generalisations."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graft.selection import exchange, hold_out, select_with_ties

BALANCED = ["circulation", "pairwise", "receiver"]


def attempts_of(successes, n=8):
    return {member: dict.fromkeys(counts, n) for member, counts in successes.items()}


def random_batch(seed, members=2, prompts=24, n=8):
    """Counts from a batch whose prompts differ in difficulty and whose members differ in ability, with many zeros."""
    rng = np.random.default_rng(seed)
    chance = rng.beta(rng.uniform(0.1, 0.8), rng.uniform(0.3, 2), (members, prompts))
    counts = rng.binomial(n, chance)
    names = rng.permutation([f"member{index}" for index in range(members)]).tolist()
    successes = {name: {q: int(counts[i, q]) for q in range(prompts)} for i, name in enumerate(names)}
    rates = {(i, j): float(rng.uniform(0.05, 1)) for i in names for j in names if i != j}
    return successes, attempts_of(successes, n), rates


def paper_rule(successes, attempts):
    """SelectWithTies of the paper, straight from eq. 4, as {(receiver, prompt, source)}."""
    a, b = successes
    candidates = {
        (source, receiver): {
            q: k for q, k in successes[source].items() if successes[receiver][q] == 0 and 1 <= k < attempts[source][q]
        }
        for source, receiver in ((a, b), (b, a))
    }
    m = min(len(counts) for counts in candidates.values())
    return {
        (receiver, q, source) for (source, receiver), counts in candidates.items() for q in select_with_ties(counts, m)
    }


def triples(transfers):
    return {(t.receiver, t.prompt, t.source) for t in transfers}


def imports_and_exports(transfers):
    return Counter(t.receiver for t in transfers), Counter(t.source for t in transfers)


def test_select_with_ties_takes_the_boundary_whole():
    counts = {"a": 5, "b": 3, "c": 3, "d": 3, "e": 1}
    assert select_with_ties(counts, 0) == set()
    assert select_with_ties(counts, 1) == {"a"}
    assert select_with_ties(counts, 2) == {"a", "b", "c", "d"}
    assert select_with_ties(counts, 9) == set(counts)
    with pytest.raises(ValueError, match="cannot select"):
        select_with_ties(counts, -1)


@pytest.mark.parametrize("balance", BALANCED)
def test_golden_pairs(golden, balance):
    for case in golden("selection_pair"):
        found = triples(exchange(case["successes"], attempts_of(case["successes"], case["n"]), balance=balance))
        expected = {("B", q, "A") for q in case["a_to_b"]} | {("A", q, "B") for q in case["b_to_a"]}
        assert found == expected


@pytest.mark.parametrize("balance", BALANCED)
def test_two_members_follow_the_paper_exactly_on_hundreds_of_batches(balance):
    exchanged = 0
    for seed in range(400):
        n = (2, 4, 8, 16)[seed % 4]
        successes, attempts, rates = random_batch(seed, prompts=1 + seed % 48, n=n)
        if seed % 3 == 0:
            rates = dict.fromkeys(rates, 1e-9)
        expected = paper_rule(successes, attempts)
        assert triples(exchange(successes, attempts, edge_rates=rates, balance=balance, seed=seed)) == expected
        exchanged += bool(expected)
    assert exchanged > 200


def test_golden_populations(golden):
    for case in golden("selection_population"):
        attempts = attempts_of(case["successes"], case["n"])
        rates = {(receiver, source): rate for receiver, source, rate in case["edge_rates"]}
        for balance in ("circulation", "none"):
            found = exchange(case["successes"], attempts, edge_rates=rates, balance=balance, ties=False)
            assert sum(t.value for t in found) == pytest.approx(case[balance]["total_value"], rel=1e-12)
        circulation = exchange(case["successes"], attempts, edge_rates=rates, ties=False)
        assert len(circulation) == case["circulation"]["groups"]


@settings(max_examples=60)
@given(st.integers(0, 100_000), st.integers(2, 6), st.sampled_from([*BALANCED, "none"]), st.booleans())
def test_every_transfer_is_a_candidate_and_every_slot_has_one_source(seed, members, balance, ties):
    successes, attempts, rates = random_batch(seed, members)
    found = exchange(successes, attempts, edge_rates=rates, balance=balance, ties=ties, seed=seed)
    assert len({(t.receiver, t.prompt) for t in found}) == len(found)
    for t in found:
        k, n = successes[t.source][t.prompt], attempts[t.source][t.prompt]
        assert successes[t.receiver][t.prompt] == 0
        assert 1 <= k < n
        assert t.value == pytest.approx(k / n * rates[t.receiver, t.source], rel=1e-12)
        assert ties or not t.tie


@settings(max_examples=60)
@given(st.integers(0, 100_000), st.integers(2, 6))
def test_each_mode_balances_what_it_promises(seed, members):
    successes, attempts, rates = random_batch(seed, members)
    found = {b: exchange(successes, attempts, edge_rates=rates, balance=b, ties=False, seed=seed) for b in BALANCED}
    imports, exports = imports_and_exports(found["circulation"])
    assert imports == exports
    edges = Counter((t.receiver, t.source) for t in found["pairwise"])
    assert all(edges[source, receiver] == count for (receiver, source), count in edges.items())
    received, _ = imports_and_exports(found["receiver"])
    assert len({received[member] for member in successes}) == 1


@settings(max_examples=60)
@given(st.integers(0, 100_000), st.integers(2, 6))
def test_total_value_falls_with_the_strictness_of_the_balance(seed, members):
    successes, attempts, rates = random_batch(seed, members)
    totals = [
        sum(t.value for t in exchange(successes, attempts, edge_rates=rates, balance=b, ties=False))
        for b in ("none", "circulation", "pairwise")
    ]
    assert totals[0] >= totals[1] - 1e-9
    assert totals[1] >= totals[2] - 1e-9


@settings(max_examples=60)
@given(st.integers(0, 100_000), st.integers(2, 6), st.sampled_from([*BALANCED, "none"]))
def test_ties_add_exactly_the_free_candidates_at_each_edges_boundary(seed, members, balance):
    successes, attempts, rates = random_batch(seed, members)
    core = exchange(successes, attempts, edge_rates=rates, balance=balance, ties=False, seed=seed)
    found = exchange(successes, attempts, edge_rates=rates, balance=balance, seed=seed)
    assert triples(t for t in found if not t.tie) == triples(core)
    lowest = {}
    for t in core:
        k = successes[t.source][t.prompt]
        lowest[t.receiver, t.source] = min(k, lowest.get((t.receiver, t.source), k))
    taken = {(t.receiver, t.prompt): t for t in found}
    for (receiver, source), k in lowest.items():
        for prompt, count in successes[source].items():
            if successes[receiver][prompt] == 0 and count == k:
                assert (receiver, prompt) in taken
                slot = taken[receiver, prompt]
                assert not slot.tie or slot.value >= k / 8 * rates[receiver, source] - 1e-12
    for t in found:
        if t.tie:
            assert successes[t.source][t.prompt] == lowest[t.receiver, t.source]


@pytest.mark.parametrize("balance", [*BALANCED, "none"])
def test_the_order_of_members_and_prompts_in_the_input_does_not_matter(balance):
    for seed in range(20):
        successes, attempts, rates = random_batch(seed, members=4)
        rates = dict.fromkeys(rates, 1.0)
        shuffled = {m: dict(reversed(successes[m].items())) for m in reversed(successes)}
        first = exchange(successes, attempts, edge_rates=rates, balance=balance, seed=seed)
        again = exchange(shuffled, attempts_of(shuffled), edge_rates=rates, balance=balance, seed=seed)
        assert first == again


def test_value_ties_favour_no_member_by_its_name():
    successes = {"a": {0: 4}, "b": {0: 4}, "c": {0: 4}, "receiver": {0: 0}}
    sources = Counter(
        exchange(successes, attempts_of(successes), balance="none", seed=seed)[0].source for seed in range(600)
    )
    assert set(sources) == {"a", "b", "c"}
    assert max(sources.values()) < 260
    assert min(sources.values()) > 140


def test_ties_between_whole_exchanges_favour_no_member_by_its_name():
    # b can swap with a or with c, at the same value; it fails one prompt, so only one swap fits.
    successes = {"a": {0: 0, 1: 4, 2: 8}, "b": {0: 4, 1: 0, 2: 4}, "c": {0: 8, 1: 4, 2: 0}}
    partners = Counter()
    for seed in range(300):
        found = exchange(successes, attempts_of(successes), ties=False, seed=seed)
        partners.update(t.receiver for t in found)
    assert partners["b"] == 300
    assert 100 < partners["a"] < 200
    assert partners["a"] + partners["c"] == 300


def test_a_cycle_of_three_lets_members_take_part_that_no_partner_needs_directly():
    successes = {"a": {0: 0, 1: 3, 2: 8}, "b": {0: 8, 1: 0, 2: 3}, "c": {0: 3, 1: 8, 2: 0}}
    found = exchange(successes, attempts_of(successes))
    assert triples(found) == {("a", 0, "c"), ("b", 1, "a"), ("c", 2, "b")}
    assert exchange(successes, attempts_of(successes), balance="pairwise") == []


def test_min_successes_excludes_lucky_sources():
    successes, attempts, _ = random_batch(3, members=4)
    found = exchange(successes, attempts, min_successes=3)
    assert found
    assert all(successes[t.source][t.prompt] >= 3 for t in found)


@settings(max_examples=60)
@given(st.integers(0, 100_000), st.integers(2, 6), st.sampled_from([*BALANCED, "none"]), st.floats(0.05, 1))
def test_shares_are_kept_ties_included(seed, members, balance, share):
    successes, attempts, rates = random_batch(seed, members)
    found = exchange(successes, attempts, edge_rates=rates, balance=balance, max_peer_share=share)
    assert all(count <= share * 24 + 1e-9 for count in imports_and_exports(found)[0].values())
    found = exchange(successes, attempts, edge_rates=rates, balance=balance, max_source_share=share)
    assert all(count <= share * len(found) + 1e-9 for count in imports_and_exports(found)[1].values())
    core = exchange(successes, attempts, edge_rates=rates, max_peer_share=share, max_source_share=share, ties=False)
    imports, exports = imports_and_exports(core)
    assert imports == exports


def test_a_source_share_turns_to_the_next_best_source():
    successes = {
        "strong": dict.fromkeys(range(6), 7),
        "other": dict.fromkeys(range(6), 2),
        "r": dict.fromkeys(range(6), 0),
    }
    found = exchange(successes, attempts_of(successes), balance="none", max_source_share=0.5)
    assert imports_and_exports(found)[1] == {"strong": 3, "other": 3}


def test_groups_without_attempts_take_no_part():
    successes, attempts, rates = random_batch(8, members=4)
    whole = exchange(successes, attempts, edge_rates=rates)
    banned = {(t.receiver, t.prompt) for t in whole[::2]} | {(t.source, t.prompt) for t in whole[1::2]}
    omitted = {m: {q: n for q, n in counts.items() if (m, q) not in banned} for m, counts in attempts.items()}
    zeroed = {m: {q: 0 if (m, q) in banned else n for q, n in counts.items()} for m, counts in attempts.items()}
    found = exchange(successes, omitted, edge_rates=rates)
    assert found
    assert not banned & {(name, t.prompt) for t in found for name in (t.receiver, t.source)}
    assert found == exchange(successes, zeroed, edge_rates=rates)


@pytest.mark.parametrize("balance", [*BALANCED, "none"])
def test_nothing_to_exchange_gives_nothing(balance):
    assert exchange({}, {}, balance=balance) == []
    assert exchange({"a": {}, "b": {}}, {"a": {}, "b": {}}, balance=balance) == []
    assert exchange({"a": {1: 0}}, {"a": {1: 8}}, balance=balance) == []
    assert exchange({"a": {1: 0}, "b": {1: 8}}, {"a": {1: 8}, "b": {1: 8}}, balance=balance) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"balance": "fair"}, "balance must be one of circulation, pairwise, receiver, none"),
        ({"max_peer_share": 0.0}, r"max_peer_share must lie in \(0, 1\]"),
        ({"max_source_share": 1.5}, r"max_source_share must lie in \(0, 1\]"),
        ({"edge_rates": {("a", "b"): 0.0}}, "rate of edge 'b' -> 'a'"),
        ({"edge_rates": {("a", "b"): float("nan")}}, "rate of edge 'b' -> 'a'"),
        ({"successes": {"a": {1: 9}, "b": {1: 0}}}, "member 'a', prompt 1: 9 successes for 8 attempts"),
        ({"successes": {"a": {1: 1}}}, "member 'b', prompt 1: no success count for 8 attempts"),
    ],
)
def test_input_that_makes_no_sense_is_named(changes, message):
    arguments = {"successes": {"a": {1: 0}, "b": {1: 2}}, "attempts": {"a": {1: 8}, "b": {1: 8}}} | changes
    with pytest.raises(ValueError, match=message):
        exchange(**arguments)


def test_hold_out_splits_at_random_and_keeps_everything():
    successes, attempts, _ = random_batch(1, members=5, prompts=128)
    transfers = exchange(successes, attempts)
    grafted, held = hold_out(transfers, 0.1, seed=4)
    assert sorted(map(repr, grafted + held)) == sorted(map(repr, transfers))
    assert (grafted, held) == hold_out(transfers, 0.1, seed=4)
    assert 0.02 < len(held) / len(transfers) < 0.25
    assert hold_out(transfers, 0.0, seed=4) == (transfers, [])
    with pytest.raises(ValueError, match="held-out share"):
        hold_out(transfers, 1.0, seed=4)
