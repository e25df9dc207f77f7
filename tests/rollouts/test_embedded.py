"""What the embedded engine samples: right log-probabilities, reproducible rows, every stop condition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from server.rollouts.embedded import EmbeddedEngine
from server.rollouts.engine import EngineError, Sample, SamplingParams, TokenPrompt
from server.rollouts.tokenizer import MemberTokenizer
from tests.rollouts.conftest import FAMILIES, VOCABULARY, character_tokenizer, tiny_model

PARAMS = SamplingParams(n=3, max_new_tokens=12, seed=5, step=2, member="m")


def flat(groups: list[list[Sample]]) -> list[Sample]:
    return [sample for group in groups for sample in group]


def content(samples: list[Sample]) -> list[tuple[int, int, list[int], str]]:
    return [(s.prompt, s.index, s.ids.tolist(), s.finish) for s in samples]


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_the_full_forward(
    family: str,
    temperature: float,
    tokenizer: MemberTokenizer,
    prompts: list[TokenPrompt],
    own_logprobs: Callable[..., torch.Tensor],
) -> None:
    model = tiny_model(family)
    engine = EmbeddedEngine(model, tokenizer)
    assert engine.exact_logprobs
    groups = engine.sample(prompts, replace(PARAMS, temperature=temperature))
    assert [(s.prompt, s.index) for s in flat(groups)] == [(p.key, i) for p in prompts for i in range(3)]
    for prompt, group in zip(prompts, groups, strict=True):
        for sample in group:
            expected = own_logprobs(model, prompt.ids, sample.ids, temperature)
            np.testing.assert_allclose(sample.logprobs, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "mistral", "bloom"])
def test_a_sample_is_the_same_alone_in_any_batch_and_in_any_split(
    family: str, tokenizer: MemberTokenizer, prompts: list[TokenPrompt]
) -> None:
    model = tiny_model(family)
    whole = EmbeddedEngine(model, tokenizer).sample(prompts, PARAMS)
    for rows in (1, 2, 7):
        assert content(flat(EmbeddedEngine(model, tokenizer, max_batch_rows=rows).sample(prompts, PARAMS))) == content(
            flat(whole)
        )
    backwards = EmbeddedEngine(model, tokenizer).sample(prompts[::-1], PARAMS)
    assert content(flat(backwards[::-1])) == content(flat(whole))
    alone = EmbeddedEngine(model, tokenizer).sample(prompts[2:3], replace(PARAMS, n=1))
    assert content(alone[0]) == content(whole[2][:1])


def test_every_part_of_the_key_changes_the_sample(tokenizer: MemberTokenizer, prompts: list[TokenPrompt]) -> None:
    engine = EmbeddedEngine(tiny_model("llama"), tokenizer)
    variants = [
        PARAMS,
        replace(PARAMS, seed=6),
        replace(PARAMS, step=3),
        replace(PARAMS, member="other"),
        replace(PARAMS, purpose="evaluation"),
    ]
    texts = {tuple(s.text for s in flat(engine.sample(prompts, params))) for params in variants}
    rekeyed = [TokenPrompt(p.key + 1000, p.ids) for p in prompts]
    texts.add(tuple(s.text for s in flat(engine.sample(rekeyed, PARAMS))))
    assert len(texts) == len(variants) + 1
    assert len({s.text for s in engine.sample(prompts[:1], replace(PARAMS, n=6))[0]}) > 1


def test_first_tokens_follow_the_softmax(tokenizer: MemberTokenizer) -> None:
    model = tiny_model("llama", initializer_range=0.1)
    prompt = TokenPrompt(1, (1, 8, 9))
    count = 6000
    params = SamplingParams(n=count, max_new_tokens=1, temperature=0.8)
    samples = EmbeddedEngine(model, tokenizer, max_batch_rows=2000).sample([prompt], params)[0]
    drawn = np.bincount([int(s.ids[0]) for s in samples], minlength=VOCABULARY)
    with torch.no_grad():
        wanted = (model(torch.tensor([prompt.ids])).logits[0, -1] / 0.8).softmax(-1).numpy() * count
    chi_square = float(((drawn - wanted) ** 2 / wanted).sum())
    # 39 degrees of freedom: 72.1 is exceeded with probability 0.001, and the draw is fixed by its key.
    assert wanted.min() > 5
    assert chi_square < 72.1


def test_ids_the_tokenizer_lacks_are_never_sampled(
    prompts: list[TokenPrompt], own_logprobs: Callable[..., torch.Tensor]
) -> None:
    small = [TokenPrompt(p.key, tuple(i % 10 for i in p.ids)) for p in prompts]
    model = tiny_model("llama")
    engine = EmbeddedEngine(model, MemberTokenizer(character_tokenizer(10)))
    groups = engine.sample(small, replace(PARAMS, n=20))
    assert max(int(s.ids.max()) for s in flat(groups)) == 9
    sample = groups[1][4]
    expected = own_logprobs(model, small[1].ids, sample.ids, 1.0, 10)
    np.testing.assert_allclose(sample.logprobs, expected.numpy(), atol=1e-4)


def test_a_hole_in_the_tokenizers_ids_is_never_sampled(prompts: list[TokenPrompt]) -> None:
    hf = character_tokenizer()
    tokenizer = MemberTokenizer(hf)
    tokenizer._ids = frozenset(range(VOCABULARY)) - {17}
    samples = flat(EmbeddedEngine(tiny_model("llama"), tokenizer).sample(prompts, replace(PARAMS, n=40)))
    drawn = {int(i) for s in samples for i in s.ids}
    assert 17 not in drawn
    assert {16, 18} <= drawn


def test_any_of_several_end_tokens_stops_and_belongs_to_the_response(prompts: list[TokenPrompt]) -> None:
    tokenizer = MemberTokenizer(character_tokenizer(), generation_end_ids=[2, 5, 6])
    samples = flat(EmbeddedEngine(tiny_model("neox"), tokenizer).sample(prompts, replace(PARAMS, n=12)))
    stopped = [s for s in samples if s.finish == "stop"]
    cut = [s for s in samples if s.finish == "length"]
    assert {int(s.ids[-1]) for s in stopped} == {2, 5, 6}
    assert all(not set(s.ids[:-1].tolist()) & {2, 5, 6} for s in stopped)
    assert cut
    assert all(len(s.ids) == 12 and not set(s.ids.tolist()) & {2, 5, 6} for s in cut)
    assert all(len(s.ids) == len(s.logprobs) for s in samples)
    assert all(s.ids.dtype == np.int32 and s.logprobs.dtype == np.float32 for s in samples)


def test_text_leaves_special_tokens_out(prompts: list[TokenPrompt], tokenizer: MemberTokenizer) -> None:
    for sample in flat(EmbeddedEngine(tiny_model("phi"), tokenizer).sample(prompts, PARAMS)):
        assert sample.text == "".join(chr(ord("a") + i - 3) for i in sample.ids.tolist() if i > 2)


def test_padding_with_the_end_token_changes_nothing(prompts: list[TokenPrompt]) -> None:
    model, padded_by_end = tiny_model("llama"), tiny_model("llama", pad_token_id=2)
    padded_by_end.load_state_dict(model.state_dict())
    plain = EmbeddedEngine(model, MemberTokenizer(character_tokenizer())).sample(prompts, PARAMS)
    same = EmbeddedEngine(padded_by_end, MemberTokenizer(character_tokenizer(pad="<eos>"))).sample(prompts, PARAMS)
    assert [s.ids.tolist() for s in flat(plain)] == [s.ids.tolist() for s in flat(same)]
    for a, b in zip(flat(plain), flat(same), strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-6)
    # A padding token that was sampled is a token like any other.
    assert any(0 in s.ids for s in flat(plain))


def test_temperature_zero_takes_the_likeliest_token(tokenizer: MemberTokenizer, prompts: list[TokenPrompt]) -> None:
    model = tiny_model("qwen3")
    for prompt, group in zip(
        prompts, EmbeddedEngine(model, tokenizer).sample(prompts, replace(PARAMS, temperature=0.0)), strict=True
    ):
        ids = torch.tensor([*prompt.ids, *group[0].ids.tolist()])
        with torch.no_grad():
            best = model(ids[None]).logits[0, len(prompt.ids) - 1 : -1].argmax(-1)
        assert best.tolist() == group[0].ids.tolist() == group[1].ids.tolist()


@pytest.mark.parametrize("change", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 4, "top_p": 0.7}])
def test_truncated_sampling_keeps_the_likely_tokens_and_untruncated_logprobs(
    change: dict[str, float],
    tokenizer: MemberTokenizer,
    prompts: list[TokenPrompt],
    own_logprobs: Callable[..., torch.Tensor],
) -> None:
    model = tiny_model("llama")
    params = replace(PARAMS, n=50, max_new_tokens=1, **change)  # type: ignore[arg-type]
    groups = EmbeddedEngine(model, tokenizer).sample(prompts, params)
    for prompt, group in zip(prompts, groups, strict=True):
        with torch.no_grad():
            weights, order = model(torch.tensor([prompt.ids])).logits[0, -1].softmax(-1).sort(descending=True)
        allowed = order[weights.cumsum(-1) - weights < params.top_p][: params.top_k or None].tolist()
        assert {int(s.ids[0]) for s in group} <= set(allowed)
        expected = own_logprobs(model, prompt.ids, group[0].ids, 1.0)
        np.testing.assert_allclose(group[0].logprobs, expected.numpy(), atol=1e-4)


def test_long_responses_outgrow_the_first_buffer(
    tokenizer: MemberTokenizer, prompts: list[TokenPrompt], own_logprobs: Callable[..., torch.Tensor]
) -> None:
    tokenizer.end_ids = frozenset()
    model = tiny_model("llama", max_position_embeddings=256)
    sample = EmbeddedEngine(model, tokenizer).sample(prompts, replace(PARAMS, n=2, max_new_tokens=150))[3][1]
    assert len(sample.ids) == 150
    expected = own_logprobs(model, prompts[3].ids, sample.ids, 1.0)
    np.testing.assert_allclose(sample.logprobs, expected.numpy(), atol=1e-4)


def test_half_precision_logprobs_are_close_and_not_called_exact(
    tokenizer: MemberTokenizer, prompts: list[TokenPrompt], own_logprobs: Callable[..., torch.Tensor]
) -> None:
    model = tiny_model("qwen3").to(torch.bfloat16)
    engine = EmbeddedEngine(model, tokenizer)
    assert not engine.exact_logprobs
    sample = engine.sample(prompts, PARAMS)[1][0]
    expected = own_logprobs(model, prompts[1].ids, sample.ids, 1.0)
    assert float(np.abs(sample.logprobs - expected.numpy()).mean()) < 0.1


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        (TokenPrompt(77, ()), "prompt 77 is empty"),
        (TokenPrompt(77, (1, VOCABULARY)), "prompt 77 has token ids outside"),
        (TokenPrompt(77, (1, -1)), "prompt 77 has token ids outside"),
        (TokenPrompt(77, (1,) * 90), "prompt 77: 90 prompt tokens and 12 new ones exceed the model's 96 positions"),
    ],
)
def test_impossible_prompts_are_refused_by_key(prompt: TokenPrompt, word: str, tokenizer: MemberTokenizer) -> None:
    engine = EmbeddedEngine(tiny_model("llama"), tokenizer)
    with pytest.raises(EngineError, match=word):
        engine.sample([TokenPrompt(1, (1, 3)), prompt], PARAMS)


def test_no_prompts_give_no_samples_and_a_closed_engine_says_so(tokenizer: MemberTokenizer) -> None:
    engine = EmbeddedEngine(tiny_model("llama"), tokenizer)
    assert engine.sample([], PARAMS) == []
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.sample([], PARAMS)


def test_damaged_weights_are_reported_not_sampled(tokenizer: MemberTokenizer, prompts: list[TokenPrompt]) -> None:
    model = tiny_model("llama")
    engine = EmbeddedEngine(model, tokenizer)
    with torch.no_grad():
        model.lm_head.weight[3, 0] = float("nan")
    with pytest.raises(EngineError, match="non-finite"):
        engine.sample(prompts, PARAMS)
