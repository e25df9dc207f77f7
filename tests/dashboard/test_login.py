"""Login: refused unless it is set up wholly, and nobody comes in who is not named."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import entrance, launch
from dashboard.login import LoginError, check, may_enter
from tests.dashboard.test_pages import ENTRY, texts

GOOD = """
[auth]
redirect_uri = "https://graft.example.org/oauth2callback"
cookie_secret = "0123456789abcdef0123456789abcdef"
client_id = "graft"
client_secret = "s3cret"
server_metadata_url = "https://accounts.example.org/.well-known/openid-configuration"

[dashboard]
allow = ["ada@example.org", "*@lab.example.org"]
"""


def written(folder: Path, content: str = GOOD, mode: int = 0o600) -> Path:
    path = folder / "secrets.toml"
    path.write_text(content)
    path.chmod(mode)
    return path


def test_a_whole_setup_names_its_host_and_its_people(tmp_path: Path) -> None:
    login = check(written(tmp_path))
    assert (login.host, login.allow) == ("graft.example.org", ("ada@example.org", "*@lab.example.org"))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('client_id = "graft"\n', "", r"\[auth\] client_id is missing"),
        ('client_secret = "s3cret"', "client_secret = 7", "client_secret is missing"),
        ("0123456789abcdef0123456789abcdef", "short", "fewer than 32 characters"),
        ("https://accounts.example.org", "http://accounts.example.org", "server_metadata_url must begin with https"),
        ("/oauth2callback", "/callback", "redirect_uri must be https://NAME/oauth2callback"),
        ("https://graft", "http://graft", "plain http"),
        ('allow = ["ada@example.org", "*@lab.example.org"]', "allow = []", "everybody"),
        ('allow = ["ada@example.org", "*@lab.example.org"]', 'allow = ["*"]', "everybody"),
        ("[dashboard]", "[other]", "everybody"),
        ("[auth]", "[auth", "is not TOML"),
    ],
)
def test_a_setup_with_a_hole_is_refused_in_one_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(LoginError, match=says) as caught:
        check(written(tmp_path, GOOD.replace(old, new)))
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_others_can_read_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoginError, match="chmod 600"):
        check(written(tmp_path, mode=0o644))
    with pytest.raises(LoginError, match="--secrets FILE"):
        check(tmp_path / "none.toml")


def test_plain_http_is_for_this_machine_or_asked_for(tmp_path: Path) -> None:
    assert check(written(tmp_path, GOOD.replace("https://graft.example.org", "http://localhost:8501"))).host
    assert check(written(tmp_path, GOOD.replace("https://graft", "http://graft")), insecure=True).host


def test_without_authlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(LoginError, match=r"graft\[auth\]"):
        check(written(tmp_path))
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.0")
    with pytest.raises(LoginError, match="newer"):
        check(written(tmp_path))


def test_serving_with_a_login_refuses_a_setup_with_a_hole(tmp_path: Path) -> None:
    with pytest.raises(launch.DashboardError, match="client_id is missing"):
        launch.serve("x.db", host="0.0.0.0", port=0, secrets=written(tmp_path, GOOD.replace("client_id", "id")))


@pytest.mark.parametrize(
    ("user", "may"),
    [
        ({"email": "ada@example.org", "email_verified": True}, True),
        ({"email": " Ada@Example.org", "email_verified": True}, True),
        ({"email": "anybody@lab.example.org", "email_verified": True}, True),
        ({"email": "ada@example.org", "email_verified": False}, False),
        ({"email": "ada@example.org", "email_verified": "true"}, False),
        ({"email": "ada@example.org"}, False),
        ({"email": "eve@example.org", "email_verified": True}, False),
        ({"email": "x@evil.lab.example.org", "email_verified": True}, False),
        ({"email": "ada@example.org@evil.invalid", "email_verified": True}, False),
        ({"email": "*@lab.example.org.evil", "email_verified": True}, False),
        ({"email_verified": True}, False),
        ({}, False),
    ],
)
def test_only_named_people_with_a_verified_address_come_in(user: dict[str, Any], may: bool) -> None:
    assert may_enter(user, ("ada@example.org", "*@lab.example.org")) is may


class Visitor:
    """What Streamlit knows of a session's user."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts

    def to_dict(self) -> dict[str, Any]:
        return self.facts


@pytest.mark.parametrize(
    ("facts", "shown", "button"),
    [
        ({}, "Log in to see", "Log in"),
        ({"is_logged_in": True, "email": "<b>eve</b>@x", "email_verified": True}, "is not on the list", "Log out"),
        ({"is_logged_in": True, "email": "ada@example.org", "email_verified": True}, "Nothing to show yet", "Log out"),
    ],
)
def test_nothing_of_the_store_is_drawn_before_the_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], shown: str, button: str
) -> None:
    monkeypatch.setenv(launch.SECRETS_VARIABLE, str(written(tmp_path)))
    monkeypatch.setenv(launch.STORE_VARIABLE, f"sqlite:///{tmp_path / 'none.db'}")
    monkeypatch.setattr(entrance.st, "user", Visitor(**facts))
    page = AppTest.from_file(ENTRY, default_timeout=60).run()
    assert not page.exception
    assert shown in texts(page)
    assert [one.label for one in page.button] == [button]
    assert bool(page.sidebar.button) == ("Nothing" in shown)
    assert "<b>" not in texts(page).replace("\\<b\\>", "")


def test_a_server_without_login_ignores_settings_left_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launch.SECRETS_VARIABLE, "/somebody/elses.toml")
    with launch.serve("sqlite:///none.db", port=0) as server:
        environment = Path(f"/proc/{server.process.pid}/environ").read_bytes().split(b"\0")
    assert not [entry for entry in environment if entry.startswith(launch.SECRETS_VARIABLE.encode())]
    assert os.environ[launch.SECRETS_VARIABLE]
