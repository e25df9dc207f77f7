"""The demo's members: architecture families with a tokenizer each, as ordinary Hugging Face models.

The members of a suite share an alphabet and nothing else: a character tokenizer, a byte-pair one whose pieces take the
space before them, one whose pieces join an operator to the digit after it, and one whose words take the separator after
them. Their vocabularies differ in size and in boundaries, so every exchange between members retokenizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from population.demo.suites import DESIGNS, Family, Suite

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
SPECIAL = [PAD, BOS, EOS]
BOX = "\\boxed{"
MAX_POSITIONS = 128
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


@dataclass(frozen=True, slots=True)
class Size:
    """Width, depth and heads of a member; widths of the feed-forward layers follow from the family."""

    hidden: int
    layers: int
    heads: int


SIZES: Mapping[str, Size] = MappingProxyType({"tiny": Size(64, 3, 4), "large": Size(256, 3, 4)})
"""`tiny` (about 0.16M parameters) is the demo; `large` (about 2.5M) is for measuring speed."""


@cache
def tokenizer_text(suite: Suite) -> tuple[str, ...]:
    """The texts that the tokenizers are trained on; the same for every member of a suite and every seed."""
    return tuple(prompt + response for prompt, response in suite.right_examples(60, 0))


def build_tokenizer(member: str) -> PreTrainedTokenizerFast:
    """The member's tokenizer, trained here on its suite's texts; independent of any seed."""
    pieces = DESIGNS[member].pieces
    texts = tokenizer_text(DESIGNS[member].suite)
    alphabet = sorted(set("".join(texts)))
    if pieces is None:
        core = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(SPECIAL + alphabet)}, merges=[]))
    else:
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), "isolated")
        trainer = trainers.BpeTrainer(
            vocab_size=160, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        )
        core.train_from_iterator([text.replace(BOX, "") for text in texts], trainer)
    core.add_tokens([AddedToken(BOX, normalized=False)])
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )


def build_model(
    member: str,
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    size: Size = SIZES["tiny"],
    initial_std: float = 0.05,
) -> PreTrainedModel:
    """A freshly initialised member in float32; the caller's random state is left as it was.

    `initial_std` is the standard deviation of the first weights: at these widths the usual 0.02 learns more slowly.
    """
    common = {
        "vocab_size": len(tokenizer),
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": initial_std,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _family(DESIGNS[member].family, common, size).float()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
    )
    return model.eval()


def save_member(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes an ordinary model folder: configuration, generation settings, safetensors and tokenizer."""
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]  # safetensors refuses two names for one tensor
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)


def _family(family: Family, common: dict[str, Any], size: Size) -> PreTrainedModel:
    match family:
        case "qwen3":
            return Qwen3ForCausalLM(
                Qwen3Config(
                    **common,
                    intermediate_size=3 * size.hidden,
                    num_key_value_heads=size.heads // 2,
                    head_dim=size.hidden // size.heads,
                    tie_word_embeddings=True,
                )
            )
        case "llama":
            return LlamaForCausalLM(
                LlamaConfig(**common, intermediate_size=3 * size.hidden, num_key_value_heads=size.heads)
            )
        case "neox":
            return GPTNeoXForCausalLM(
                GPTNeoXConfig(
                    **common,
                    intermediate_size=4 * size.hidden,
                    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
                    use_parallel_residual=True,
                    tie_word_embeddings=False,
                )
            )
        case "smollm3":
            return SmolLM3ForCausalLM(
                SmolLM3Config(
                    **common,
                    intermediate_size=3 * size.hidden,
                    num_key_value_heads=size.heads // 2,
                    no_rope_layers=[1] * (size.layers - 1) + [0],  # the family's layer without positions, the last one
                    tie_word_embeddings=True,
                )
            )
