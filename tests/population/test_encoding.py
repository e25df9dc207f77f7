"""Prompts are encoded and measured before a run begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from population.encoding import encode_for_all, encode_prompts
from population.errors import DataError
from population.prompts import Problem, problem_key


class Letters:
    """One id per letter; refuses what its template cannot take."""

    def encode_prompt(self, text: str) -> list[int]:
        if "!" in text:
            raise ValueError("chat template of 'letters' refused the prompt")
        return [ord(letter) for letter in text]


def problems(texts: Sequence[str]) -> list[Problem]:
    return [Problem(problem_key("d", text, "1"), text, "1", "d") for text in texts]


def encoded(texts: Sequence[str], max_tokens: int = 5, positions: int | None = None) -> Any:
    return encode_prompts("a", Letters(), problems(texts), max_tokens=max_tokens, positions=positions)  # type: ignore[arg-type]


def test_every_prompt_has_its_ids_by_key() -> None:
    assert encoded(["ab", "c"]) == {problem_key("d", "ab", "1"): (97, 98), problem_key("d", "c", "1"): (99,)}


def test_too_long_prompts_are_counted_and_the_longest_named_with_the_remedy() -> None:
    with pytest.raises(
        DataError, match=r"member 'a': 2 prompts have more than 5 tokens: 'abcdefgh' has 8; 'abcdef' has 6"
    ) as error:
        encoded(["abcdef", "ab", "abcdefgh"])
    assert "raise rollouts.max_prompt_tokens" in str(error.value)


def test_a_models_positions_leave_room_for_the_longest_response() -> None:
    tokenizers: Any = {"a": Letters()}
    with pytest.raises(DataError, match=r"more than 3 tokens.*lower rollouts.max_response_tokens"):
        encode_for_all(tokenizers, {"a": 10}, problems(["abcd"]), max_prompt_tokens=5, max_response_tokens=7)
    with pytest.raises(
        DataError, match=r"max_response_tokens = 12 leaves no room for a prompt in the model's 10 positions"
    ):
        encode_for_all(tokenizers, {"a": 10}, problems(["a"]), max_prompt_tokens=5, max_response_tokens=12)
    assert encode_for_all(tokenizers, {"a": None}, problems(["abcd"]), max_prompt_tokens=5, max_response_tokens=7)


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="has no tokens; its folder holds no usable tokenizer"):
        encoded([""])


def test_a_prompt_that_the_chat_template_refuses_is_named() -> None:
    with pytest.raises(DataError, match=r"member 'a': prompt 'no!': chat template"):
        encoded(["no!"])
