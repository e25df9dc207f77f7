"""The chunked head: values, gradients, float32 accumulation, and memory that does not grow with tokens x vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from population.head import SMALLEST_CHUNK_ELEMENTS, HeadOptions, TokenLogprobs


def inputs(tokens: int, vocabulary: int, hidden: int = 12, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    states = (torch.randn(tokens, hidden)).to(dtype).requires_grad_()
    weight = (torch.randn(vocabulary, hidden) * 0.5).to(dtype).requires_grad_()
    bias = torch.randn(vocabulary).to(dtype).requires_grad_()
    return [states, weight, bias, torch.randint(0, min(vocabulary, 5), (tokens,))]


NONE = torch.tensor([], dtype=torch.int64)


def ids_of(options: HeadOptions) -> torch.Tensor:
    return torch.tensor(options.excluded, dtype=torch.int64)


def reference(states: Any, weight: Any, bias: Any, targets: Any, options: HeadOptions) -> torch.Tensor:
    logits = (states.double() @ weight.double().t() + bias.double()) * options.scale
    if options.softcap is not None:
        logits = options.softcap * torch.tanh(logits / options.softcap)
    logits = (logits / options.temperature).index_fill(1, ids_of(options), float("-inf"))[:, : options.limit]
    return logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]


@pytest.mark.parametrize(
    "options",
    [
        HeadOptions(4),
        HeadOptions(4, temperature=0.6),
        HeadOptions(4, scale=0.25),
        HeadOptions(4, softcap=1.5),
        HeadOptions(4, temperature=1.7, scale=2.0, softcap=3.0, limit=19, excluded=(6, 11)),
    ],
)
def test_values_and_gradients_equal_those_of_whole_logits(
    options: HeadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("population.head.SMALLEST_CHUNK_ELEMENTS", 1)
    *leaves, targets = inputs(11, 23)
    upstream = torch.randn(11)
    found = TokenLogprobs.apply(*leaves, targets, ids_of(options), options)
    expected = reference(*leaves, targets, options)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)
    got = torch.autograd.grad((found * upstream).sum(), leaves)
    wanted = torch.autograd.grad((expected * upstream).sum(), leaves)
    for left, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(left, right.float(), atol=3e-6, rtol=0)
    if options.limit is not None:
        assert not got[1][options.limit :].any()
        assert not got[1][list(options.excluded)].any()


def test_frozen_weights_get_no_gradient() -> None:
    states, weight, _, targets = inputs(6, 9)
    weight.requires_grad_(False)
    TokenLogprobs.apply(states, weight, None, targets, NONE, HeadOptions(4)).sum().backward()
    assert states.grad is not None
    assert weight.grad is None


def test_low_precision_weights_collect_their_gradient_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("population.head.SMALLEST_CHUNK_ELEMENTS", 1)
    states, weight, bias, targets = inputs(512, 16, dtype=torch.bfloat16)
    # One sign throughout: rounding a running sum to bfloat16 would lose the small addends.
    chunked = TokenLogprobs.apply(states, weight, bias, targets, NONE, HeadOptions(2))
    (found,) = torch.autograd.grad(chunked.sum(), weight)
    (wanted,) = torch.autograd.grad(reference(states, weight, bias, targets, HeadOptions(2)).sum(), weight)
    relative = (found.double() - wanted.double()).norm() / wanted.double().norm()
    assert relative < 2**-8


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor that any operation returns, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.untyped_storage().nbytes() // value.element_size())
        return result


def largest_tensor(tokens: int, vocabulary: int) -> int:
    states, weight, _, targets = inputs(tokens, vocabulary, hidden=8)
    with LargestTensor() as largest:
        TokenLogprobs.apply(states, weight, None, targets, NONE, HeadOptions(64)).sum().backward()
    return largest.elements


def test_no_tensor_grows_with_tokens_times_vocabulary() -> None:
    vocabulary = 40_000
    few, many = largest_tensor(256, vocabulary), largest_tensor(2048, vocabulary)
    assert few == many == 64 * vocabulary
    assert largest_tensor(2048, vocabulary * 2) == 64 * vocabulary * 2
    assert largest_tensor(2048, 100) <= SMALLEST_CHUNK_ELEMENTS
