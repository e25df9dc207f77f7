"""How large the check is. No torch: the one who asks need not load it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of the random members and of what they do.

    `rows` responses of `prompt` + `response` tokens make an update; `new_tokens` are sampled for as many prompts.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    rows: int
    prompt: int
    response: int
    updates: int
    new_tokens: int
    pack: int
    matmul: int


# About 0.35 billion parameters: large enough to fill a GPU, small enough to build and save in seconds.
FULL = Scale(1024, 24, 16, 8, 3072, 32_000, 64, 128, 896, 3, 256, 16_384, 8_192)
# The same script in a few seconds of a CPU.
SMALL = Scale(64, 2, 4, 2, 192, 300, 8, 8, 24, 2, 12, 256, 256)
