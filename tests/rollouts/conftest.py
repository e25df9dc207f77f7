"""Tiny random models of many families and tokenizers built on the spot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from server.rollouts.engine import TokenPrompt
from server.rollouts.tokenizer import MemberTokenizer

VOCABULARY = 40
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True}),
    "llama": ("Llama", {"num_key_value_heads": 4}),
    "neox": ("GPTNeoX", {"rotary_pct": 0.5}),
    "smollm3": ("SmolLM3", {"num_key_value_heads": 2, "no_rope_layers": [1, 0]}),
    "gemma": ("Gemma", {"num_key_value_heads": 1, "head_dim": 8}),
    "gemma2": ("Gemma2", {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16}),
    "phi": ("Phi", {"partial_rotary_factor": 0.5}),
    "olmo": ("Olmo", {}),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6}),
    "gpt2": ("GPT2", {}),
    "bloom": ("Bloom", {}),
}
_HEADS = {"gpt2": "GPT2LMHeadModel"}
FAMILIES = tuple(_FAMILIES)


def tiny_model(family: str, **changes: Any) -> PreTrainedModel:
    """A random model whose weights are large enough for context to matter."""
    name, special = _FAMILIES[family]
    torch.manual_seed(7)
    config = getattr(transformers, f"{name}Config")(**{**_SHAPE, **special, **changes})
    model = getattr(transformers, _HEADS.get(family, f"{name}ForCausalLM"))(config)
    return model.eval()


def character_tokenizer(size: int = VOCABULARY, *, pad: str = "<pad>", **special: Any) -> PreTrainedTokenizerFast:
    """One character a token: <pad> <bos> <eos> and then a, b, c and so on."""
    words = ["<pad>", "<bos>", "<eos>", *(chr(ord("a") + i) for i in range(size - 3))]
    backend = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{"pad_token": pad, "bos_token": "<bos>", "eos_token": "<eos>", **special}
    )


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """GPT-2's kind: bytes and merges, a leading space belongs to the word."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the answer is \\boxed{12}", "add the two numbers"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", bos_token="<|endoftext|>")


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    """SentencePiece's kind: a space is the mark ▁, unknown characters fall back to bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"theanswr is1234567890\\{}box"]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    vocabulary.pop(" ", None)
    vocabulary = {piece: i for i, piece in enumerate(vocabulary)}
    vocabulary |= {"▁t": len(vocabulary), "he": len(vocabulary) + 1, "▁the": len(vocabulary) + 2}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@pytest.fixture
def tokenizer() -> MemberTokenizer:
    """The character tokenizer of `VOCABULARY` tokens."""
    return MemberTokenizer(character_tokenizer())


@pytest.fixture
def prompts() -> list[TokenPrompt]:
    """Five prompts of different lengths."""
    lengths = (4, 7, 3, 9, 5)
    generator = torch.Generator().manual_seed(3)
    return [
        TokenPrompt(100 + k, (1, *torch.randint(3, VOCABULARY, (n - 1,), generator=generator).tolist()))
        for k, n in enumerate(lengths)
    ]


@pytest.fixture
def own_logprobs() -> Callable[..., torch.Tensor]:
    """(model, prompt ids, response ids, temperature, known ids) -> log-probabilities by one unpadded full forward."""

    def compute(
        model: PreTrainedModel, prompt: tuple[int, ...], response: Any, temperature: float, known: int | None = None
    ) -> torch.Tensor:
        ids = torch.tensor([*prompt, *(int(i) for i in response)])
        with torch.no_grad():
            logits = model(input_ids=ids[None], use_cache=False).logits[0, len(prompt) - 1 : -1, :known].float()
        return (logits / temperature).log_softmax(-1).gather(1, ids[len(prompt) :, None]).squeeze(1)

    return compute
