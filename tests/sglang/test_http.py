"""The exchange with one server: keys, both shapes of errors, lost connections, deadlines, and what is sent twice."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.rollouts.engine import EngineError
from server.rollouts.sglang_control import Bucket, Control
from server.rollouts.sglang_http import (
    READ_TRIES,
    AttachedServer,
    Exchange,
    KeyRefused,
    RequestRefused,
    ServerLost,
    ServerSilent,
    sampling_client,
)
from tests.sglang.recorded import ADMIN_KEY, API_KEY, RecordedServer, answer, body, fields, load

BUCKET = Bucket(("model.norm.weight",), ("float32",), ((64,),))
SHORT_S = 5.0


def exchange_with(handler: Callable[[httpx.Request], httpx.Response], server: Any = None) -> Exchange:
    return Exchange(server or RecordedServer(), transport=httpx.MockTransport(handler))


def control_of(*names: str) -> tuple[Control, RecordedServer]:
    server = RecordedServer()
    for name in names:
        server.script.setdefault(load(name)["path"], []).append(name)
    return Control(Exchange(server, transport=server.transport)), server


def generate(handler: Callable[[httpx.Request], httpx.Response], server: Any = None) -> Any:
    exchange = exchange_with(handler, server)

    async def once() -> Any:
        async with sampling_client(1, httpx.MockTransport(handler)) as client:
            return await exchange.generate(client, {"input_ids": [1]}, SHORT_S)

    return asyncio.run(once())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("err_bad_temperature", "temperature must be a non-negative finite number, got -1."),
        ("err_over_ctx", "Requested token count exceeds the model's maximum context length of 1024 tokens"),
        ("err_dup_rid", "Duplicate request IDs detected within the request: ['a']"),
        ("err_logit_bias_out_of_range", "logit_bias must has keys in [0, 100], got 101."),
        ("err_unknown_sampling_param", "unknown field `seed`, expected one of `max_new_tokens`"),
    ],
)
def test_both_shapes_of_an_error_are_told_in_the_servers_words(name: str, said: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        generate(lambda _: answer(name))
    assert caught.value.status == 400
    assert caught.value.reason.startswith(said)
    assert "/generate: answered 400: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["auth_admin_generate", "auth_none_generate"])
def test_a_refused_key_names_the_route_and_the_key_it_wants(name: str) -> None:
    with pytest.raises(
        KeyRefused, match=r"POST http://127.0.0.1:30000/generate: the API key was refused; check .*api_key_env"
    ):
        generate(lambda _: answer(name))


def test_a_refused_admin_key_is_told_from_a_refused_api_key() -> None:
    exchange = exchange_with(lambda _: answer("auth_api_flush"))
    with pytest.raises(KeyRefused, match=r"/flush_cache: the admin key was refused; .*admin_key_env"):
        exchange.control("/flush_cache", deadline_s=SHORT_S)
    with pytest.raises(KeyRefused, match=r"/model_info: the API key was refused"):
        exchange.read("/model_info")


def test_a_key_that_is_missing_is_said_to_be_missing() -> None:
    exchange = exchange_with(lambda _: answer("auth_none_model_info"), AttachedServer("http://127.0.0.1:30000/"))
    with pytest.raises(KeyRefused, match=r"GET http://127.0.0.1:30000/model_info: the API key is missing"):
        exchange.read("/model_info")


def test_each_route_gets_its_own_key_and_the_api_key_opens_all_where_it_is_the_only_one() -> None:
    seen: list[tuple[str, str | None]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, request.headers.get("Authorization")))
        return httpx.Response(200, json={})

    both = exchange_with(handler)
    both.read("/server_info")
    both.control("/flush_cache", deadline_s=SHORT_S)
    generate(handler)
    exchange_with(handler, AttachedServer("http://a", api_key="only")).control("/flush_cache", deadline_s=SHORT_S)
    exchange_with(handler, AttachedServer("http://a", admin_key="only")).read("/server_info")
    assert seen == [
        ("/server_info", f"Bearer {API_KEY}"),
        ("/flush_cache", f"Bearer {ADMIN_KEY}"),
        ("/generate", f"Bearer {API_KEY}"),
        ("/flush_cache", "Bearer only"),
        ("/server_info", None),
    ]


def failing(error: type[httpx.TransportError], counted: list[str]) -> Callable[[httpx.Request], httpx.Response]:
    def handler(request: httpx.Request) -> httpx.Response:
        counted.append(request.url.path)
        raise error("it failed")

    return handler


def test_a_connection_that_breaks_off_is_a_lost_server_and_its_process_is_asked() -> None:
    with pytest.raises(ServerLost, match=r"the connection broke off .*; its process lives") as caught:
        generate(lambda _: answer("err_oov"))
    assert caught.value.reached
    dead = RecordedServer(alive=False)
    with pytest.raises(ServerLost, match="it ended with exit code 1"):
        generate(lambda _: answer("err_oov"), dead)


def test_a_sample_is_asked_for_again_only_when_the_request_never_arrived() -> None:
    tries: list[str] = []
    with pytest.raises(ServerLost, match="it cannot be reached") as caught:
        generate(failing(httpx.ConnectError, tries))
    assert not caught.value.reached
    assert len(tries) == READ_TRIES
    tries.clear()
    with pytest.raises(ServerLost):
        generate(failing(httpx.ReadError, tries))
    assert len(tries) == 1
    tries.clear()
    with pytest.raises(ServerLost, match="exit code 1"):
        generate(failing(httpx.ConnectError, tries), RecordedServer(alive=False))
    assert len(tries) == 1


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError])
def test_what_changes_a_server_is_sent_once_whatever_happens(error: type[httpx.TransportError]) -> None:
    tries: list[str] = []
    exchange = exchange_with(failing(error, tries))
    with pytest.raises(ServerLost):
        exchange.control("/update_weights_from_disk", {"model_path": "/weights"}, deadline_s=SHORT_S)
    assert tries == ["/update_weights_from_disk"]


def test_what_only_reads_is_asked_again_until_it_is_answered() -> None:
    tries: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        tries.append(request.url.path)
        if len(tries) < READ_TRIES:
            raise httpx.ReadError("it failed")
        return answer("server_info")

    assert Control(exchange_with(handler)).facts().version == "0.5.23"
    assert len(tries) == READ_TRIES


@pytest.mark.parametrize("error", [httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout])
def test_no_answer_in_time_is_not_taken_for_a_lost_server(error: type[httpx.TransportError]) -> None:
    tries: list[str] = []
    exchange = exchange_with(failing(error, tries))
    with pytest.raises(ServerSilent, match=r"POST .*/pause_generation: no answer within 5 s"):
        exchange.control("/pause_generation", {"mode": "abort"}, deadline_s=SHORT_S)
    with pytest.raises(ServerSilent):
        exchange.read("/server_info")
    assert len(tries) == 2


def test_an_answer_that_is_no_sglang_servers_is_said_to_be_none() -> None:
    for content in ({"detail": "hello"}, ["a", "list"], "text"):
        control = Control(exchange_with(lambda _, content=content: httpx.Response(200, json=content)))
        with pytest.raises(EngineError, match="is not the answer of an SGLang server"):
            control.facts()


def test_control_requests_have_the_fields_that_the_server_was_recorded_with() -> None:
    control, server = control_of(
        "pause_generation_abort",
        "pause_generation_retract",
        "update_weights_from_disk",
        "flush_cache",
        "weights_checker_checksum",
        "continue_generation",
        "init_weights_update_group",
        "begin_weight_update",
        "update_weights_from_distributed_flattened",
        "end_weight_update",
        "destroy_weights_update_group",
        "release_memory_occupation",
        "resume_memory_occupation",
        "abort_request_all",
        "server_info",
    )
    control.pause("abort", SHORT_S)
    control.pause("retract", SHORT_S)
    assert control.update_from_folder(Path("/models/b"), "v1", flush=True, deadline_s=SHORT_S)
    control.flush(SHORT_S)
    assert len(control.checksums(SHORT_S)) == 1
    control.resume(SHORT_S)
    control.join_group("g1", "127.0.0.1", 31999, offset=1, world=2, backend="gloo", deadline_s=SHORT_S)
    control.begin_update(SHORT_S)
    control.receive("g1", BUCKET, "d2", SHORT_S)
    control.end_update(SHORT_S)
    control.leave_group("g1", SHORT_S)
    control.release_memory(("kv_cache", "weights"), SHORT_S)
    control.resume_memory(("weights",), SHORT_S)
    control.abort_all(SHORT_S)
    facts = control.facts()
    assert (facts.version, facts.device, facts.ranks, facts.copies, facts.memory_saver) == (
        "0.5.23",
        "cpu",
        1,
        1,
        False,
    )
    known = {"flush_cache", "tags"}  # which the records lack and the server's source has
    for request in server.requests:
        asked = set(fields(body(request))) if request.content else set()
        recorded = [load(name)["request"] for name in EVERY if load(name)["path"] == request.url.path]
        assert asked <= set().union(known, *(fields(one) for one in recorded if one)), request.url.path
    assert body(server.requests[6]) == load("init_weights_update_group")["request"]


EVERY = (
    "pause_generation_abort",
    "pause_generation_retract",
    "update_weights_from_disk",
    "weights_checker_checksum",
    "init_weights_update_group",
    "update_weights_from_distributed_flattened",
    "destroy_weights_update_group",
    "release_memory_occupation",
    "resume_memory_occupation",
    "abort_request_all",
)


def test_weights_taken_over_with_a_dirty_cache_are_not_taken_for_a_failure() -> None:
    control, _ = control_of("update_weights_from_disk_paused_in_place_flush_true")
    assert not control.update_from_folder(Path("/models/b"), "v3", flush=True, deadline_s=SHORT_S)


def test_weights_that_were_not_taken_over_are_a_failure() -> None:
    control, _ = control_of("update_weights_from_disk_missing")
    with pytest.raises(RequestRefused, match="Failed to get weights iterator"):
        control.update_from_folder(Path("/models/nope"), "v3", flush=True, deadline_s=SHORT_S)


def test_a_cache_that_cannot_be_flushed_is_tried_until_the_deadline_and_then_an_error() -> None:
    control, server = control_of("flush_cache_while_running", "flush_cache")
    control.flush(SHORT_S)
    assert [request.url.params["timeout"] for request in server.requests] == ["5", "5"]
    control, _ = control_of("flush_cache_while_running")
    with pytest.raises(EngineError, match=r"its cache was not flushed within 0.01 s \(Flush cache failed\.\)"):
        control.flush(0.01)


def test_an_update_that_was_left_open_is_closed_before_the_next_one() -> None:
    control, server = control_of("err_begin_twice", "begin_weight_update", "end_weight_update")
    control.begin_update(SHORT_S)
    paths = [request.url.path for request in server.requests]
    assert paths == ["/begin_weight_update", "/end_weight_update", "/begin_weight_update"]


@pytest.mark.parametrize(
    ("name", "act", "said"),
    [
        ("err_end_without_begin", lambda c: c.end_update(SHORT_S), "no weight-update session is open"),
        (
            "err_update_from_distributed_without_begin",
            lambda c: c.receive("g1", BUCKET, None, SHORT_S),
            "must run between begin_weight_update",
        ),
        ("err_receive_unknown_group", lambda c: c.receive("g1", BUCKET, None, SHORT_S), "Failed to receive weights"),
        ("err_destroy_unknown_group", lambda c: c.leave_group("zzz", SHORT_S), "The group to be destroyed does not"),
    ],
)
def test_an_update_out_of_order_is_an_error(name: str, act: Callable[[Control], None], said: str) -> None:
    control, _ = control_of(name)
    with pytest.raises(RequestRefused, match=said):
        act(control)


@pytest.fixture
def slow_server() -> Iterator[tuple[str, threading.Event, threading.Event]]:
    """A real server whose /generate waits; (url, set when it was asked, to be set to let it answer)."""
    asked, go_on = threading.Event(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/generate":
                asked.set()
                assert go_on.wait(120)
            content = json.dumps({"message": "ok"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked, go_on
    finally:
        go_on.set()
        server.shutdown()
        server.server_close()


def test_control_is_answered_while_every_sampling_connection_waits(
    slow_server: tuple[str, threading.Event, threading.Event],
) -> None:
    url, asked, go_on = slow_server
    exchange = Exchange(AttachedServer(url))
    answers: list[Any] = []

    async def sample() -> None:
        async with sampling_client(1) as client:
            answers.append(await exchange.generate(client, {"input_ids": [1]}, 120.0))

    thread = threading.Thread(target=lambda: asyncio.run(sample()), daemon=True)
    thread.start()
    assert asked.wait(120)
    assert exchange.control("/pause_generation", {"mode": "abort"}, deadline_s=120.0) == {"message": "ok"}
    assert not answers
    go_on.set()
    thread.join(120)
    assert answers == [{"message": "ok"}]
    exchange.close()
