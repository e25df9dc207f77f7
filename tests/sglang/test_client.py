"""Samples over HTTP: what is asked, what answers are taken for, and what is drawn again."""

from __future__ import annotations

import asyncio
import math
import threading
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest

from server.rollouts.engine import EngineError, SamplingParams, TokenPrompt
from server.rollouts.sglang_client import TRIES, Drawn, SamplingClient, Span, Unusable, Vocabulary, read_answer
from server.rollouts.sglang_http import Exchange, ServerLost
from tests.sglang.pretend import PretendServer, aborted, drawn
from tests.sglang.recorded import RecordedServer, answer, fields, load

RECORDED = Vocabulary(np.ones(192, dtype=bool), frozenset([1]), 1024)
SMALL = Vocabulary(np.arange(40) < 30, frozenset([2]), 100)
PROMPTS = [TokenPrompt(11, (1, 5, 6)), TokenPrompt(12, (1, 5, 7, 8))]
LIMIT_S = 60.0


@dataclass
class Anything:
    """Terms that let everything happen, and remember it."""

    accepted: list[Drawn] = field(default_factory=list)
    refusals: int = 0

    def admit(self) -> None:
        """Always."""

    def accept(self, drawn: Drawn) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Unusable("it is not wanted")
        self.accepted.append(drawn)


def draw(
    servers: list[PretendServer], params: SamplingParams, *, max_in_flight: int = 8, terms: Anything | None = None
) -> dict[tuple[int, int], Drawn]:
    by_port = {httpx.URL(server.url).port: server for server in servers}
    transport = httpx.MockTransport(lambda request: by_port[request.url.port].handle(request))
    client = SamplingClient(
        [Exchange(server) for server in servers], SMALL, max_in_flight=max_in_flight, transport=transport
    )
    rows = [(p, i) for p in range(len(PROMPTS)) for i in range(params.n)]
    into: dict[tuple[int, int], Drawn] = {}
    client.draw(PROMPTS, rows, params, terms=terms or Anything(), deadline_s=LIMIT_S, into=into)
    return into


def params(n: int = 1, **changes: Any) -> SamplingParams:
    return SamplingParams(n=n, max_new_tokens=10, **{"seed": 3, "step": 2, "member": "one", **changes})


def test_a_recorded_sample_is_read_whole() -> None:
    found = read_answer(answer("generate_ids_logprob").json(), RECORDED, "here")
    assert found.ids.tolist() == [177, 176, 154, 152, 98, 19]
    assert found.finish == "length"
    assert found.spans == (Span("default", 0, 6),)
    said = load("generate_ids_logprob")["response"]["meta_info"]["output_token_logprobs"]
    assert found.logprobs.tolist() == [np.float32(entry[0]) for entry in said]


def test_a_stop_token_stays_in_the_ids() -> None:
    found = read_answer(answer("skip_tokenizer_stop_ids").json(), RECORDED, "here")
    assert (found.ids.tolist(), found.finish) == ([32], "stop")


def test_an_end_token_at_the_last_allowed_place_is_a_stop_though_the_server_says_length() -> None:
    cut = drawn("3", ids=[7, 2], finish={"type": "length", "length": 2})({"rid": "a"})
    assert read_answer(cut, SMALL, "here").finish == "stop"
    cut = drawn("3", ids=[7, 7], finish={"type": "length", "length": 2})({"rid": "a"})
    assert read_answer(cut, SMALL, "here").finish == "length"


def test_unknown_fields_of_an_answer_are_left_alone_and_old_servers_without_spans_are_read() -> None:
    content = answer("generate_ids_logprob").json()
    content["meta_info"]["a_new_timing"] = 3.0
    del content["meta_info"]["weight_versions"]
    assert read_answer(content, RECORDED, "here").spans == (Span("default", 0, 6),)


@pytest.mark.parametrize("name", ["inflight_pause_abort", "inflight_abort_request", "inflight_update_abort_all"])
def test_an_aborted_sample_is_recognised_though_its_status_is_200(name: str) -> None:
    assert load(name)["status"] == 200
    with pytest.raises(Unusable, match=r"the server aborted it \(Aborted\)"):
        read_answer(answer(name).json(), RECORDED, "here")


def test_the_weights_behind_each_part_of_a_retracted_sample_are_told() -> None:
    found = read_answer(answer("inflight_retract_update").json(), RECORDED, "here")
    assert found.spans == (Span("v1", 0, 114), Span("v2", 114, 300))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda a: a.pop("meta_info"), "not the answer of an SGLang server to a sample"),
        (lambda a: a["meta_info"].pop("output_token_logprobs"), "not the answer"),
        (lambda a: a["meta_info"]["output_token_logprobs"].pop(), "6 tokens came with log-probabilities of 5 others"),
        (lambda a: a.update(output_ids=[]), "0 tokens came with log-probabilities of 6 others"),
        (lambda a: a["meta_info"]["output_token_logprobs"][2].__setitem__(1, 3), "of 6 others"),
        (lambda a: a["meta_info"]["output_token_logprobs"][2].__setitem__(0, None), "non-finite log-probabilities"),
        (lambda a: a["meta_info"]["output_token_logprobs"][2].__setitem__(0, -math.inf), "non-finite"),
        (lambda a: a["meta_info"]["finish_reason"].update(type="tired"), "ended with 'tired'"),
    ],
)
def test_an_answer_that_is_not_whole_is_refused_by_name(spoil: Any, said: str) -> None:
    content = answer("generate_ids_logprob").json()
    spoil(content)
    with pytest.raises(EngineError, match=f"here: .*{said}"):
        read_answer(content, RECORDED, "here")


def test_the_request_has_recorded_fields_only_and_one_sample_each() -> None:
    server = PretendServer()
    draw([server], params(n=2, temperature=0.6))
    recorded = load("generate_logit_bias")["request"]
    for asked in server.sampled:
        assert set(fields(asked)) == set(fields(recorded))
        assert asked["sampling_params"] | {"sampling_seed": 0} == {
            "max_new_tokens": 10,
            "temperature": 0.6,
            "top_p": 1.0,
            "top_k": -1,
            "stop_token_ids": [2],
            "sampling_seed": 0,
            "logit_bias": {str(token): -1e30 for token in range(30, 40)},
        }
    assert sorted(asked["input_ids"] for asked in server.sampled) == sorted([[1, 5, 6], [1, 5, 7, 8]] * 2)
    assert len({asked["rid"] for asked in server.sampled}) == 4


def test_where_every_id_has_a_text_no_bias_is_sent() -> None:
    assert Vocabulary(np.ones(40, dtype=bool), frozenset([2]), None).bias == {}


def test_every_sample_has_a_seed_of_its_own_that_follows_from_its_name() -> None:
    def seeds(**changes: Any) -> dict[int, set[int]]:
        server = PretendServer()
        draw([server], params(n=16, **changes))
        found: dict[int, set[int]] = {}
        for asked in server.sampled:
            found.setdefault(len(asked["input_ids"]), set()).add(asked["sampling_params"]["sampling_seed"])
        return found

    first = seeds()
    assert len(first[3] | first[4]) == 32
    assert all(0 <= seed < 2**63 for group in first.values() for seed in group)
    assert seeds() == first
    for change in ({"seed": 4}, {"step": 3}, {"member": "two"}, {"purpose": "evaluate"}):
        other = seeds(**change)
        assert not (other[3] | other[4]) & (first[3] | first[4])


def test_an_aborted_sample_is_drawn_again() -> None:
    server = PretendServer(plan=[aborted])
    found = draw([server], params(n=2))
    assert len(found) == 4
    assert len(server.sampled) == 5


def test_an_id_without_a_text_is_never_taken_and_the_next_try_has_another_seed() -> None:
    server = PretendServer(plan=[drawn("1", ids=[7, 35, 2])] * 4)
    found = draw([server], params())
    assert all((one.ids < 30).all() for one in found.values())
    seeds = [asked["sampling_params"]["sampling_seed"] for asked in server.sampled]
    assert len(set(seeds)) == len(seeds)


def test_a_sample_that_cannot_be_had_is_an_error_with_its_name_and_the_reason() -> None:
    server = PretendServer(plan=[drawn("1", ids=[7, 35, 2])] * 100)
    with pytest.raises(EngineError, match=rf"prompt 1[12], sample 0: drawn {TRIES} times .* id 35"):
        draw([server], params())


def test_a_sample_that_its_owner_refuses_is_drawn_again() -> None:
    terms = Anything(refusals=3)
    server = PretendServer()
    assert len(draw([server], params(n=2), terms=terms)) == 4
    assert len(server.sampled) == 7


def test_a_request_that_the_server_refuses_ends_the_drawing_in_its_words() -> None:
    server = PretendServer()
    server.fail("/generate", "err_over_ctx")
    with pytest.raises(EngineError, match="exceeds the model's maximum context length of 1024"):
        draw([server], params())


def test_a_lost_server_goes_before_other_errors_and_what_arrived_is_kept() -> None:
    server = PretendServer()
    into: dict[tuple[int, int], Drawn] = {}
    client = SamplingClient([Exchange(server)], SMALL, max_in_flight=1, transport=server.transports[1])
    rows = [(0, index) for index in range(4)]
    server.plan = [drawn("1"), drawn("1")]
    usual = server._generate

    def third_dies(asked: dict[str, Any]) -> httpx.Response:
        if len(server.sampled) == 2:
            raise httpx.ReadError("connection reset")
        return usual(asked)

    server._generate = third_dies  # type: ignore[method-assign]
    with pytest.raises(ServerLost):
        client.draw(PROMPTS, rows, params(4), terms=Anything(), deadline_s=LIMIT_S, into=into)
    assert len(into) == 2
    server._generate = usual  # type: ignore[method-assign]
    client.draw(PROMPTS, rows, params(4), terms=Anything(), deadline_s=LIMIT_S, into=into)
    assert sorted(into) == rows
    assert len(server.sampled) == 4


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (TokenPrompt(5, ()), "prompt 5 is empty"),
        (TokenPrompt(5, (1, 40)), r"prompt 5 has token ids outside 0\.\.39"),
        (TokenPrompt(5, (-1, 4)), r"outside 0\.\.39"),
        (TokenPrompt(5, (1,) * 91), "91 prompt tokens and 10 new ones exceed the model's 100 positions"),
    ],
)
def test_a_prompt_that_would_end_a_server_is_never_sent(prompt: TokenPrompt, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        SMALL.check([TokenPrompt(4, (1, 2)), prompt], params())


def test_requests_go_to_the_server_with_the_least_to_do_and_no_more_than_allowed_at_once() -> None:
    servers = {port: PretendServer(url=f"http://127.0.0.1:{port}") for port in (30000, 30001, 30002)}
    at_once = dict.fromkeys(servers, 0)
    most = dict.fromkeys(servers, 0)

    async def handler(request: httpx.Request) -> httpx.Response:
        port = request.url.port
        at_once[port] += 1
        most[port] = max(most[port], at_once[port])
        for _ in range(3):
            await asyncio.sleep(0)
        at_once[port] -= 1
        return servers[port].handle(request)

    exchanges = [Exchange(server) for server in servers.values()]
    client = SamplingClient(exchanges, SMALL, max_in_flight=2, transport=httpx.MockTransport(handler))
    rows = [(p, i) for p in range(2) for i in range(24)]
    client.draw(PROMPTS, rows, params(24), terms=Anything(), deadline_s=LIMIT_S, into={})
    assert [len(server.sampled) for server in servers.values()] == [16, 16, 16]
    assert most == dict.fromkeys(servers, 2)


def test_a_drawing_may_be_done_on_any_thread() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(draw([PretendServer()], params(n=3)))))
    thread.start()
    thread.join(LIMIT_S)
    assert found == [6]


def test_several_samples_in_one_request_would_share_what_must_differ() -> None:
    # n = 2 of one recorded request: fresh ids in place of ours, so neither could be named or seeded.
    recorded = load("generate_n2")
    ids = {one["meta_info"]["id"] for one in recorded["response"]}
    assert len(ids) == 2
    assert recorded["request"].get("rid") not in ids


def test_a_recorded_server_that_was_sent_an_id_out_of_range_is_lost() -> None:
    server = RecordedServer(script={"/generate": ["err_oov"]})
    client = SamplingClient([Exchange(server)], RECORDED, max_in_flight=1, transport=server.transport)
    with pytest.raises(ServerLost, match="the connection broke off"):
        client.draw(PROMPTS, [(0, 0)], params(), terms=Anything(), deadline_s=LIMIT_S, into={})
