"""A key-value cache made for sampling: written in place, rows leave it cheaply, nothing is copied from step to step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ROW_ATTENTION = "graft_rows"
_FIRST_STEPS = 64


class RowLayer(CacheLayerMixin):
    """One layer. The prompt's keys and values are kept as they come; `expand` then gives each sample its own row."""

    is_sliding = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states, value_states
        self._length = key_states.shape[-2]
        self.is_initialized = True

    def expand(self, prompt_of_row: Tensor, steps: int) -> None:
        """One row for each entry of `prompt_of_row` [rows], with room for the first steps."""
        capacity = self._length + min(steps, _FIRST_STEPS)
        self._keys = _grown(self.keys, prompt_of_row, self._length, capacity)
        self._values = _grown(self.values, prompt_of_row, self._length, capacity)
        self.keys, self.values = self._keys, self._values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The new states [rows, heads, q, dim] are written behind the old; views of all so far are returned."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return key_states, value_states
        start, count = self._length, key_states.shape[-2]
        end = self._length = start + count
        if end > self.keys.shape[-2]:
            self._enlarge(start, end)
        self.keys.narrow(2, start, count).copy_(key_states)
        self.values.narrow(2, start, count).copy_(value_states)
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def move(self, holes: Tensor, movers: Tensor, rows: int) -> None:
        """Rows `movers` take the places `holes`; only the first `rows` rows stay."""
        if holes.numel():
            for buffer in (self.keys, self.values):
                used = buffer.narrow(2, 0, self._length)
                used.index_copy_(0, holes, used.index_select(0, movers))
        self.keys, self.values = self._keys[:rows], self._values[:rows]

    def _enlarge(self, used: int, needed: int) -> None:
        every = torch.arange(self.keys.shape[0], device=self.device)
        capacity = max(needed, used + used // 2)
        self._keys = self.keys = _grown(self.keys, every, used, capacity)
        self._values = self.values = _grown(self.values, every, used, capacity)

    def get_seq_length(self) -> int:
        return self._length if self.is_initialized else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


def _grown(old: Tensor, rows: Tensor, used: int, capacity: int) -> Tensor:
    _, heads, _, width = old.shape
    new = old.new_empty((len(rows), heads, capacity, width))
    new.narrow(2, 0, used).copy_(old.narrow(2, 0, used).index_select(0, rows))
    return new


class RowCache(Cache):
    """`RowLayer`s for every layer of a model."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=RowLayer)

    def expand(self, prompt_of_row: Tensor, steps: int) -> None:
        """See `RowLayer.expand`; no layer can be added afterwards."""
        for layer in self.layers:
            layer.expand(prompt_of_row, steps)

    def move(self, holes: Tensor, movers: Tensor, rows: int) -> None:
        """See `RowLayer.move`."""
        for layer in self.layers:
            layer.move(holes, movers, rows)


def row_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Transformers' SDPA attention; one query a row is answered without repeating keys for grouped heads.

    query [rows, heads, q, dim], key and value [rows, key heads, k, dim] -> [rows, q, heads, dim].
    """
    rows, heads, queries, width = query.shape
    key_heads = key.shape[1]
    per_head_mask = attention_mask is not None and attention_mask.shape[1] != 1
    if queries != 1 or per_head_mask or kwargs.get("position_bias") is not None or kwargs.get("cache") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    # The heads of one group share their keys, so they can stand as that group's queries.
    grouped = query.reshape(rows, key_heads, heads // key_heads, width)
    if query.is_cpu and query.dtype == torch.float32:
        out = _products_attention(grouped, key, value, attention_mask, width**-0.5 if scaling is None else scaling)
    else:
        out = torch.nn.functional.scaled_dot_product_attention(
            grouped, key, value, attn_mask=attention_mask, scale=scaling
        )
    return out.reshape(rows, 1, heads, value.shape[-1]), None


def _products_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention by two batched products, which for few queries a row beats the fused kernel on CPUs."""
    rows, key_heads, group, _ = query.shape
    scores = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2)).view(rows, key_heads, group, -1)
    scores.mul_(scaling)
    if mask is not None and mask.dtype == torch.bool:
        scores.masked_fill_(~mask, float("-inf"))
    elif mask is not None:
        scores.add_(mask)
    return torch.bmm(scores.softmax(-1).flatten(0, 1), value.flatten(0, 1))


def use_row_attention(model: PreTrainedModel) -> bool:
    """Switch a model from SDPA to `row_attention`; False (and nothing changed) where it uses another attention."""
    if getattr(model.config, "_attn_implementation", None) != "sdpa":
        return False
    AttentionInterface.register(ROW_ATTENTION, row_attention)
    AttentionMaskInterface.register(ROW_ATTENTION, sdpa_mask)
    try:
        model.set_attn_implementation(ROW_ATTENTION)
    except ValueError:
        return False
    return bool(model.config._attn_implementation == ROW_ATTENTION)
