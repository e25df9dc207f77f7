"""Minibatch order."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.minibatches import order_prompts

batches = st.lists(st.integers(0, 500), unique=True, max_size=40).flatmap(
    lambda prompts: st.tuples(st.just(prompts), st.sets(st.sampled_from(prompts)) if prompts else st.just(set()))
)


def test_paper_batch_is_cut_by_prompts_with_peers_last():
    grafted = set(range(0, 128, 4))
    found = order_prompts(list(range(128)), grafted, 32)
    assert [len(batch) for batch in found] == [32, 32, 32, 32]
    assert found[3] == sorted(grafted)
    assert list(chain(*found[:3])) == [prompt for prompt in range(128) if prompt % 4]


@given(batches, st.integers(1, 9), st.sampled_from(["last", "first", "uniform"]), st.integers(0, 50))
def test_every_prompt_is_kept_once_whatever_the_position(batch, size, position, seed):
    prompts, grafted = batch
    found = order_prompts(prompts, grafted, size, position=position, seed=seed)
    assert sorted(chain(*found)) == sorted(prompts)
    assert all(1 <= len(part) <= size for part in found)
    assert found == order_prompts(prompts, grafted, size, position=position, seed=seed)


@given(batches, st.integers(1, 9))
def test_both_parts_keep_the_batch_order(batch, size):
    prompts, grafted = batch
    own = [prompt for prompt in prompts if prompt not in grafted]
    peers = [prompt for prompt in prompts if prompt in grafted]
    assert list(chain(*order_prompts(prompts, grafted, size))) == own + peers
    assert list(chain(*order_prompts(prompts, grafted, size, position="first"))) == peers + own


def test_weights_order_grafted_prompts_from_the_most_compatible_on():
    weights = {"b": 0.85, "d": 1.0, "e": 0.85, "gone": 0.9}
    assert order_prompts(list("abcde"), weights, 5) == [["a", "c", "d", "b", "e"]]


def test_uniform_shuffles_whole_minibatches():
    prompts, grafted = list(range(64)), set(range(48, 64))
    cut = order_prompts(prompts, grafted, 8)
    orders = [order_prompts(prompts, grafted, 8, position="uniform", seed=seed) for seed in range(5)]
    assert all(sorted(order) == sorted(cut) for order in orders)
    assert len({str(order) for order in orders}) == 5


def test_no_prompts_give_no_minibatches():
    assert order_prompts([], set(), 8) == []


def test_impossible_orders_are_refused():
    with pytest.raises(ValueError, match="at least one prompt"):
        order_prompts([1], set(), 0)
    with pytest.raises(ValueError, match="distinct"):
        order_prompts([1, 1], set(), 2)
    with pytest.raises(ValueError, match="position"):
        order_prompts([1], set(), 2, position="middle")
