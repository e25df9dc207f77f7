"""A task that models with random weights solve now and then: a quarter of all responses is right, whatever they say."""

from __future__ import annotations

import zlib


def score(prompt: str, response: str, answer: str) -> float:
    return float(zlib.crc32((prompt + response).encode()) % 4 == 0)
