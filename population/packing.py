"""Cut prompt-response pairs into micro-batches under a token budget, without ever counting a token value as padding.

Two layouts give the same log-probabilities:

* `packed`: one row [1, sum T], position ids restart at every sequence, no padding. The layout for variable-length
  attention kernels; with dense attention its cost grows with the square of the pack.
* `rows`: one row per sequence, right-padded. Rows of one prompt may share it: `prompt | response | response | ...`,
  every response attending to the prompt and to itself and counting its positions from the end of the prompt. Rows
  without sharing need no attention mask at all, since nothing looks to the right.

The last token of a response is only ever a target, so it is left out of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

Layout = Literal["packed", "rows"]
Pair = tuple[NDArray[np.integer], NDArray[np.integer]]


@dataclass(frozen=True, slots=True)
class Row:
    """Responses (by item number) that follow one prompt in one row, and the row's length in input tokens."""

    items: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward takes. The N response tokens of `items` lie one item after the other in `targets`.

    input_ids [B, T]; position_ids [B, T] or None (0, 1, 2, ..); segments [B, T] for `attention_mask` or None (causal);
    positions [N]: where in the flattened [B * T] hidden states the token's prediction stands; targets [N];
    items: item numbers, in the order of the tokens; lengths: response tokens of each of them.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor | None
    segments: torch.Tensor | None
    positions: torch.Tensor
    targets: torch.Tensor
    items: tuple[int, ...]
    lengths: tuple[int, ...]

    def to(self, device: torch.device) -> MicroBatch:
        """The same micro-batch on a device."""
        if device.type == "cpu":
            return self
        input_ids, position_ids, segments, positions, targets = (
            tensor if tensor is None else tensor.to(device, non_blocking=True)
            for tensor in (self.input_ids, self.position_ids, self.segments, self.positions, self.targets)
        )
        assert input_ids is not None
        assert positions is not None
        assert targets is not None
        return MicroBatch(input_ids, position_ids, segments, positions, targets, self.items, self.lengths)


def pack(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """First-fit decreasing: indices of `lengths` in packs of at most `max_tokens` tokens; a longer one is alone.

    Equal lengths keep their order, so the packs depend on the lengths alone. Raises ValueError for a budget below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"pack: max_tokens is {max_tokens}; it must be at least 1")
    packs: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        slot = next((i for i, free in enumerate(room) if free >= length), None)
        if slot is None:
            packs.append([index])
            room.append(max_tokens - length)
        else:
            packs[slot].append(index)
            room[slot] -= length
    return packs


def pack_rows(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Batches of rows with rows x longest row <= max_tokens, cut from the longest down so that little is padded."""
    if max_tokens < 1:
        raise ValueError(f"pack_rows: max_tokens is {max_tokens}; it must be at least 1")
    packs: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if packs and (len(packs[-1]) + 1) * lengths[packs[-1][0]] <= max_tokens:
            packs[-1].append(index)
        else:
            packs.append([index])
    return packs


def build_rows(pairs: Sequence[Pair], share_tokens: int) -> list[Row]:
    """Rows of responses to one prompt, at most `share_tokens` long unless a single response is longer; 0: no sharing.

    Prompts come in the order of their first response. Raises ValueError for an empty prompt or response.
    """
    groups: dict[bytes, list[int]] = {}
    for number, (prompt, response) in enumerate(pairs):
        if len(prompt) == 0 or len(response) == 0:
            raise ValueError(f"sequence {number}: prompt and response need at least one token each")
        groups.setdefault(np.asarray(prompt, dtype=np.int64).tobytes(), []).append(number)
    rows: list[Row] = []
    for members in groups.values():
        prompt_length = len(pairs[members[0]][0])
        items: list[int] = []
        length = prompt_length
        for number in members:
            added = len(pairs[number][1]) - 1
            if items and length + added > share_tokens:
                rows.append(Row(tuple(items), length))
                items, length = [], prompt_length
            items.append(number)
            length += added
        rows.append(Row(tuple(items), length))
    return rows


def share_out(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices for each rank, longest first onto the rank with the fewest tokens; the same on every rank."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        rank = load.index(min(load))
        shares[rank].append(index)
        load[rank] += lengths[index]
    return shares


def micro_batches(
    pairs: Sequence[Pair], *, layout: Layout, max_tokens: int, share_tokens: int = 0, rank: int = 0, ranks: int = 1
) -> list[MicroBatch | None]:
    """This rank's micro-batches; None fills up to the number that the busiest rank has.

    A rank without any work gets only None, so that collective calls stay in step.
    """
    rows = build_rows(pairs, 0 if layout == "packed" else share_tokens)
    fit = pack if layout == "packed" else pack_rows
    plans = [
        [[share[i] for i in batch] for batch in fit([rows[i].length for i in share], max_tokens)]
        for share in share_out([row.length for row in rows], ranks)
    ]
    build = _packed_batch if layout == "packed" else _row_batch
    mine: list[MicroBatch | None] = [build(pairs, [rows[i] for i in batch]) for batch in plans[rank]]
    return mine + [None] * (max(map(len, plans)) - len(mine))


def _packed_batch(pairs: Sequence[Pair], rows: Sequence[Row]) -> MicroBatch:
    """All sequences in one row [1, sum T] with restarted position ids."""
    ids, position_ids, positions, targets, items = [], [], [], [], []
    start = 0
    for row in rows:
        (number,) = row.items
        prompt, response = pairs[number]
        ids += [prompt, response[:-1]]
        position_ids.append(np.arange(row.length))
        positions.append(np.arange(start + len(prompt) - 1, start + row.length))
        targets.append(response)
        items.append(number)
        start += row.length
    return MicroBatch(
        _tensor(np.concatenate(ids))[None],
        _tensor(np.concatenate(position_ids))[None],
        None,
        _tensor(np.concatenate(positions)),
        _tensor(np.concatenate(targets)),
        tuple(items),
        tuple(len(target) for target in targets),
    )


def _row_batch(pairs: Sequence[Pair], rows: Sequence[Row]) -> MicroBatch:
    """One row per `Row`, right-padded with id 0 (a padded position is never a prediction that counts)."""
    width = max(row.length for row in rows)
    shared = any(len(row.items) > 1 for row in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    position_ids = np.zeros((len(rows), width), dtype=np.int64)
    segments = np.full((len(rows), width), -1, dtype=np.int64)
    positions, targets, items = [], [], []
    for line, row in enumerate(rows):
        prompt = pairs[row.items[0]][0]
        size = len(prompt)
        ids[line, :size], position_ids[line, :size], segments[line, :size] = prompt, np.arange(size), 0
        at = size
        for segment, number in enumerate(row.items, 1):
            response = pairs[number][1]
            end = at + len(response) - 1
            ids[line, at:end], segments[line, at:end] = response[:-1], segment
            position_ids[line, at:end] = np.arange(size, size + end - at)
            positions.append(np.concatenate(([size - 1], np.arange(at, end))) + line * width)
            targets.append(response)
            items.append(number)
            at = end
    return MicroBatch(
        _tensor(ids),
        _tensor(position_ids) if shared else None,
        _tensor(segments) if shared else None,
        _tensor(np.concatenate(positions)),
        _tensor(np.concatenate(targets)),
        tuple(items),
        tuple(len(target) for target in targets),
    )


def blank_batch() -> MicroBatch:
    """A forward over one token that stands for no item: what a rank without work runs beside the others."""
    zero = torch.zeros(1, dtype=torch.int64)
    return MicroBatch(zero[None], None, None, zero, zero, (), ())


def attention_mask(segments: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [B, 1, T, T] of rows that share a prompt: segment 0 is the prompt, padding a segment of its own."""
    width = segments.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=segments.device).tril()
    same = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
    mask = torch.zeros(same.shape, dtype=dtype, device=segments.device)
    return mask.masked_fill_(~(same & causal), torch.finfo(dtype).min)[:, None]


def _tensor(array: NDArray[np.integer]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
