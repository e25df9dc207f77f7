"""Exchanges recorded from SGLang 0.5.23 servers, played back: a stand-in for a server that says what was said.

Each file of exchanges/ is one request with its answer; `error` in place of `response` is a connection that broke off.
server_info.json is cut to the settings that matter here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from server.rollouts.engine import EngineError

EXCHANGES = Path(__file__).parent / "exchanges"
API_KEY, ADMIN_KEY = "the-api-key", "the-admin-key"


def load(name: str) -> dict[str, Any]:
    """One recorded exchange."""
    found: dict[str, Any] = json.loads((EXCHANGES / f"{name}.json").read_text())
    return found


def answer(name: str) -> httpx.Response:
    """The recorded answer. A recorded break of the connection breaks it."""
    return play(load(name))


def play(exchange: dict[str, Any]) -> httpx.Response:
    """The answer of an exchange."""
    if "error" in exchange:
        raise httpx.RemoteProtocolError(exchange["error"])
    content = exchange["response"]
    if isinstance(content, str):
        return httpx.Response(exchange["status"], text=content)
    return httpx.Response(exchange["status"], json=content)


@dataclass
class RecordedServer:
    """A process that is said to live, and a transport that plays back by route, the last exchange over and over."""

    script: dict[str, list[str]] = field(default_factory=dict)
    url: str = "http://127.0.0.1:30000"
    api_key: str = API_KEY
    admin_key: str = ADMIN_KEY
    alive: bool = True
    requests: list[httpx.Request] = field(default_factory=list)

    def death(self) -> str:
        return "it ended with exit code 1"

    def restart(self, model: Path, version: str = "default") -> None:
        raise EngineError("a recorded server cannot be restarted")

    def close(self) -> None:
        self.alive = False

    def play_next(self, request: httpx.Request) -> httpx.Response:
        """The next exchange recorded for the route; the method must be that of the record."""
        self.requests.append(request)
        names = self.script[request.url.path]
        exchange = load(names.pop(0) if len(names) > 1 else names[0])
        assert (request.method, request.url.path) == (exchange["method"], exchange["path"])
        return play(exchange)

    @property
    def transport(self) -> httpx.MockTransport:
        """What a client is given in place of sockets."""
        return httpx.MockTransport(self.play_next)


def body(request: httpx.Request) -> dict[str, Any]:
    """The JSON of a request."""
    found: dict[str, Any] = json.loads(request.content)
    return found


def fields(value: Any, at: str = "") -> Iterator[str]:
    """The names of all fields of a JSON object, those inside others by path."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{at}{name}"
            if name != "logit_bias":
                yield from fields(inner, f"{at}{name}.")
