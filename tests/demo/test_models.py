"""The members as Hugging Face models: a family and a tokenizer each, and folders that load as any other."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from population.demo.models import SIZES, build_model, build_tokenizer, save_member
from population.demo.suites import DESIGNS, SUITES, Suite

WITH_GYM = find_spec("reasoning_gym") is not None
NAMES = [name for name in DESIGNS if WITH_GYM or not name.startswith("gym-")]
TOKENIZERS = {member: build_tokenizer(member) for member in NAMES}
EXPECTED = {"": {"qwen3": 40, "llama": 101, "neox": 108}, "gym-": {"qwen3": 40, "llama": 79, "neox": 83, "smollm3": 71}}


def members_of(prefix: str) -> list[str]:
    """The members of a suite; the test is skipped where the suite's package is missing."""
    found = [name for name in NAMES if DESIGNS[name].suite is SUITES[prefix]]
    return found or pytest.skip("needs the extra gym")


@pytest.fixture(params=NAMES)
def member(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def suite(member: str) -> Suite:
    return DESIGNS[member].suite


@pytest.fixture
def tokenizer(member: str) -> PreTrainedTokenizerFast:
    return TOKENIZERS[member]


def test_a_tokenizer_round_trips_every_text_of_every_corpus(suite: Suite, tokenizer: PreTrainedTokenizerFast) -> None:
    families = [design.family for design in DESIGNS.values() if design.suite is suite]
    texts = {text for family in families for pair in suite.examples(family, 1000, 0) for text in pair}
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


def test_a_response_after_its_prompt_has_the_ids_it_has_alone(suite: Suite, tokenizer: PreTrainedTokenizerFast) -> None:
    for prompt, response in suite.examples("llama", 500, 0):
        apart = tokenizer.encode(prompt, add_special_tokens=False) + tokenizer.encode(
            response, add_special_tokens=False
        )
        assert tokenizer.encode(prompt + response, add_special_tokens=False) == apart


@pytest.mark.parametrize(
    ("prefix", "text"),
    [("", "min 4 1 7 2: 1:1,7:1,2:1 so \\boxed{1}"), ("gym-", "turn 90 98/25: 29/58 so \\boxed{2958}")],
)
def test_the_tokenizers_of_a_suite_cut_the_same_text_differently(prefix: str, text: str) -> None:
    members = members_of(prefix)
    pieces = {member: TOKENIZERS[member].tokenize(text) for member in members}
    for one, other in combinations(members, 2):
        assert pieces[one] != pieces[other]
        assert TOKENIZERS[one].get_vocab() != TOKENIZERS[other].get_vocab()
    assert {DESIGNS[member].family: len(TOKENIZERS[member]) for member in members} == EXPECTED[prefix]


def test_building_a_tokenizer_again_gives_the_same_one(member: str) -> None:
    assert build_tokenizer(member).backend_tokenizer.to_str() == TOKENIZERS[member].backend_tokenizer.to_str()


def test_a_saved_member_loads_as_any_other_model(member: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("prefix", SUITES)
def test_members_of_a_suite_are_of_different_families_and_of_the_sizes_they_claim(prefix: str) -> None:
    models = {member: build_model(member, TOKENIZERS[member], seed=0) for member in members_of(prefix)}
    assert len({model.config.model_type for model in models.values()}) == len(models) == len(EXPECTED[prefix])
    for member, model in models.items():
        large = build_model(member, TOKENIZERS[member], seed=0, size=SIZES["large"])
        assert 0.14e6 < model.num_parameters() < 0.19e6
        assert 2.2e6 < large.num_parameters() < 2.8e6
        assert model.config.vocab_size == len(TOKENIZERS[member])


def test_building_a_model_depends_on_its_seed_and_leaves_the_random_state_alone(member: str) -> None:
    torch.manual_seed(7)
    state = torch.random.get_rng_state()
    one, same, other = (build_model(member, TOKENIZERS[member], seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
