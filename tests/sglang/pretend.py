"""A server that is only pretended: it answers as the recorded exchanges do, and holds weights, a state and failures.

It reads the folders it is told to, hashes what it holds as SGLang does, counts what it is asked, and fails where a test
says so. What it samples are the ids of `plan`, or a row of one id that ends with the end id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load_file

from server.rollouts.engine import EngineError
from server.rollouts.sglang_checksums import byte_hash
from tests.sglang.recorded import ADMIN_KEY, API_KEY, answer, body

Answer = Callable[[httpx.Request], httpx.Response]


@dataclass
class PretendServer:
    """`fails` {route: what to do at its next request}; `plan`: answers of /generate that come before the usual ones."""

    url: str = "http://127.0.0.1:30000"
    vocabulary: int = 40
    end: int = 2
    api_key: str = API_KEY
    admin_key: str = ADMIN_KEY
    alive: bool = True
    version: str = "default"
    copies: int = 1
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    paused: bool = False
    released: set[str] = field(default_factory=set)
    session: bool = False
    groups: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    sampled: list[dict[str, Any]] = field(default_factory=list)
    fails: dict[str, Answer] = field(default_factory=dict)
    plan: list[Callable[[dict[str, Any]], Any]] = field(default_factory=list)
    restarts: list[tuple[Path, str]] = field(default_factory=list)
    restart_fails: str = ""
    wire: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict
    broadcast: dict[str, torch.Tensor] = field(default_factory=dict)

    def death(self) -> str:
        return "it was ended by signal 9"

    def restart(self, model: Path, version: str = "default") -> None:
        if self.restart_fails:
            raise EngineError(self.restart_fails)
        self.restarts.append((model, version))
        self.alive, self.version, self.paused = True, version, False
        self.released, self.session, self.groups = set(), False, set()
        self.weights = self.wire(load_file(model / "model.safetensors"))

    def close(self) -> None:
        self.alive = False

    def handle(self, request: httpx.Request) -> httpx.Response:
        """Any request. A dead server cannot be reached."""
        route = request.url.path
        self.asked.append(route)
        if not self.alive:
            raise httpx.ConnectError("connection refused")
        wanted = API_KEY if route in ("/generate", "/server_info") else ADMIN_KEY
        if request.headers.get("Authorization") != f"Bearer {wanted}":
            return answer("auth_none_generate")
        if route in self.fails:
            return self.fails.pop(route)(request)
        return getattr(self, f"_{route[1:]}")(body(request) if request.content else {})

    @property
    def transports(self) -> tuple[httpx.MockTransport, httpx.MockTransport]:
        """What an engine is given in place of sockets."""
        return httpx.MockTransport(self.handle), httpx.MockTransport(self.handle)

    def fail(self, route: str, what: str | type[httpx.TransportError]) -> None:
        """At the next request of a route: a recorded answer by name, or a broken connection."""

        def respond(_: httpx.Request) -> httpx.Response:
            if isinstance(what, str):
                return answer(what)
            raise what("it broke")

        self.fails[route] = respond

    def die(self, route: str) -> None:
        """The process ends in the middle of the next request of a route."""

        def respond(_: httpx.Request) -> httpx.Response:
            self.alive = False
            raise httpx.ReadError("connection reset")

        self.fails[route] = respond

    def _server_info(self, _: dict[str, Any]) -> httpx.Response:
        return httpx.Response(200, json={**answer("server_info").json(), "dp_size": self.copies})

    def _generate(self, asked: dict[str, Any]) -> httpx.Response:
        assert not self.released, "a sample is asked of a server without its memory"
        self.sampled.append(asked)
        if self.paused:
            return httpx.Response(200, json=aborted(asked))
        return httpx.Response(200, json=self.plan.pop(0)(asked) if self.plan else drawn(self.version)(asked))

    def _pause_generation(self, asked: dict[str, Any]) -> httpx.Response:
        self.paused = True
        self.modes.append(asked["mode"])
        return answer(f"pause_generation_{asked['mode']}")

    def _continue_generation(self, _: dict[str, Any]) -> httpx.Response:
        assert not self.released, "a server goes on without its memory"
        self.paused = False
        return answer("continue_generation")

    def _abort_request(self, _: dict[str, Any]) -> httpx.Response:
        return answer("abort_request_all")

    def _flush_cache(self, _: dict[str, Any]) -> httpx.Response:
        assert "kv_cache" not in self.released, "a cache is flushed that is not there"
        return answer("flush_cache")

    def _update_weights_from_disk(self, asked: dict[str, Any]) -> httpx.Response:
        assert self.paused, "weights are updated while requests may run"
        assert "weights" not in self.released, "weights are loaded into memory that is not there"
        folder = Path(asked["model_path"])
        if not folder.is_dir():
            return answer("update_weights_from_disk_missing")
        self.weights, self.version = self.wire(load_file(folder / "model.safetensors")), asked["weight_version"]
        return answer("update_weights_from_disk")

    def _weights_checker(self, _: dict[str, Any]) -> httpx.Response:
        held = {name: byte_hash(padded(name, tensor)) for name, tensor in self.weights.items()}
        place = {"role": "target", "tp_rank": 0, "tp_size": 1}
        said = {**answer("weights_checker_checksum").json()}
        return httpx.Response(200, json={**said, "ranks": [{"checksums": held, "parallelism_info": [place]}]})

    def _release_memory_occupation(self, asked: dict[str, Any]) -> httpx.Response:
        assert self.paused
        self.released |= set(asked["tags"])
        if "weights" in asked["tags"]:
            self.weights = {name: torch.full_like(tensor, 9.0) for name, tensor in self.weights.items()}
        return answer("release_memory_occupation")

    def _resume_memory_occupation(self, asked: dict[str, Any]) -> httpx.Response:
        assert set(asked["tags"]) <= self.released, "memory is resumed that was not released"
        self.released -= set(asked["tags"])
        return answer("resume_memory_occupation")

    def _init_weights_update_group(self, asked: dict[str, Any]) -> httpx.Response:
        self.groups.add(asked["group_name"])
        return answer("init_weights_update_group")

    def _destroy_weights_update_group(self, asked: dict[str, Any]) -> httpx.Response:
        if asked["group_name"] not in self.groups:
            return answer("err_destroy_unknown_group")
        self.groups.remove(asked["group_name"])
        return answer("destroy_weights_update_group")

    def _begin_weight_update(self, _: dict[str, Any]) -> httpx.Response:
        if self.session:
            return answer("err_begin_twice")
        self.session = True
        return answer("begin_weight_update")

    def _end_weight_update(self, _: dict[str, Any]) -> httpx.Response:
        if not self.session:
            return answer("err_end_without_begin")
        self.session = False
        return answer("end_weight_update")

    def _update_weights_from_distributed(self, asked: dict[str, Any]) -> httpx.Response:
        assert self.paused
        assert "weights" not in self.released
        if not self.session:
            return answer("err_update_from_distributed_without_begin")
        if asked["group_name"] not in self.groups:
            return answer("err_receive_unknown_group")
        sent = {name: self.broadcast[name] for name in asked["names"]}
        self.weights |= self.wire(sent)
        self.version = asked.get("weight_version", self.version)
        return answer("update_weights_from_distributed_flattened")


def padded(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A vocabulary's table as a server holds it."""
    if tensor.dim() == 2 and name.endswith(("embed_tokens.weight", "lm_head.weight")):
        return torch.nn.functional.pad(tensor, (0, 0, 0, -len(tensor) % 64))
    return tensor


def drawn(
    *versions: str, ids: list[int] | None = None, finish: dict[str, Any] | None = None
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """An answer of /generate whose tokens come from these weight versions in equal parts."""

    def respond(asked: dict[str, Any]) -> dict[str, Any]:
        tokens = ids if ids is not None else [7] * min(3, asked["sampling_params"]["max_new_tokens"] - 1) + [2]
        size = len(tokens)
        cuts = [size * part // len(versions) for part in range(len(versions) + 1)]
        spans = [
            {"version": version, "start": cuts[part], "end": cuts[part + 1]} for part, version in enumerate(versions)
        ]
        meta = {
            **answer("skip_tokenizer_stop_ids").json()["meta_info"],
            "id": asked["rid"],
            "finish_reason": finish or {"type": "stop", "matched": tokens[-1]},
            "weight_version": versions[-1],
            "weight_versions": spans,
            "output_token_logprobs": [[-0.5 - place, token, None] for place, token in enumerate(tokens)],
        }
        return {"output_ids": tokens, "meta_info": meta}

    return respond


def aborted(asked: dict[str, Any]) -> dict[str, Any]:
    """The recorded answer to a request that a pause ended."""
    found: dict[str, Any] = answer("inflight_pause_abort").json()
    found["meta_info"]["id"] = asked["rid"]
    return found
