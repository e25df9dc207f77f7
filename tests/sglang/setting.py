"""An engine on pretended servers, for tests of its states."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from population.demo.models import build_tokenizer
from server.rollouts import sglang_weights
from server.rollouts.engine import EngineError, SamplingParams, TokenPrompt
from server.rollouts.sglang_engine import SglangEngine, SglangSettings
from server.rollouts.tokenizer import MemberTokenizer
from tests.sglang.pretend import PretendServer

PROMPTS = [TokenPrompt(1, (1, 5, 6)), TokenPrompt(2, (1, 7))]
PARAMS = SamplingParams(n=2, max_new_tokens=6)
EMBEDDING, NORM = "model.embed_tokens.weight", "model.norm.weight"


@cache
def tokenizer() -> MemberTokenizer:
    return MemberTokenizer(build_tokenizer("qwen3"))


def weights(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {EMBEDDING: torch.randn(40, 8), NORM: torch.randn(8)}


def flipped(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One bit of the norm is another."""
    spoiled = {name: tensor.clone() for name, tensor in held.items()}
    if NORM in spoiled:
        spoiled[NORM].view(torch.int32)[3] ^= 1
    return spoiled


class Setting:
    """One engine on pretended servers, and the folder its weights go to."""

    def __init__(self, folder: Path, servers: int = 1, **settings: Any) -> None:
        self.model, self.place = folder / "model", folder / "weights"
        self.model.mkdir()
        config = {"vocab_size": 40, "max_position_embeddings": 64, "eos_token_id": 2}
        (self.model / "config.json").write_text(json.dumps(config))
        sglang_weights.save_file(weights(0), self.model / "model.safetensors")
        self.servers = [PretendServer(url=f"http://127.0.0.1:{30000 + number}") for number in range(servers)]
        by_port = {httpx.URL(server.url).port: server for server in self.servers}

        def handle(request: httpx.Request) -> httpx.Response:
            return by_port[request.url.port].handle(request)

        self.engine = SglangEngine(
            self.servers,
            tokenizer(),
            self.model,
            self.place,
            SglangSettings(**settings),
            transports=(httpx.MockTransport(handle), httpx.MockTransport(handle)),
        )

    @property
    def server(self) -> PretendServer:
        return self.servers[0]

    def sync(self, version: int) -> str:
        return self.engine.load_weights(version, weights(version))

    def asked_by(self, act: Callable[[], Any]) -> list[str]:
        """The routes that an action asks of the first server."""
        self.server.asked.clear()
        act()
        return list(self.server.asked)

    def refuses_to_sample(self, because: str) -> None:
        before = [len(server.sampled) for server in self.servers]
        with pytest.raises(EngineError, match=because):
            self.engine.sample(PROMPTS, PARAMS)
        assert [len(server.sampled) for server in self.servers] == before

    def samples(self, version: int) -> None:
        found = self.engine.sample(PROMPTS, PARAMS)
        assert [len(row) for row in found] == [2, 2]
        assert {one.weight_version for row in found for one in row} == {version}
