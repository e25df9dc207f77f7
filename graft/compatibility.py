"""How much a receiver's policy agrees with a source's response: s, the gate, and edge rates (paper eq. 6-8)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Normaliser = Literal["own", "bytes", "reference"]

MAX_LOG_RATIO = 20.0
# An edge that admits nothing for long keeps a positive rate: it can be chosen again and can recover.
MIN_EDGE_RATE = 1e-6


def compatibility(receiver_logprobs: ArrayLike, source_logprobs: ArrayLike) -> float:
    """s = exp(mean log pi_receiver - mean log pi_source) of one response (paper eq. 6-7).

    Both are 1-D log-probs in nats under each model's theta_old, of any lengths > 0: the receiver's on its own
    tokenisation of the text, the source's on its sampled tokens. Each mean is over its own token count.
    The log-ratio is clamped to +-20. Raises ValueError for empty, non-vector or NaN input.
    """
    return normalised_compatibility(receiver_logprobs, source_logprobs)


def normalised_compatibility(
    receiver_logprobs: ArrayLike,
    source_logprobs: ArrayLike,
    *,
    normaliser: Normaliser = "own",
    text_bytes: int = 0,
    bytes_per_token: float | None = None,
) -> float:
    """s under one of three normalisers, which differ only where the token counts do.

    `own`: the paper's, each mean over the model's own tokens. `bytes`: exp((sum_R - sum_S) / text_bytes), with
    `text_bytes` the UTF-8 length of the response text. `reference`: the same times `bytes_per_token`, the population's
    mean bytes per token, which puts s on the paper's per-token scale. Raises ValueError for bad or missing input.
    """
    receiver = _logprobs(receiver_logprobs, "receiver")
    source = _logprobs(source_logprobs, "source")
    return compatibility_of_sums(
        (float(receiver.sum()), receiver.size),
        (float(source.sum()), source.size),
        normaliser=normaliser,
        text_bytes=text_bytes,
        bytes_per_token=bytes_per_token,
    )


def compatibility_of_sums(
    receiver: tuple[float, int],
    source: tuple[float, int],
    *,
    normaliser: Normaliser = "own",
    text_bytes: int = 0,
    bytes_per_token: float | None = None,
) -> float:
    """s from what a record keeps of a response: (sum of log-probs in nats, tokens > 0) of each side."""
    if normaliser == "own":
        log_ratio = receiver[0] / receiver[1] - source[0] / source[1]
    elif normaliser in ("bytes", "reference"):
        if text_bytes <= 0:
            raise ValueError(f"normaliser {normaliser!r} needs the text's UTF-8 length, got text_bytes={text_bytes}")
        log_ratio = (receiver[0] - source[0]) / text_bytes
        if normaliser == "reference":
            if bytes_per_token is None or bytes_per_token <= 0:
                raise ValueError(f"normaliser 'reference' needs bytes_per_token > 0, got {bytes_per_token}")
            log_ratio *= bytes_per_token
    else:
        raise ValueError(f"normaliser must be 'own', 'bytes' or 'reference', got {normaliser!r}")
    return math.exp(min(max(log_ratio, -MAX_LOG_RATIO), MAX_LOG_RATIO))


def mean_bytes_per_token(responses: Iterable[tuple[str, int]]) -> float:
    """Scale of the `reference` normaliser: UTF-8 bytes over tokens of responses (text, tokens), at least one token."""
    sizes = [(len(text.encode()), tokens) for text, tokens in responses]
    return max(sum(size for size, _ in sizes), 1) / sum(tokens for _, tokens in sizes)


def _logprobs(values: ArrayLike, owner: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"the {owner}'s log-probs must be a non-empty vector, got shape {array.shape}")
    if np.isnan(array).any() or (array == np.inf).any() or (owner == "source" and (array == -np.inf).any()):
        raise ValueError(f"the {owner}'s log-probs must be finite, got {array[~np.isfinite(array)]}")
    return array


def admission_weight(s: float, floor: float = 0.8) -> float:
    """Gate w = 1[s > floor] * min(s, 1) (paper eq. 8); strict, so s equal to the floor is refused. 0.0 = refused."""
    return min(s, 1.0) if s > floor else 0.0


def updated_edge_rate(rate: float, mean_weight: float, *, decay: float = 0.9) -> float:
    """The edge's running mean admitted weight g after a step in which the edge was used.

    `mean_weight` is the mean of w over all responses routed on the edge in this step, refused ones counting 0.
    g starts at 1 and stays in (0, 1]: never quite 0, so that an edge which admitted nothing can still recover.
    """
    if not 0.0 <= mean_weight <= 1.0:
        raise ValueError(f"a mean admission weight lies in [0, 1], got {mean_weight}")
    return max(MIN_EDGE_RATE, decay * rate + (1.0 - decay) * mean_weight)
