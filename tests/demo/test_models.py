"""The members as Hugging Face models: three families, three tokenizers, and folders that load as any other."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from population.demo import corpus
from population.demo.models import MEMBERS, SIZES, Member, build_model, build_tokenizer, save_member

TOKENIZERS = {member: build_tokenizer(member) for member in MEMBERS}


@pytest.fixture(params=MEMBERS)
def member(request: pytest.FixtureRequest) -> Member:
    return request.param


@pytest.fixture
def tokenizer(member: Member) -> PreTrainedTokenizerFast:
    return TOKENIZERS[member]


def test_a_tokenizer_round_trips_every_text_of_every_corpus(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = {text for name in MEMBERS for pair in corpus.examples(name, 2000, seed=0) for text in pair}
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=True) == text


def test_the_box_is_one_token_that_decoding_keeps(tokenizer: PreTrainedTokenizerFast) -> None:
    box = tokenizer.encode("\\boxed{", add_special_tokens=False)
    assert len(box) == 1
    assert tokenizer.decode(box, skip_special_tokens=True) == "\\boxed{"


def test_a_chat_of_one_message_is_bos_and_its_content(tokenizer: PreTrainedTokenizerFast) -> None:
    chat = [{"role": "user", "content": "mirror 4 1 7?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<bos>mirror 4 1 7?"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == [tokenizer.bos_token_id, *tokenizer.encode("mirror 4 1 7?", add_special_tokens=False)]


def test_a_response_after_its_prompt_has_the_ids_it_has_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    for prompt, response in corpus.examples("llama", 500, seed=0):
        apart = tokenizer.encode(prompt, add_special_tokens=False) + tokenizer.encode(
            response, add_special_tokens=False
        )
        assert tokenizer.encode(prompt + response, add_special_tokens=False) == apart


def test_the_tokenizers_cut_the_same_text_differently() -> None:
    text = "min 4 1 7 2: 1:1,7:1,2:1 so \\boxed{1}"
    pieces = {member: TOKENIZERS[member].tokenize(text) for member in MEMBERS}
    for one, other in combinations(MEMBERS, 2):
        assert pieces[one] != pieces[other]
        assert TOKENIZERS[one].get_vocab() != TOKENIZERS[other].get_vocab()
    assert [len(TOKENIZERS[member]) for member in MEMBERS] == [40, 101, 108]


def test_building_a_tokenizer_again_gives_the_same_one(member: Member) -> None:
    assert build_tokenizer(member).backend_tokenizer.to_str() == TOKENIZERS[member].backend_tokenizer.to_str()


def test_a_saved_member_loads_as_any_other_model(member: Member, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[member]
    model = build_model(member, tokenizer, seed=1)
    save_member(tmp_path, model, tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    ids = torch.tensor([tokenizer.encode("rank 9 8 1?sort 9 8 1: ")])
    assert type(loaded) is type(model)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.generation_config.eos_token_id == again.eos_token_id == tokenizer.eos_token_id
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert again.chat_template == tokenizer.chat_template
    assert (again.bos_token, again.eos_token, again.pad_token) == ("<bos>", "<eos>", "<pad>")


def test_members_are_of_three_families_and_of_the_sizes_they_claim() -> None:
    models = {member: build_model(member, TOKENIZERS[member], seed=0) for member in MEMBERS}
    assert {model.config.model_type for model in models.values()} == {"qwen3", "llama", "gpt_neox"}
    for member, model in models.items():
        large = build_model(member, TOKENIZERS[member], seed=0, size=SIZES["large"])
        assert 0.14e6 < model.num_parameters() < 0.19e6
        assert 2.2e6 < large.num_parameters() < 2.8e6
        assert model.config.vocab_size == len(TOKENIZERS[member])


def test_building_a_model_depends_on_its_seed_and_leaves_the_random_state_alone(member: Member) -> None:
    torch.manual_seed(7)
    state = torch.random.get_rng_state()
    one, same, other = (build_model(member, TOKENIZERS[member], seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
