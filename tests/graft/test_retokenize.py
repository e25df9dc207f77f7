"""Text between tokenizers, with small exact codecs."""

from __future__ import annotations

import numpy as np
import pytest

from graft.groups import Response
from graft.retokenize import Refusal, Retokenized, retokenize


class Characters:
    """One id per character, code point + 1; id 0 ends a response."""

    end_id = 0
    fingerprint = "characters"

    def encode_text(self, text):
        return [ord(character) + 1 for character in text]

    def decode(self, ids):
        return "".join(chr(i - 1) for i in ids if i)


class Bytes:
    """One id per UTF-8 byte; id 256 ends a response. A cut character decodes to the replacement character."""

    end_id = 256
    fingerprint = "bytes"

    def encode_text(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(i for i in ids if i < 256).decode(errors="replace")


class Lowercase(Characters):
    """Loses the case of letters."""

    fingerprint = "lowercase"

    def encode_text(self, text):
        return super().encode_text(text.lower())


def response(ids, text, finished=True):
    return Response(np.array(ids, dtype=np.int32), text, np.zeros(len(ids), dtype=np.float32), finished, 0)


def sampled(codec, text, finished=True):
    ids = codec.encode_text(text) + ([codec.end_id] if finished else [])
    return response(ids, text, finished)


@pytest.mark.parametrize("text", ["x = 3", "  spaces\n\nkept ", "naïve 数学 ∑", "<|endoftext|>", "\ufeffmark"])
def test_text_crosses_whole_and_the_end_token_follows_the_source(text):
    for finished in (True, False):
        found = retokenize(sampled(Bytes(), text, finished), Bytes(), Characters(), max_tokens=100)
        assert isinstance(found, Retokenized)
        assert found.ids.dtype == np.int32
        assert found.ids.tolist() == Characters().encode_text(text) + [0] * finished


def test_equal_fingerprints_pass_sampled_ids_through_even_where_encoding_would_differ():
    ids = [5, 900, 7]
    found = retokenize(response(ids, "any text \ufffd"), Bytes(), Bytes(), max_tokens=3)
    assert found.ids.tolist() == ids
    assert retokenize(response(ids, "any"), Bytes(), Bytes(), max_tokens=2) == Refusal("too_long")
    assert retokenize(response([], ""), Bytes(), Bytes(), max_tokens=2) == Refusal("empty")


def test_limit_counts_the_end_token():
    three = sampled(Characters(), "abc")
    assert isinstance(retokenize(three, Characters(), Bytes(), max_tokens=4), Retokenized)
    assert retokenize(three, Characters(), Bytes(), max_tokens=3) == Refusal("too_long")
    cut_off = sampled(Characters(), "abc", finished=False)
    assert isinstance(retokenize(cut_off, Characters(), Bytes(), max_tokens=3), Retokenized)


def test_a_longer_encoding_is_refused_not_cut():
    assert retokenize(sampled(Characters(), "数学"), Characters(), Bytes(), max_tokens=6) == Refusal("too_long")


def test_a_cut_character_is_undecodable():
    ids = list("数".encode())[:2]
    cut = response(ids, Bytes().decode(ids), finished=False)
    assert retokenize(cut, Bytes(), Characters(), max_tokens=10) == Refusal("undecodable")


def test_text_the_receiver_cannot_reproduce_is_refused():
    assert retokenize(sampled(Bytes(), "Answer"), Bytes(), Lowercase(), max_tokens=10) == Refusal("round_trip")
    assert isinstance(retokenize(sampled(Bytes(), "answer"), Bytes(), Lowercase(), max_tokens=10), Retokenized)


def test_an_end_token_alone_crosses_as_the_receivers_end_token():
    crossed = retokenize(response([256], ""), Bytes(), Characters(), max_tokens=10)
    assert isinstance(crossed, Retokenized)
    assert crossed.ids.tolist() == [Characters().end_id]


def test_nothing_at_all_is_empty():
    cut = Response(np.array([], np.int32), "", np.array([], np.float32), False, 0)
    assert retokenize(cut, Bytes(), Characters(), max_tokens=10) == Refusal("empty")
