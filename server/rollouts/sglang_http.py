"""The exchange with one SGLang server: routes, keys, both shapes of its errors, deadlines, and what may be sent twice.

Sampling and control have a connection pool each, so that a full pool of samples never holds up a weight update. A
request that changes something is sent once: after a lost connection nobody knows whether it was carried out.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import httpx

from server.rollouts.engine import EngineError

CONNECT_S = 10.0
READ_TRIES = 3
PAUSE_S = 0.2
# The server closes an idle connection after 5 s; one that is older than this is not used again.
KEEP_S = 2.0
_TEXT = 300


class RequestRefused(EngineError):
    """The server answered with an error; `status` is the HTTP status and `reason` its own words."""

    def __init__(self, where: str, status: int, reason: str) -> None:
        super().__init__(f"{where}: answered {status}: {reason}")
        self.status, self.reason = status, reason


class KeyRefused(EngineError):
    """The server does not take the key that this route was asked with."""


class ServerLost(EngineError):
    """The connection was refused or broke off. `reached` is False where the request was certainly not received."""

    def __init__(self, message: str, *, reached: bool) -> None:
        super().__init__(message)
        self.reached = reached


class ServerSilent(EngineError):
    """No whole answer within the deadline; the request may still be carried out."""


class Server(Protocol):
    """A server that the run started, or one it is attached to."""

    @property
    def url(self) -> str:
        """Where it is reached, without a slash at the end."""
        ...

    @property
    def api_key(self) -> str:
        """Opens the routes that sample; empty: none is sent."""
        ...

    @property
    def admin_key(self) -> str:
        """Opens the routes that control the server; empty: the API key does."""
        ...

    @property
    def alive(self) -> bool:
        """False when its process is known to have ended."""
        ...

    def death(self) -> str:
        """Why it has ended, as far as is known."""
        ...

    def restart(self, model: Path, version: str = "default") -> None:
        """Start it anew with the weights of a model folder. Raises EngineError where that cannot be done."""
        ...

    def close(self) -> None:
        """End it, if it is the run's own."""
        ...


class AttachedServer:
    """A running server that somebody else started and restarts."""

    alive = True

    def __init__(self, url: str, api_key: str = "", admin_key: str = "") -> None:
        self.url, self.api_key, self.admin_key = url.rstrip("/"), api_key, admin_key

    def death(self) -> str:
        """Nothing is known of its process."""
        return f"{self.url} is not a server of this run, so that its log is not known here"

    def restart(self, model: Path, version: str = "default") -> None:
        """Refused: it is not this run's."""
        raise EngineError(f"{self.url} does not answer and is not a server of this run: start it again, then --resume")

    def close(self) -> None:
        """Nothing: it goes on."""


class Exchange:
    """Requests to one server.

    Raises from every request: ServerLost, ServerSilent, KeyRefused, RequestRefused. A context manager.
    """

    def __init__(self, server: Server, *, transport: httpx.BaseTransport | None = None) -> None:
        """`transport`: what carries the control requests in place of sockets (tests)."""
        self.server = server
        # No connection is kept: one that the server is closing at that moment would lose a request that must not be
        # sent again.
        self._control = httpx.Client(
            trust_env=False, transport=transport, limits=httpx.Limits(max_keepalive_connections=0)
        )

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._control.close()

    def read(self, path: str, deadline_s: float = 30.0) -> Any:
        """GET a route that changes nothing, with the API key; asked again where the connection failed."""
        ends = time.monotonic() + deadline_s
        for left in reversed(range(READ_TRIES)):
            try:
                return self._answer("GET", path, None, ends - time.monotonic(), admin=False)
            except ServerLost:
                if not left or not self.server.alive or time.monotonic() + PAUSE_S >= ends:
                    raise
                time.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def control(self, path: str, payload: Mapping[str, Any] | None = None, *, deadline_s: float) -> Any:
        """POST to an admin route, once. Returns the JSON of the answer, or its text."""
        return self._answer("POST", path, payload, deadline_s, admin=True)

    async def generate(self, client: httpx.AsyncClient, payload: Mapping[str, Any], deadline_s: float) -> Any:
        """POST /generate over a client of `sampling_client`; sent again only where it was certainly not received."""
        where = f"{self.server.url}/generate"
        for left in reversed(range(READ_TRIES)):
            try:
                response = await client.post(
                    where, json=payload, headers=self._headers(admin=False), timeout=_timeout(deadline_s)
                )
            except httpx.HTTPError as error:
                lost = self._fault("POST", where, error, deadline_s)
                if not left or not self.server.alive or getattr(lost, "reached", True):
                    raise lost from error
            else:
                return self._checked("POST", "/generate", response, admin=False)
        raise AssertionError("the last try returns or raises")

    def _answer(
        self, method: str, path: str, payload: Mapping[str, Any] | None, deadline_s: float, *, admin: bool
    ) -> Any:
        where = f"{self.server.url}{path}"
        try:
            response = self._control.request(
                method, where, json=payload, headers=self._headers(admin=admin), timeout=_timeout(deadline_s)
            )
        except httpx.HTTPError as error:
            raise self._fault(method, where, error, deadline_s) from error
        return self._checked(method, path, response, admin=admin)

    def _headers(self, *, admin: bool) -> dict[str, str]:
        key = (self.server.admin_key or self.server.api_key) if admin else self.server.api_key
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _checked(self, method: str, path: str, response: httpx.Response, *, admin: bool) -> Any:
        """The content of a good answer; raises for any other."""
        where = f"{method} {self.server.url}{path}"
        if response.status_code in (401, 403):
            kind = "admin" if admin and self.server.admin_key else "API"
            sent = "was refused" if self._headers(admin=admin) else "is missing"
            setting = "admin_key_env" if kind == "admin" else "api_key_env"
            raise KeyRefused(f"{where}: the {kind} key {sent}; check the variable that rollouts.sglang.{setting} names")
        content = _content(response)
        if response.status_code != 200:
            raise RequestRefused(where, response.status_code, error_text(content))
        return content

    def _fault(self, method: str, where: str, error: httpx.HTTPError, deadline_s: float) -> EngineError:
        """What a failed exchange means; the process is asked whether it lives."""
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return ServerSilent(f"{method} {where}: no answer within {deadline_s:g} s")
        reached = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
        what = "the connection broke off" if reached else "it cannot be reached"
        state = "its process lives" if self.server.alive else self.server.death()
        detail = " ".join(str(error).split()) or type(error).__name__
        return ServerLost(f"{method} {where}: {what} ({detail[:_TEXT]}); {state}", reached=reached)


@cache
def _certificates() -> ssl.SSLContext:
    """What https is checked against; reading it takes as long as many requests, so it is read once."""
    return httpx.create_ssl_context(trust_env=False)


def sampling_client(connections: int, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """A pool for requests that sample."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEP_S)
    return httpx.AsyncClient(trust_env=False, verify=_certificates(), transport=transport, limits=limits)


def error_text(content: Any) -> str:
    """The server's own words: it says `{"error": {"message": ...}}`, `{"error": ...}`, `{"message": ...}` or text."""
    found = content
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    text = " ".join(str(found).split())
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."


def _timeout(deadline_s: float) -> httpx.Timeout:
    return httpx.Timeout(max(deadline_s, 0.001), connect=min(CONNECT_S, max(deadline_s, 0.001)))


def _content(response: httpx.Response) -> Any:
    if response.headers.get("content-type", "").startswith("application/json"):
        try:
            return response.json()
        except ValueError:
            return response.text
    return response.text
