"""Login with an OpenID Connect provider: the settings it needs, checked before the server starts, and who may come in.

The secrets file is Streamlit's, with one section of ours:

    [auth]
    redirect_uri = "https://graft.example.org/oauth2callback"
    cookie_secret = "..."            # 32 characters or more; python -c "import secrets; print(secrets.token_hex(32))"
    client_id = "..."
    client_secret = "..."
    server_metadata_url = "https://accounts.example.org/.well-known/openid-configuration"

    [dashboard]
    allow = ["ada@example.org", "*@lab.example.org"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.version import Version

from dashboard.door import is_loopback

CALLBACK = "/oauth2callback"
_NEEDED = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")
_LEAST_AUTHLIB = Version("1.3.2")
_LEAST_SECRET = 32


class LoginError(Exception):
    """Login cannot be offered: one line with the reason and the remedy."""


@dataclass(frozen=True)
class Login:
    """A checked secrets file: where it lies, the public host it names, and who may come in."""

    secrets: Path
    host: str
    allow: tuple[str, ...]


def check(secrets: Path, *, insecure: bool = False) -> Login:
    """The login that a secrets file describes. LoginError when something is missing, weak or open to others.

    `insecure` lets the browser talk plain http to another machine.
    """
    _check_authlib()
    settings = _read(secrets)
    auth = settings.get("auth")
    auth = auth if isinstance(auth, Mapping) else {}
    for name in _NEEDED:
        if not isinstance(auth.get(name), str) or not auth[name].strip():
            raise LoginError(f"{secrets}: [auth] {name} is missing; --auth oidc needs {', '.join(_NEEDED)}")
    if len(auth["cookie_secret"]) < _LEAST_SECRET:
        raise LoginError(
            f"{secrets}: [auth] cookie_secret has fewer than {_LEAST_SECRET} characters, so that a login could be "
            'forged; make one: python -c "import secrets; print(secrets.token_hex(32))"'
        )
    if not auth["server_metadata_url"].startswith("https://") and not _on_loopback(auth["server_metadata_url"]):
        raise LoginError(f"{secrets}: [auth] server_metadata_url must begin with https://")
    redirect = urlsplit(auth["redirect_uri"])
    if redirect.scheme not in ("http", "https") or not redirect.hostname or not redirect.path.endswith(CALLBACK):
        raise LoginError(f"{secrets}: [auth] redirect_uri must be https://NAME{CALLBACK}")
    if redirect.scheme == "http" and not is_loopback(redirect.hostname) and not insecure:
        raise LoginError(
            f"{secrets}: [auth] redirect_uri is plain http, so that logins and pages could be read on the way; put a "
            "proxy with TLS before the dashboard, or add --insecure"
        )
    return Login(secrets, redirect.hostname, _allowed(secrets, settings))


def _check_authlib() -> None:
    try:
        version = Version(metadata.version("authlib"))
    except metadata.PackageNotFoundError:
        raise LoginError("--auth oidc needs Authlib; install it: pip install 'graft[auth]'") from None
    if version < _LEAST_AUTHLIB:
        raise LoginError(f"--auth oidc needs Authlib {_LEAST_AUTHLIB} or newer, this is {version}; upgrade it")


def _read(secrets: Path) -> Mapping[str, Any]:
    try:
        mode = secrets.stat().st_mode
        content = secrets.read_text("utf-8")
    except OSError as error:
        raise LoginError(
            f"{secrets}: cannot be read ({error.strerror}); --auth oidc takes its settings from --secrets FILE"
        ) from None
    if mode & 0o077:
        raise LoginError(f"{secrets}: others can read this file; run: chmod 600 {secrets}")
    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise LoginError(f"{secrets}: is not TOML ({error})") from None


def _allowed(secrets: Path, settings: Mapping[str, Any]) -> tuple[str, ...]:
    section = settings.get("dashboard")
    allow = section.get("allow") if isinstance(section, Mapping) else None
    if not isinstance(allow, list) or not allow or not all(isinstance(one, str) and "@" in one for one in allow):
        raise LoginError(
            f'{secrets}: [dashboard] allow = ["ada@example.org", "*@example.org"] is missing; without it everybody '
            "with an account at the provider could come in"
        )
    return tuple(allow)


def _on_loopback(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def may_enter(user: Mapping[str, Any], allow: Sequence[str]) -> bool:
    """Whether a logged-in user is one of those let in: by an address that the provider has verified."""
    address = user.get("email")
    if not isinstance(address, str) or user.get("email_verified") is not True:
        return False
    name, at, domain = address.strip().lower().rpartition("@")
    if not (name and at and domain):
        return False
    wanted = {entry.strip().lower() for entry in allow}
    return f"{name}@{domain}" in wanted or f"*@{domain}" in wanted
