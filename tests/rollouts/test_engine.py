"""Sampling parameters and the weight checksum."""

from __future__ import annotations

import pytest
import torch

from server.rollouts.engine import SamplingParams, trainable_tensors, weights_checksum
from tests.rollouts.conftest import tiny_model


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"n": 0}, "n is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
    ],
)
def test_impossible_parameters_are_refused_by_name(change: dict[str, float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        SamplingParams(**{"n": 1, "max_new_tokens": 1, **change})  # type: ignore[arg-type]


def test_checksum_ignores_order_and_sees_names_shapes_dtypes_and_single_bits() -> None:
    a, b = torch.arange(6, dtype=torch.float32), torch.ones(2, 2)
    base = weights_checksum({"a": a, "b": b})
    assert weights_checksum({"b": b.clone(), "a": a.clone()}) == base
    changed = a.clone()
    changed.view(torch.int32)[3] ^= 1
    others = [
        {"a": changed, "b": b},
        {"a": a.reshape(2, 3), "b": b},
        {"a": a, "c": b},
        {"a": a},
        {"a": a.view(torch.int32), "b": b},
    ]
    assert len({base, *(weights_checksum(other) for other in others)}) == 6


def test_checksum_does_not_depend_on_memory_layout() -> None:
    wide = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    assert weights_checksum({"w": wide.t()}) == weights_checksum({"w": wide.t().contiguous()})
    assert weights_checksum({"w": torch.tensor(1.0)}) != weights_checksum({"w": torch.tensor([1.0])})


def test_a_tied_weight_counts_once() -> None:
    names = set(trainable_tensors(tiny_model("qwen3")))
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
