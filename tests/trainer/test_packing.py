"""Micro-batches: budgets, order, and that every response token is predicted from the token before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from population.packing import Pair, attention_mask, build_rows, micro_batches, pack, pack_rows, share_out

LENGTHS = st.lists(st.integers(1, 60), max_size=30)


def ragged_pairs(seed: int, count: int = 14) -> list[Pair]:
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(1, 50, size) for size in (1, 4, 9)]
    return [(prompts[i % 3], draw.integers(1, 50, int(draw.integers(1, 8)))) for i in range(count)]


def test_first_fit_fills_earlier_packs_with_shorter_sequences() -> None:
    assert pack([3, 7, 5, 2, 2, 1], 10) == [[1, 0], [2, 3, 4, 5]]
    assert pack([4, 4, 4], 8) == [[0, 1], [2]]
    assert pack([30, 2], 10) == [[0], [1]]
    assert pack([], 10) == []


@given(LENGTHS, st.integers(1, 80))
def test_packs_hold_every_sequence_once_within_the_budget(lengths: list[int], budget: int) -> None:
    packs = pack(lengths, budget)
    assert sorted(index for chosen in packs for index in chosen) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in chosen) <= budget or len(chosen) == 1 for chosen in packs)
    assert packs == pack(list(lengths), budget)


@given(LENGTHS, st.integers(1, 200))
def test_row_batches_count_their_padding_against_the_budget(lengths: list[int], budget: int) -> None:
    batches = pack_rows(lengths, budget)
    assert sorted(index for chosen in batches for index in chosen) == list(range(len(lengths)))
    assert all(len(c) * max(lengths[i] for i in c) <= budget or len(c) == 1 for c in batches)


@given(LENGTHS, st.integers(1, 4))
def test_ranks_share_all_work_evenly(lengths: list[int], ranks: int) -> None:
    shares = share_out(lengths, ranks)
    assert sorted(index for share in shares for index in share) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@pytest.mark.parametrize("budget", [0, -3])
def test_a_budget_below_one_token_is_refused(budget: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        pack([1], budget)
    with pytest.raises(ValueError, match="at least 1"):
        pack_rows([1], budget)


def test_an_empty_response_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match="sequence 1"):
        build_rows([(np.array([1]), np.array([2])), (np.array([1]), np.array([], dtype=int))], 0)


@pytest.mark.parametrize(("layout", "share"), [("packed", 0), ("rows", 0), ("rows", 12), ("rows", 500)])
@pytest.mark.parametrize("budget", [1, 40, 5000])
def test_every_target_is_predicted_from_the_token_before_it(layout: str, share: int, budget: int) -> None:
    pairs = ragged_pairs(0)
    seen = []
    for batch in micro_batches(pairs, layout=layout, max_tokens=budget, share_tokens=share):  # type: ignore[arg-type]
        assert batch is not None
        before = batch.input_ids.flatten()[batch.positions].numpy()
        start = 0
        for item, length in zip(batch.items, batch.lengths, strict=True):
            prompt, response = pairs[item]
            assert length == len(response)
            assert batch.targets[start : start + length].tolist() == response.tolist()
            assert before[start : start + length].tolist() == [prompt[-1], *response[:-1]]
            start += length
            seen.append(item)
        assert start == len(batch.targets)
    assert sorted(seen) == list(range(len(pairs)))


def test_packed_batches_have_no_padding_and_restart_positions() -> None:
    pairs = ragged_pairs(1)
    (batch,) = micro_batches(pairs, layout="packed", max_tokens=10_000)
    assert batch is not None
    assert batch.position_ids is not None
    assert batch.input_ids.shape == (1, sum(len(p) + len(r) - 1 for p, r in pairs))
    assert int((batch.position_ids == 0).sum()) == len(pairs)


def test_rows_without_a_shared_prompt_need_no_mask() -> None:
    (batch,) = micro_batches(ragged_pairs(2), layout="rows", max_tokens=10_000)
    assert batch is not None
    assert batch.segments is None
    assert batch.position_ids is None


def test_ranks_get_equally_many_micro_batches_and_every_item_once() -> None:
    pairs = ragged_pairs(3)
    per_rank = [
        micro_batches(pairs, layout="rows", max_tokens=30, share_tokens=20, rank=rank, ranks=3) for rank in range(3)
    ]
    assert len({len(batches) for batches in per_rank}) == 1
    items = [item for batches in per_rank for batch in batches if batch is not None for item in batch.items]
    assert sorted(items) == list(range(len(pairs)))
    alone = micro_batches(pairs[:1], layout="rows", max_tokens=30, rank=1, ranks=2)
    assert alone == [None]
    assert micro_batches([], layout="rows", max_tokens=30) == []


def test_a_response_attends_to_the_prompt_and_itself_only() -> None:
    segments = torch.tensor([[0, 0, 1, 1, 2, -1]])
    open_to = (attention_mask(segments, torch.float32)[0, 0] == 0).int().tolist()
    assert open_to == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
