"""Who is let in: names the server goes by, and pages that are its own."""

from __future__ import annotations

import http.client
import socket

import pytest

from dashboard import launch
from dashboard.door import own_names, refusal

NAMES = frozenset({"localhost", "127.0.0.1", "::1", "graft.example.org"})


def sent(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize(
    "host", ["localhost:8501", "127.0.0.1", "[::1]:8501", "GRAFT.example.org.", "graft.example.org:443"]
)
def test_requests_to_a_known_name_are_let_in(host: str) -> None:
    assert refusal(sent(host=host), NAMES) == ""
    assert refusal(sent(host=host, origin=f"http://{host}"), NAMES) == ""


@pytest.mark.parametrize(
    "host", ["evil.invalid", "localhost.evil.invalid", "localhost@evil.invalid", "127.0.0.1:x", "", "0.0.0.0", "[::1"]
)
def test_requests_to_another_name_are_turned_away(host: str) -> None:
    assert "--allow-host" in refusal(sent(host=host), NAMES)


def test_a_request_without_a_host_or_with_two_is_turned_away() -> None:
    assert refusal([], NAMES)
    assert refusal([*sent(host="localhost"), *sent(host="evil.invalid")], NAMES)


@pytest.mark.parametrize(
    "origin", ["http://evil.invalid", "null", "http://localhost:3000", "http://localhost", "file://", ""]
)
def test_requests_by_other_pages_are_turned_away(origin: str) -> None:
    assert refusal(sent(host="localhost:8501", origin=origin), NAMES) == "Other web pages may not use this server."


def test_a_server_knows_its_names() -> None:
    assert own_names("127.0.0.1") == ["localhost", "127.0.0.1", "::1"]
    assert own_names("192.0.2.7", ["Graft.Example.org"])[-2:] == ["graft.example.org", "192.0.2.7"]
    every = own_names("0.0.0.0")
    assert socket.gethostname().lower() in every
    assert "0.0.0.0" not in every


def test_a_running_server_turns_away_whom_it_should() -> None:
    with launch.serve("sqlite:///none.db", port=0, names=["graft.example.org"]) as server:
        place = server.url.removeprefix("http://")

        def status(path: str, **headers: str) -> int:
            connection = http.client.HTTPConnection(place, timeout=60)
            connection.putrequest("GET", path, skip_host=True)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            try:
                return connection.getresponse().status
            finally:
                connection.close()

        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec_WebSocket_Version": "13",
            "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        stream = "/_stcore/stream"
        assert [status("/", Host=host) for host in (place, "graft.example.org", "evil.invalid")] == [200, 200, 403]
        assert status(stream, Host=place, Origin=f"http://{place}", **upgrade) == 101
        assert status(stream, Host=place, Origin="http://evil.invalid", **upgrade) == 403
        assert status(stream, Host=place, Origin="http://localhost:3000", **upgrade) == 403
        assert status(stream, Host="evil.invalid", Origin="http://evil.invalid", **upgrade) == 403
        assert status("/_stcore/host-config", Host=place, Origin="http://evil.invalid") == 403
