"""Counter-based randomness: a sample's uniforms depend on its own name alone, never on what else is in the batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from server.rollouts.engine import SamplingParams

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# The largest float32 below 1 whose product with a float32 sum still rounds below that sum.
_BELOW_ONE = np.float32(1.0 - 2.0**-23)


def stream_keys(params: SamplingParams, samples: Sequence[tuple[int, int]]) -> NDArray[np.uint64]:
    """One 64-bit key for each (prompt key, index): a hash of (seed, step, member, purpose, prompt key, index)."""
    root = hashlib.blake2b(
        f"{params.seed}\0{params.step}\0{params.member}\0{params.purpose}".encode(), digest_size=16
    ).digest()
    digests = [
        hashlib.blake2b(f"{prompt}\0{index}".encode(), key=root, digest_size=8).digest() for prompt, index in samples
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def uniforms(keys: NDArray[np.uint64], first: int, count: int) -> NDArray[np.float32]:
    """Uniforms [count, len(keys)] in [0, 1) for positions first .. first + count - 1 of each stream (SplitMix64)."""
    with np.errstate(over="ignore"):
        positions = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
        z = keys[None, :] + positions[:, None] * _GAMMA
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z ^= z >> np.uint64(31)
    return np.minimum((z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24), _BELOW_ONE)
