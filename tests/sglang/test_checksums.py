"""What a server says it holds, told apart from anything else by one bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from server.rollouts.sglang_checksums import Comparison, byte_hash, compare, hash_of, word_hash

# From SGLang 0.5.23: /weights_checker on a CPU, and its Triton kernel (run by Triton's interpreter) for GPU memory.
WORDS = {
    (torch.float32, 10): "fd6e50cdc156d5bd",
    (torch.bfloat16, 7): "daf178bbd32ecd3d",
    (torch.float32, 8192): "e0752f4e0ec80852",
    (torch.float32, 20000): "1f71cb9b954a45b0",
    (torch.bfloat16, 100001): "09c57da9fe93d03f",
}


def numbers(dtype: torch.dtype, count: int) -> Tensor:
    return (torch.arange(count, dtype=torch.float32) / 7 - 3).to(dtype)


@pytest.mark.parametrize(("dtype", "count"), list(WORDS))
def test_the_hash_of_gpu_memory_is_sglangs(dtype: torch.dtype, count: int) -> None:
    assert word_hash(numbers(dtype, count)) == WORDS[dtype, count]


def test_the_hash_of_cpu_memory_is_sglangs() -> None:
    # A norm's 64 ones, and 64 zeros of a bias, as a server of the demo's GPT-NeoX said of them.
    assert byte_hash(torch.ones(64)) == "2f20cd03c9cd392a"
    assert byte_hash(torch.zeros(64)) == "5341e6b2646979a7"
    assert byte_hash(torch.ones(8, 8).T) == "2f20cd03c9cd392a"


def test_hashes_of_nothing_exist() -> None:
    assert word_hash(torch.zeros(0)) == "0" * 16
    assert byte_hash(torch.zeros(0)) == "e3b0c44298fc1c14"
    assert hash_of("cpu") is byte_hash
    assert hash_of("cuda") is word_hash


def weights(*, tied: bool = True) -> dict[str, Tensor]:
    """A layer as transformers names it: 4 heads, 2 of them for keys and values, 100 rows of vocabulary."""
    torch.manual_seed(0)
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (100, 16),
        f"{layer}self_attn.q_proj.weight": (16, 16),
        f"{layer}self_attn.k_proj.weight": (8, 16),
        f"{layer}self_attn.v_proj.weight": (8, 16),
        f"{layer}self_attn.o_proj.weight": (16, 16),
        f"{layer}mlp.gate_proj.weight": (48, 16),
        f"{layer}mlp.up_proj.weight": (48, 16),
        f"{layer}mlp.down_proj.weight": (16, 48),
        f"{layer}input_layernorm.weight": (16,),
        "model.norm.weight": (16,),
    }
    if not tied:
        shapes["lm_head.weight"] = (100, 16)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def rank_of(sent: dict[str, Tensor], rank: int = 0, size: int = 1, hash_tensor: Any = byte_hash) -> dict[str, Any]:
    """What a server's rank says: fused, padded to 64 rows or a multiple, cut as SGLang cuts two key heads."""
    layer = "model.layers.0."

    def rows(tensor: Tensor, ranks: int = size) -> Tensor:
        return tensor.chunk(ranks)[rank * ranks // size]

    def vocabulary(table: Tensor) -> Tensor:
        return torch.cat([table, torch.zeros(-len(table) % 64, table.shape[1])]).chunk(size)[rank]

    projections = [sent[f"{layer}self_attn.{part}_proj.weight"] for part in "qkv"]
    held = {
        "model.embed_tokens.weight": vocabulary(sent["model.embed_tokens.weight"]),
        f"{layer}self_attn.qkv_proj.weight": torch.cat(
            [rows(projections[0]), *(rows(part, min(size, 2)) for part in projections[1:])]
        ),
        f"{layer}self_attn.o_proj.weight": sent[f"{layer}self_attn.o_proj.weight"].chunk(size, 1)[rank],
        f"{layer}mlp.gate_up_proj.weight": torch.cat(
            [rows(sent[f"{layer}mlp.gate_proj.weight"]), rows(sent[f"{layer}mlp.up_proj.weight"])]
        ),
        f"{layer}mlp.down_proj.weight": sent[f"{layer}mlp.down_proj.weight"].chunk(size, 1)[rank],
        f"{layer}input_layernorm.weight": sent[f"{layer}input_layernorm.weight"],
        "model.norm.weight": sent["model.norm.weight"],
    }
    if "lm_head.weight" in sent:
        held["lm_head.weight"] = vocabulary(sent["lm_head.weight"])
    return {
        "checksums": {name: hash_tensor(tensor) for name, tensor in held.items()},
        "parallelism_info": [{"role": "target", "tp_rank": rank, "tp_size": size}],
    }


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("hash_tensor", [byte_hash, word_hash])
def test_fused_padded_and_divided_weights_are_recognised(tied: bool, size: int, hash_tensor: Any) -> None:
    sent = weights(tied=tied)
    ranks = [rank_of(sent, rank, size, hash_tensor) for rank in range(size)]
    found = compare(ranks, sent, hash_tensor)
    assert found.equal, found
    assert found.compared == sum(len(rank["checksums"]) for rank in ranks)


@pytest.mark.parametrize("name", list(weights(tied=False)))
@pytest.mark.parametrize("size", [1, 2])
def test_one_flipped_bit_anywhere_is_found_and_the_tensor_named(name: str, size: int) -> None:
    sent = weights(tied=False)
    spoiled = {key: tensor.clone() for key, tensor in sent.items()}
    spoiled[name].view(torch.int32).view(-1)[-1] ^= 1
    found = compare([rank_of(spoiled, rank, size) for rank in range(size)], sent, byte_hash)
    part = name.rsplit(".", 2)[1]
    fused = (
        "qkv_proj" if part[:2] in ("q_", "k_", "v_") else "gate_up_proj" if part in ("gate_proj", "up_proj") else part
    )
    assert [differing.rsplit(".", 2)[1] for differing in found.differing] == [fused]
    assert not found.missing
    assert "differ" in found.fault()


def test_a_tied_head_that_the_server_names_as_well_is_the_embedding() -> None:
    sent = weights()
    rank = rank_of(sent)
    rank["checksums"]["lm_head.weight"] = rank["checksums"]["model.embed_tokens.weight"]
    assert compare([rank], sent, byte_hash).equal
    rank["checksums"]["lm_head.weight"] = byte_hash(torch.ones(3))
    assert compare([rank], sent, byte_hash).differing == ("lm_head.weight",)


def test_names_of_sglangs_wrapper_around_hugging_face_models_are_known() -> None:
    sent = {
        "gpt_neox.embed_in.weight": torch.randn(64, 4),
        "gpt_neox.layers.0.attention.query_key_value.weight": torch.randn(12, 4),
        "embed_out.weight": torch.randn(64, 4),
    }
    theirs = ("model.embed_in.weight", "model.layers.0.attention.query_key_value.weight", "lm_head.weight")
    rank = {
        "checksums": {name: byte_hash(tensor) for name, tensor in zip(theirs, sent.values(), strict=True)},
        "parallelism_info": [{"role": "target", "tp_rank": 0, "tp_size": 1}],
    }
    assert compare([rank], sent, byte_hash) == Comparison(3, (), (), ())


def test_what_cannot_be_compared_by_name_is_named_and_never_passes_for_equal() -> None:
    sent = weights()
    rank = rank_of(sent)
    rank["checksums"]["model.layers.0.mlp.experts.w13"] = rank["checksums"].pop(
        "model.layers.0.mlp.gate_up_proj.weight"
    )
    found = compare([rank], sent, byte_hash)
    assert not found.equal
    assert not found.differing
    assert found.unknown == ("model.layers.0.mlp.experts.w13",)
    assert found.missing == ("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight")


def test_tables_that_follow_from_the_configuration_are_not_missed() -> None:
    sent = {**weights(), "model.rotary_emb.inv_freq": torch.ones(4)}
    assert compare([rank_of(sent)], sent, byte_hash).equal
