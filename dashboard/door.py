"""Who may talk to the server at all: requests whose Host is not one of its names, or that another web page makes, are
turned away before Streamlit sees them.

A page elsewhere whose name resolves to this machine (DNS rebinding) sends its own name as Host; a page elsewhere that
opens a connection to us sends its own address as Origin. Streamlit checks the first for connections alone, and asks a
server outside for this machine's address when it doubts the second.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

import psutil

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Door:
    """ASGI middleware in front of everything the server has."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower().rstrip(".") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = refusal(scope.get("headers", []), self._names) if scope["type"] in ("http", "websocket") else ""
        if not reason:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": reason.encode()})


def refusal(headers: Iterable[tuple[bytes, bytes]], names: frozenset[str]) -> str:
    """Why a request is turned away; empty where it is let in."""
    sent: dict[str, list[str]] = {}
    for name, value in headers:
        sent.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    hosts, origins = sent.get("host", []), sent.get("origin", [])
    if len(hosts) != 1 or _hostname(hosts[0]) not in names:
        return "This server does not go by that name; start it with --allow-host NAME."
    # "null": a page without an address of its own, such as a file or a sandboxed frame.
    if any(urlsplit(origin).netloc.lower() != hosts[0].lower() for origin in origins):
        return "Other web pages may not use this server."
    return ""


def _hostname(host: str) -> str | None:
    """The name in a Host header; None where it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    plain = not (parts.path or parts.query or parts.fragment or parts.username or parts.password)
    return parts.hostname.rstrip(".") if plain and parts.hostname else None


def own_names(host: str, more: Iterable[str] = ()) -> list[str]:
    """The names a server goes by that listens on `host`, and `more`; an address that means all of them is all of this
    machine's."""
    names = [*LOOPBACK, *more]
    if is_any(host):
        machine = socket.gethostname()
        addresses = [address.address for found in psutil.net_if_addrs().values() for address in found]
        names += [machine, machine.partition(".")[0], *(one.partition("%")[0] for one in addresses if _is_address(one))]
    else:
        names.append(host)
    return list(dict.fromkeys(name.lower().rstrip(".") for name in names))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def is_any(host: str) -> bool:
    """Whether an address to listen on means every address of this machine."""
    return host in ("0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
