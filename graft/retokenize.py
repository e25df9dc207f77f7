"""A source's response in the receiver's tokens, or a refusal with its reason (METHOD.md part 3).

Text, not ids, crosses between members with different tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from graft.groups import Response

RefusalReason = Literal["too_long", "round_trip", "undecodable", "empty"]

REPLACEMENT_CHARACTER = "\ufffd"


class Fingerprinted(Protocol):
    """What retokenisation needs of a source: its text is in the response."""

    @property
    def fingerprint(self) -> str:
        """Equal exactly for tokenizers that map every text to the same ids."""
        ...


class TextCodec(Fingerprinted, Protocol):
    """What retokenisation needs of a receiver's tokenizer."""

    @property
    def end_id(self) -> int:
        """The id that ends a response."""
        ...

    def encode_text(self, text: str) -> list[int]:
        """Ids of `text` without special tokens added; text that looks like a special token stays text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens and without whitespace clean-up."""
        ...


@dataclass(frozen=True, slots=True)
class Retokenized:
    """The response in the receiver's ids [T], with its end token when the source's response ended by itself."""

    ids: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a response cannot cross. `too_long`: more than the receiver's limit. `undecodable`: the text has bytes that
    are no characters (a multi-byte character cut off). `round_trip`: the receiver's tokenizer does not give the same
    text back. `empty`: there is nothing to give, neither text nor an end."""

    reason: RefusalReason


def retokenize(
    response: Response, source: Fingerprinted, receiver: TextCodec, *, max_tokens: int
) -> Retokenized | Refusal:
    """`response` of the source in the receiver's tokens, at most `max_tokens` of them, the end token included.

    With one tokenizer (equal fingerprints) the sampled ids pass through. A response that does not fit is refused, not
    cut: a cut response has another reward and another probability than the one that was judged.
    """
    if source.fingerprint == receiver.fingerprint:
        if len(response.ids) == 0:
            return Refusal("empty")
        return _within(np.asarray(response.ids, dtype=np.int32), max_tokens)
    if not response.text and not response.finished:
        return Refusal("empty")
    if REPLACEMENT_CHARACTER in response.text:
        return Refusal("undecodable")
    ids = receiver.encode_text(response.text)
    if receiver.decode(ids) != response.text:
        return Refusal("round_trip")
    if response.finished:
        ids = [*ids, receiver.end_id]
    return _within(np.asarray(ids, dtype=np.int32), max_tokens)


def _within(ids: NDArray[np.int32], max_tokens: int) -> Retokenized | Refusal:
    return Retokenized(ids) if len(ids) <= max_tokens else Refusal("too_long")
