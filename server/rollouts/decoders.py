"""Three ways to get next-token logits for many rows out of any causal language model, from fast to safe."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from server.rollouts.row_cache import RowCache

# Logits an uncached step may hold at once, so that long rows of a large vocabulary go in slices.
_MAX_LOGITS = 1 << 26
# The reach of attention without a window.
UNLIMITED = 1 << 62


class Decoder(Protocol):
    """State of one batch of rows. Rows are dropped by `move`, which also says how those left are ordered."""

    def start(self, prompts: Sequence[Sequence[int]], prompt_of_row: Tensor, steps: int) -> Tensor:
        """Logits [rows, V] behind the prompts; each prompt is computed once, however many rows share it."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token [rows] to every row; logits [rows, V] behind it."""
        ...

    def move(self, holes: Tensor, movers: Tensor, rows: int) -> None:
        """Rows `movers` take the places `holes`; only the first `rows` rows stay."""
        ...


def accepted_arguments(model: PreTrainedModel) -> frozenset[str]:
    """Names of the arguments the model's forward takes."""
    return frozenset(inspect.signature(model.forward).parameters)


def attention_reach(model: PreTrainedModel) -> int | None:
    """Tokens that all attention layers can look back over: the smallest window, `UNLIMITED` without any.

    None when some layer keeps another kind of state (a recurrent one, say).
    """
    layers = DynamicCache(config=model.config).layers
    reach = UNLIMITED
    for layer in layers:
        if type(layer) is DynamicSlidingWindowLayer:
            reach = min(reach, int(layer.sliding_window))
        elif type(layer) is not DynamicLayer:
            return None
    return reach


class RowDecoder:
    """Keys and values in place, the mask built once: attention layers only, and no row longer than their window.

    Prompts are padded on the left, so that all rows write the same slot; without padding there is no mask at all.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted_arguments(model) else {}

    def start(self, prompts: Sequence[Sequence[int]], prompt_of_row: Tensor, steps: int) -> Tensor:
        """Logits [rows, V] behind the prompts: one forward a prompt, then its state once for each of its rows."""
        ids, pads = _left_padded(prompts, self._model.device)
        width = ids.shape[1]
        slots = torch.arange(width, device=ids.device)
        positions = (slots - pads[:, None]).clamp_(min=0)
        mask = None
        if bool((pads > 0).any()):
            # A padded query sees itself, so that no row of the softmax is empty.
            seen = (slots >= pads[:, None, None]) & (slots[:, None] >= slots) | (slots[:, None] == slots)
            mask = _additive(seen[:, None], self._model.dtype)
        self._cache = RowCache()
        logits = self._forward(ids, mask, positions, **self._last_only)
        self._cache.expand(prompt_of_row, steps)
        self._positions = positions[:, -1:].index_select(0, prompt_of_row)
        self._length = width
        self._mask: Tensor | None = None
        if mask is not None:
            hidden = torch.zeros((len(prompts), 1, 1, width + steps), dtype=mask.dtype, device=ids.device)
            hidden[..., :width] = mask[:, :, -1:]
            self._mask = hidden.index_select(0, prompt_of_row)
        return logits.index_select(0, prompt_of_row)

    def step(self, tokens: Tensor) -> Tensor:
        self._length += 1
        self._positions += 1
        mask = None if self._mask is None else self._mask.narrow(3, 0, self._length)
        return self._forward(tokens[:, None], mask, self._positions)

    def move(self, holes: Tensor, movers: Tensor, rows: int) -> None:
        self._cache.move(holes, movers, rows)
        self._positions = _moved(self._positions, holes, movers, rows)
        if self._mask is not None:
            self._mask = _moved(self._mask, holes, movers, rows)

    def _forward(self, ids: Tensor, mask: Tensor | None, positions: Tensor, **last: Any) -> Tensor:
        out = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            **last,
        )
        return out.logits[:, -1]


class CachedDecoder:
    """The model's own cache and a plain padding mask, as `generate` uses them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        accepted = accepted_arguments(model)
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._takes_positions = "position_ids" in accepted

    def start(self, prompts: Sequence[Sequence[int]], prompt_of_row: Tensor, steps: int) -> Tensor:
        """Logits [rows, V] behind the prompts: one forward a prompt, then its state once for each of its rows."""
        ids, pads = _left_padded(prompts, self._model.device)
        slots = torch.arange(ids.shape[1], device=ids.device)
        positions = (slots - pads[:, None]).clamp_(min=0)
        self._mask = (slots >= pads[:, None]).long()
        self._cache = DynamicCache(config=self._model.config)
        logits = self._forward(ids, positions, **self._last_only)
        self._cache.reorder_cache(prompt_of_row)
        self._mask = self._mask.index_select(0, prompt_of_row)
        self._positions = positions[:, -1:].index_select(0, prompt_of_row)
        return logits.index_select(0, prompt_of_row)

    def step(self, tokens: Tensor) -> Tensor:
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(tokens), 1))], dim=1)
        self._positions = self._positions + 1
        return self._forward(tokens[:, None], self._positions)

    def move(self, holes: Tensor, movers: Tensor, rows: int) -> None:
        keep = torch.arange(rows, device=holes.device).index_copy_(0, holes, movers)
        self._cache.reorder_cache(keep)
        self._mask = self._mask.index_select(0, keep)
        self._positions = self._positions.index_select(0, keep)

    def _forward(self, ids: Tensor, positions: Tensor, **last: Any) -> Tensor:
        if self._takes_positions:
            last["position_ids"] = positions
        out = self._model(input_ids=ids, attention_mask=self._mask, past_key_values=self._cache, use_cache=True, **last)
        return out.logits[:, -1]


class UncachedDecoder:
    """A full right-padded forward at every step: slow, and right for every model that respects its padding mask."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def start(self, prompts: Sequence[Sequence[int]], prompt_of_row: Tensor, steps: int) -> Tensor:
        """Logits [rows, V] behind the prompts, in a buffer of ids with room for `steps` more in every row."""
        lengths = torch.tensor([len(p) for p in prompts], device=self._model.device)
        ids = torch.zeros((len(prompts), int(lengths.max()) + steps), dtype=torch.long, device=self._model.device)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt, device=ids.device)
        self._ids, self._lengths = ids, lengths
        logits = self._forward()
        self._ids = ids.index_select(0, prompt_of_row)
        self._lengths = lengths.index_select(0, prompt_of_row)
        return logits.index_select(0, prompt_of_row)

    def step(self, tokens: Tensor) -> Tensor:
        self._ids.scatter_(1, self._lengths[:, None], tokens[:, None])
        self._lengths = self._lengths + 1
        return self._forward()

    def move(self, holes: Tensor, movers: Tensor, rows: int) -> None:
        self._ids = _moved(self._ids, holes, movers, rows)
        self._lengths = _moved(self._lengths, holes, movers, rows)

    def _forward(self) -> Tensor:
        width = int(self._lengths.max())
        mask = (torch.arange(width, device=self._ids.device) < self._lengths[:, None]).long()
        vocabulary = int(self._model.config.get_text_config().vocab_size)
        slice_rows = max(1, _MAX_LOGITS // (width * vocabulary))
        parts = []
        for first in range(0, len(self._ids), slice_rows):
            rows = slice(first, first + slice_rows)
            out = self._model(input_ids=self._ids[rows, :width], attention_mask=mask[rows], use_cache=False)
            last = self._lengths[rows] - 1
            parts.append(out.logits[torch.arange(len(last), device=last.device), last])
        return torch.cat(parts)


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [prompts, width] and the number of padded places [prompts]. The id in a padded place is never looked at."""
    width = max(len(p) for p in prompts)
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
    return ids, torch.tensor([width - len(p) for p in prompts], device=device)


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)


def _moved(state: Tensor, holes: Tensor, movers: Tensor, rows: int) -> Tensor:
    if holes.numel():
        state.index_copy_(0, holes, state.index_select(0, movers))
    return state[:rows]
