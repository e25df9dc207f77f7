"""What an SGLang server says it holds, against the tensors it was sent.

A server answers `/weights_checker` with one 64-bit hash per tensor and rank, under its own names: projections are fused
(`qkv_proj`, `gate_up_proj`), the vocabulary is padded with zeros, and ranks of a tensor-parallel server hold parts.
Every hash is therefore compared with those of the few forms in which a tensor of ours can lie on that rank; a damaged
tensor equals none of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Hash = Callable[[Tensor], str]

_FUSED = {
    ".qkv_proj.": (".q_proj.", ".k_proj.", ".v_proj."),
    ".gate_up_proj.": (".gate_proj.", ".up_proj."),
}
# Tables that follow from the configuration; a server leaves them out of its hashes.
_DERIVED = ("inv_freq", "cos_cached", "sin_cached", "cos_sin_cache", "masked_bias")
_VOCABULARY_PAD = 64
_WORD = 0xFFFFFFFF
_TILE = 8192
_CHUNK = 128 * _TILE


@dataclass(frozen=True)
class Comparison:
    """Outcome for one server. `differing`: tensors that are not what was sent; `missing`: tensors of ours that the
    server has under no name; `unknown`: names of the server that stand for no tensor of ours; `compared`: hashes that
    agree.
    """

    compared: int
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Every tensor was found and agrees."""
        return not (self.differing or self.missing or self.unknown)

    def fault(self) -> str:
        """What is wrong, in a few words."""
        parts = [("differ", self.differing), ("have no counterpart on the server", self.missing)]
        parts.append(("of the server stand for no tensor that was sent", self.unknown))
        return "; ".join(f"{some(names)} {what}" for what, names in parts if names)


def hash_of(device: str) -> Hash:
    """The hash that a server on `device` (as its `/server_info` says) computes."""
    return byte_hash if device == "cpu" else word_hash


def byte_hash(tensor: Tensor) -> str:
    """First 8 bytes (hex) of the SHA-256 of the raw bytes: what SGLang 0.5.23 computes where its weights lie in CPU
    memory.
    """
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data if flat.numel() else b"").hexdigest()[:16]


def word_hash(tensor: Tensor) -> str:
    """The hash (hex) that SGLang 0.5.23 computes over the 32-bit words of a tensor in GPU memory.

    Each word is mixed with its position by two seeds, the results are added up in tiles, mixed again, added up, and
    mixed a last time (MurmurHash3's and SplitMix64's finalisers).
    """
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    raw = torch.nn.functional.pad(raw, (0, -raw.numel() % 4))
    words = raw.view(torch.int32)
    if not len(words):
        return f"{0:016x}"
    total = 0
    for first in range(0, len(words), _CHUNK):
        part = words[first : first + _CHUNK].to(torch.int64) & _WORD
        total += int(_tiles(part, first, 4 * len(words)).sum())
    return f"{_splitmix(total):016x}"


def _tiles(words: Tensor, first: int, size: int) -> Tensor:
    """One 64-bit number for each tile of the words [n] (as int64) that begin at word `first` of a tensor of `size`
    bytes.
    """
    at = torch.arange(first, first + len(words), device=words.device, dtype=torch.int64) & _WORD
    halves = []
    for seed, factor, turn in ((0x243F6A88, 0x27D4EB2D, 15), (0x02C74EE7, 0x165667B1, 13)):
        place = ((at * factor + seed) & _WORD) ^ (((at << turn) | (at >> (32 - turn))) & _WORD)
        mixed = torch.nn.functional.pad(_mix(words ^ place), (0, -len(words) % _TILE))
        halves.append(_mix((mixed.view(-1, _TILE).sum(1) ^ size) & _WORD))
    return (halves[0] << 32) | halves[1]


def _mix(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _WORD
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _WORD
    return x ^ (x >> 16)


def _splitmix(x: int) -> int:
    whole = (1 << 64) - 1
    x &= whole
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & whole
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & whole
    return x ^ (x >> 31)


def compare(ranks: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor], hash_tensor: Hash) -> Comparison:
    """The `ranks` of a server's `/weights_checker` answer against the tensors (by Hugging Face name) it was sent."""
    names = _names(tensors, {name for rank in ranks for name in rank["checksums"]})
    seen: set[str] = set()
    differing: list[str] = []
    unknown: list[str] = []
    compared = 0
    for rank in ranks:
        place = next(info for info in rank["parallelism_info"] if info["role"] == "target")
        for name, said in rank["checksums"].items():
            parts = names.get(name)
            if parts is None:
                unknown.append(name)
                continue
            seen.update(parts)
            forms = _forms([tensors[part] for part in parts], place["tp_rank"], place["tp_size"])
            if any(hash_tensor(form) == said for form in forms):
                compared += 1
            else:
                differing.append(name)
    missing = [name for name in tensors if name not in seen and not any(part in name for part in _DERIVED)]
    return Comparison(compared, _unique(differing), _unique(missing), _unique(unknown))


def _names(tensors: Mapping[str, Tensor], theirs: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """{server's name: our names}, for the names that can be explained."""
    ours: dict[str, str] = {}
    for name in tensors:
        for alias in _aliases(name):
            ours.setdefault(alias, name)
    found: dict[str, tuple[str, ...]] = {}
    for name in theirs:
        wanted = [name]
        for fused, parts in _FUSED.items():
            if fused in name and name not in ours:
                wanted = [name.replace(fused, part) for part in parts]
        if all(part in ours for part in wanted):
            found[name] = tuple(ours[part] for part in wanted)
    head = next((name for name in tensors if name.endswith(("embed_tokens.weight", "embed_in.weight"))), None)
    if head is not None and "lm_head.weight" not in ours:
        # A tied head is sent once, as the embedding; some servers name it a second time.
        found["lm_head.weight"] = (head,)
    return found


def _aliases(name: str) -> Iterator[str]:
    """A tensor's Hugging Face name, and those it has in SGLang's wrapper around Hugging Face models."""
    yield name
    base, _, rest = name.partition(".")
    if base in ("gpt_neox", "transformer"):
        yield f"model.{rest}"
    if base == "embed_out":
        yield f"lm_head.{rest}"
    yield f"model.{name}"


def _forms(parts: Sequence[Tensor], rank: int, size: int) -> Iterator[Tensor]:
    """The forms in which one tensor, or several fused ones, may lie on a rank of `size`."""
    if size == 1:
        yield _joined(parts)
    elif len(parts) == 1:
        yield parts[0]
    for factor in (factor for factor in range(1, size + 1) if size > 1 and size % factor == 0):
        # Key and value heads that are fewer than the ranks are held by `factor` ranks each.
        shares = [1, *[factor] * (len(parts) - 1)] if len(parts) == 3 else [factor] * len(parts)
        cut = [_share(part, 0, rank // share, size // share) for part, share in zip(parts, shares, strict=True)]
        if all(piece is not None for piece in cut):
            yield _joined([piece for piece in cut if piece is not None])
    if len(parts) == 1 and parts[0].dim() == 2:
        columns = _share(parts[0], 1, rank, size) if size > 1 else None
        if columns is not None:
            yield columns
        yield _vocabulary_share(parts[0], rank, size)


def _share(tensor: Tensor, dim: int, index: int, count: int) -> Tensor | None:
    return tensor.chunk(count, dim)[index] if tensor.shape[dim] % count == 0 else None


def _vocabulary_share(table: Tensor, rank: int, size: int) -> Tensor:
    """Rows of a rank once the table is padded with zeros to a multiple of 64, or of 64 per rank."""
    unit = _VOCABULARY_PAD
    if -(-len(table) // unit) * unit % size:
        unit *= size
    padded = torch.nn.functional.pad(table, (0, 0, 0, -len(table) % unit))
    return padded.chunk(size)[rank]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def some(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
