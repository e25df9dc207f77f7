"""What the tests of SGLang share: two tiny members with tokenizers of their own, and a real server for each.

Tests marked `sglang` need the interpreter of .venv-sglang under GRAFT_SGLANG_PYTHON, which `make test-sglang` sets. Two
servers are started once, side by side; a test that kills or spoils one restarts it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from server.rollouts.sglang_process import ServerSpec, SglangServer, close_all

MEMBERS = ("qwen3", "llama")
CONTEXT = 100
START_S = 300.0


@dataclass
class Live:
    """One member: its model folder and its running server."""

    name: str
    model: Path
    server: SglangServer


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """The interpreter that has sglang."""
    python = os.environ.get("GRAFT_SGLANG_PYTHON")
    assert python, "GRAFT_SGLANG_PYTHON names no interpreter that has sglang: run make test-sglang"
    return python


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """{member: model folder} with random weights; the vocabularies differ."""
    from population.demo.models import build_model, build_tokenizer, save_member

    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(MEMBERS):
        tokenizer = build_tokenizer(name)
        save_member(folder / name, build_model(name, tokenizer, seed=seed), tokenizer)
    return {name: folder / name for name in MEMBERS}


@pytest.fixture(scope="session")
def spec_for(sglang_python: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ServerSpec]:
    """A function that makes the specification of a server on this machine's CPU."""

    def make(name: str, **changes: object) -> ServerSpec:
        spec = ServerSpec(name, tmp_path_factory.mktemp(name), CONTEXT, python=sglang_python, start_s=START_S)
        return replace(spec, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def live(tiny_models: dict[str, Path], spec_for: Callable[..., ServerSpec]) -> Iterator[dict[str, Live]]:
    """{member: its model and its running server}, for the whole session."""
    members = {name: Live(name, model, SglangServer(spec_for(name))) for name, model in tiny_models.items()}
    servers = [member.server for member in members.values()]
    try:
        for member in members.values():
            member.server.launch(member.model, "0")
        for server in servers:
            server.wait_ready()
        yield members
    finally:
        close_all(servers)
