"""The member tokenizer: text survives, special tokens are only what the template means, end tokens are complete."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from server.rollouts.tokenizer import MemberTokenizer, end_ids_of
from tests.rollouts.conftest import byte_level_tokenizer, character_tokenizer, metaspace_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("build", [byte_level_tokenizer, metaspace_tokenizer])
@pytest.mark.parametrize(
    "text",
    [
        "the answer is \\boxed{12}",
        " leading and  double   spaces ",
        "no space , before ' punctuation ' n't .",
        "line\n\n\tbreaks\n",
        "snowman ☃ and 🎉",
        "",
    ],
)
def test_text_survives_encoding_and_decoding(build: Callable[[], PreTrainedTokenizerFast], text: str) -> None:
    tokenizer = MemberTokenizer(build())
    ids = tokenizer.encode_text(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_many([ids, [], ids]) == [text, "", text]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (byte_level_tokenizer, "stop <|im_end|> here <|endoftext|>"),
        (metaspace_tokenizer, "stop </s> here <s>"),
    ],
)
def test_text_that_looks_like_a_special_token_stays_text(
    build: Callable[[], PreTrainedTokenizerFast], text: str
) -> None:
    tokenizer = MemberTokenizer(build())
    ids = tokenizer.encode_text(text)
    assert not set(ids) & set(tokenizer.hf.all_special_ids)
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_left_out_of_decoded_text() -> None:
    tokenizer = MemberTokenizer(byte_level_tokenizer())
    assert tokenizer.decode([*tokenizer.encode_text("12"), tokenizer.end_id]) == "12"


def test_prompt_without_template_is_begin_token_and_text() -> None:
    tokenizer = MemberTokenizer(byte_level_tokenizer())
    assert tokenizer.encode_prompt("add") == [tokenizer.hf.bos_token_id, *tokenizer.encode_text("add")]
    with_system = tokenizer.encode_prompt("add", system="think")
    assert with_system == [tokenizer.hf.bos_token_id, *tokenizer.encode_text("think\n\nadd")]


def test_prompt_with_template_is_one_user_message_and_the_generation_prompt() -> None:
    hf = byte_level_tokenizer()
    hf.chat_template = TEMPLATE
    rendered = "<|im_start|>system\nthink<|im_end|>\n<|im_start|>user\nadd<|im_end|>\n<|im_start|>assistant\n"
    assert MemberTokenizer(hf).encode_prompt("add", system="think") == hf.encode(rendered, add_special_tokens=False)


def test_special_token_text_inside_a_chat_prompt_stays_text() -> None:
    hf = byte_level_tokenizer()
    hf.chat_template = TEMPLATE
    tokenizer = MemberTokenizer(hf)
    ids = tokenizer.encode_prompt("a<|im_end|>b", system="<|im_start|>")
    plain = tokenizer.encode_prompt("ab", system="think")
    end, start = hf.convert_tokens_to_ids("<|im_end|>"), hf.convert_tokens_to_ids("<|im_start|>")
    assert (ids.count(end), ids.count(start)) == (plain.count(end), plain.count(start)) == (2, 3)
    assert "a<|im_end|>b" in tokenizer.decode(ids)


def test_template_that_refuses_a_role_is_named() -> None:
    hf = byte_level_tokenizer()
    hf.chat_template = (
        "{{ raise_exception('no system role') if messages[0].role == 'system' }}{{ messages[0].content }}"
    )
    assert MemberTokenizer(hf).encode_prompt("add")
    with pytest.raises(ValueError, match="no system role; leave the system text out"):
        MemberTokenizer(hf).encode_prompt("add", system="think")


def test_missing_end_token_is_one_line_with_the_remedy() -> None:
    hf = character_tokenizer(eos_token=None)
    with pytest.raises(ValueError, match="set `eos_token`") as refusal:
        MemberTokenizer(hf)
    assert "\n" not in str(refusal.value)
    assert MemberTokenizer(hf, generation_end_ids=[2]).end_id == 2


def test_end_tokens_are_the_tokenizers_and_the_generation_configurations() -> None:
    tokenizer = MemberTokenizer(character_tokenizer(), generation_end_ids=[5, 9999])
    assert tokenizer.end_id == 2
    assert tokenizer.end_ids == {2, 5}
    assert end_ids_of(SimpleNamespace(eos_token_id=None)) == ()
    assert end_ids_of(SimpleNamespace(eos_token_id=3)) == (3,)
    assert end_ids_of(SimpleNamespace(eos_token_id=[3, 4])) == (3, 4)


def test_known_ids_stop_where_the_tokenizer_does() -> None:
    known = MemberTokenizer(character_tokenizer(40)).known(48)
    assert known.tolist() == [True] * 40 + [False] * 8
    assert MemberTokenizer(character_tokenizer(40)).known(30).all()


def test_a_gap_in_the_ids_moves_the_limit_but_not_the_size() -> None:
    words = {"<eos>": 0, "a": 1, "b": 4}
    hf = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab=words, merges=[])), eos_token="<eos>")
    tokenizer = MemberTokenizer(hf)
    assert (tokenizer.vocab_size, tokenizer.id_limit) == (3, 5)
    assert tokenizer.known(6).tolist() == [True, True, False, False, True, False]


def test_fingerprint_names_the_tokenizer_and_its_end_tokens() -> None:
    base = MemberTokenizer(character_tokenizer())
    assert MemberTokenizer(character_tokenizer()).fingerprint == base.fingerprint
    used = character_tokenizer()
    used(["ab", "a"], padding=True, truncation=True, max_length=2)
    assert MemberTokenizer(used).fingerprint == base.fingerprint
    others = [character_tokenizer(41), byte_level_tokenizer(), metaspace_tokenizer()]
    prints = {MemberTokenizer(hf).fingerprint for hf in others}
    ends = MemberTokenizer(character_tokenizer(), generation_end_ids=[5]).fingerprint
    assert len({base.fingerprint, ends, *prints}) == 5
