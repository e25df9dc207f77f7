"""The engine's states: what is sampled always comes from proved weights, whatever fails and wherever."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from population.demo.models import build_tokenizer
from server.rollouts import sglang_weights
from server.rollouts.engine import EngineError, SamplingParams, TokenPrompt, WeightsLost, weights_checksum
from server.rollouts.sglang_client import Vocabulary
from server.rollouts.sglang_control import Bucket
from server.rollouts.sglang_engine import SglangEngine, SglangSettings
from server.rollouts.sglang_http import AttachedServer
from server.rollouts.tokenizer import MemberTokenizer
from tests.sglang.pretend import PretendServer, aborted, drawn
from tests.sglang.recorded import answer

PROMPTS = [TokenPrompt(1, (1, 5, 6)), TokenPrompt(2, (1, 7))]
PARAMS = SamplingParams(n=2, max_new_tokens=6)
BY_DISK = ["/pause_generation", "/update_weights_from_disk", "/weights_checker", "/continue_generation"]
EMBEDDING, NORM = "model.embed_tokens.weight", "model.norm.weight"
BUCKETS = [Bucket((EMBEDDING,), ("float32",), ((40, 8),)), Bucket((NORM,), ("float32",), ((8,),))]
GROUP = ("weights-1", "127.0.0.1", 31999, "gloo")


@cache
def tokenizer() -> MemberTokenizer:
    return MemberTokenizer(build_tokenizer("qwen3"))


def weights(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {EMBEDDING: torch.randn(40, 8), NORM: torch.randn(8)}


def flipped(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One bit of the norm is another."""
    spoiled = {name: tensor.clone() for name, tensor in held.items()}
    if NORM in spoiled:
        spoiled[NORM].view(torch.int32)[3] ^= 1
    return spoiled


class Setting:
    """One engine on pretended servers, and the folder its weights go to."""

    def __init__(self, folder: Path, servers: int = 1, **settings: Any) -> None:
        self.model, self.place = folder / "model", folder / "weights"
        self.model.mkdir()
        config = {"vocab_size": 40, "max_position_embeddings": 64, "eos_token_id": 2}
        (self.model / "config.json").write_text(json.dumps(config))
        sglang_weights.save_file(weights(0), self.model / "model.safetensors")
        self.servers = [PretendServer(url=f"http://127.0.0.1:{30000 + number}") for number in range(servers)]
        by_port = {httpx.URL(server.url).port: server for server in self.servers}

        def handle(request: httpx.Request) -> httpx.Response:
            return by_port[request.url.port].handle(request)

        self.engine = SglangEngine(
            self.servers,
            tokenizer(),
            self.model,
            self.place,
            SglangSettings(**settings),
            transports=(httpx.MockTransport(handle), httpx.MockTransport(handle)),
        )

    @property
    def server(self) -> PretendServer:
        return self.servers[0]

    def sync(self, version: int) -> str:
        return self.engine.load_weights(version, weights(version))

    def asked_by(self, act: Callable[[], Any]) -> list[str]:
        """The routes that an action asks of the first server."""
        self.server.asked.clear()
        act()
        return list(self.server.asked)

    def refuses_to_sample(self, because: str) -> None:
        before = [len(server.sampled) for server in self.servers]
        with pytest.raises(EngineError, match=because):
            self.engine.sample(PROMPTS, PARAMS)
        assert [len(server.sampled) for server in self.servers] == before

    def samples(self, version: int) -> None:
        found = self.engine.sample(PROMPTS, PARAMS)
        assert [len(row) for row in found] == [2, 2]
        assert {one.weight_version for row in found for one in row} == {version}


def test_nothing_is_sampled_before_the_first_sync(tmp_path: Path) -> None:
    Setting(tmp_path).refuses_to_sample("holds no weights of the run yet")


def test_a_sync_pauses_updates_proves_and_goes_on(tmp_path: Path) -> None:
    setting = Setting(tmp_path, servers=2)
    sent = weights(3)
    assert setting.asked_by(lambda: setting.engine.load_weights(3, sent)) == BY_DISK
    assert setting.engine.checksum() == weights_checksum(sent)
    assert setting.engine.weight_version == 3
    for server in setting.servers:
        assert torch.equal(server.weights[EMBEDDING], sent[EMBEDDING])
        assert (server.version, server.paused) == ("3", False)
    setting.samples(3)


def test_a_sample_has_text_by_the_members_tokenizer_and_its_end_token_in_the_ids(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(3)
    one = setting.engine.sample(PROMPTS, PARAMS)[1][1]
    assert (one.prompt, one.index, one.finish, one.split) == (2, 1, "stop", False)
    assert one.ids.tolist() == [7, 7, 7, 2]
    assert one.logprobs.tolist() == [-0.5, -1.5, -2.5, -3.5]
    assert one.text == setting.engine._tokenizer.decode([7, 7, 7])
    assert not setting.engine.exact_logprobs


def test_one_folder_of_weights_is_kept_and_it_is_a_whole_model(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    for version in (1, 2, 3):
        setting.sync(version)
    (folder,) = setting.place.iterdir()
    assert folder.name == "version_3"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert weights_checksum(load_file(folder / "model.safetensors")) == weights_checksum(weights(3))


def test_closing_ends_the_servers_and_takes_the_folders_away(tmp_path: Path) -> None:
    setting = Setting(tmp_path, servers=2)
    setting.sync(1)
    setting.engine.close()
    setting.engine.close()
    assert not any(server.alive for server in setting.servers)
    assert not setting.place.exists()
    setting.refuses_to_sample("is closed")
    with pytest.raises(EngineError, match="is closed"):
        setting.sync(2)


@pytest.mark.parametrize("route", BY_DISK)
@pytest.mark.parametrize("fault", ["err_end_without_begin", httpx.ReadTimeout])
def test_a_sync_that_fails_anywhere_stops_sampling_until_one_succeeds(tmp_path: Path, route: str, fault: Any) -> None:
    setting = Setting(tmp_path, servers=2)
    setting.sync(1)
    setting.servers[1].fail(route, fault)
    with pytest.raises(EngineError, match=rf"http://127.0.0.1:30001{route}"):
        setting.sync(2)
    setting.refuses_to_sample(rf"no weights that are proved right \(POST .*{route}.*; a sync must succeed first")
    with pytest.raises(EngineError, match="proved right"):
        setting.engine.checksum()
    setting.sync(3)
    setting.samples(3)


def test_weights_that_cannot_be_written_stop_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sglang_weights, "save_file", full)
        with pytest.raises(EngineError, match=r"weights of version 2 cannot be written to .*No space left"):
            setting.sync(2)
    setting.refuses_to_sample("No space left")
    assert [folder.name for folder in setting.place.iterdir()] == ["version_1"]
    setting.sync(2)
    setting.samples(2)


def test_weights_taken_over_with_a_dirty_cache_are_flushed_and_used(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    usual = setting.server._update_weights_from_disk

    def dirty(asked: dict[str, Any]) -> httpx.Response:
        usual(asked)
        return answer("update_weights_from_disk_paused_in_place_flush_true")

    setting.server._update_weights_from_disk = dirty  # type: ignore[method-assign]
    asked = setting.asked_by(lambda: setting.sync(4))
    assert asked == [*BY_DISK[:2], "/flush_cache", *BY_DISK[2:]]
    setting.samples(4)


@pytest.mark.parametrize("broken", [0, 1])
def test_one_flipped_bit_on_any_server_is_refused_by_name(tmp_path: Path, broken: int) -> None:
    setting = Setting(tmp_path, servers=2)
    setting.sync(1)
    setting.servers[broken].wire = flipped
    with pytest.raises(EngineError, match=rf"127.0.0.1:3000{broken} does not hold the weights .*: {NORM} differ"):
        setting.sync(2)
    setting.refuses_to_sample(f"{NORM} differ")
    assert setting.servers[broken].paused
    setting.servers[broken].wire = dict
    setting.sync(2)
    setting.samples(2)


def test_weights_that_somebody_else_changed_are_found(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.server.weights = flipped(setting.server.weights)
    with pytest.raises(EngineError, match="holds other weights than those of version 1"):
        setting.engine.checksum()
    setting.refuses_to_sample("other weights")


def test_tensors_without_a_name_of_ours_are_proved_by_their_folder_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(tmp_path)
    setting.server.wire = lambda held: {EMBEDDING: held[EMBEDDING], "model.experts.w13": held[NORM]}
    setting.sync(1)
    setting.sync(2)
    (remark,) = setting.engine.drain_events()
    assert "1 of its tensors are compared with the trainer's by hash; model.experts.w13 stand for no tensor" in remark
    setting.samples(2)
    monkeypatch.setattr(sglang_weights, "load_file", lambda path: flipped(load_file(path)))
    with pytest.raises(EngineError, match=r"version_3 does not hold the weights that were written to it"):
        setting.sync(3)
    setting.refuses_to_sample("proved right")


def test_tensors_that_a_server_does_not_have_are_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.server.wire = lambda held: {EMBEDDING: held[EMBEDDING]}
    with pytest.raises(EngineError, match=f"{NORM} have no counterpart on the server"):
        setting.sync(1)


def test_a_server_that_dies_while_it_samples_is_restarted_with_the_weights_in_use(tmp_path: Path) -> None:
    setting = Setting(tmp_path, servers=2)
    setting.sync(5)
    setting.servers[1].die("/generate")
    setting.samples(5)
    assert setting.servers[1].restarts == [(setting.place / "version_5", "5")]
    assert setting.servers[0].restarts == []
    (event,) = setting.engine.drain_events()
    assert event.startswith("engine lost in sample: ")
    assert event.endswith("samples drawn again")
    assert "it was ended by signal 9" in event
    assert setting.engine.drain_events() == ()
    setting.samples(5)


def test_a_server_that_comes_back_with_other_weights_is_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(5)
    setting.server.die("/generate")
    setting.server.wire = flipped
    with pytest.raises(EngineError, match="holds other weights than those of version 5"):
        setting.engine.sample(PROMPTS, PARAMS)
    setting.refuses_to_sample("other weights")


def test_a_server_that_dies_over_and_over_is_given_up(tmp_path: Path) -> None:
    setting = Setting(tmp_path, restarts=2)
    setting.sync(1)

    def dies(_: dict[str, Any]) -> httpx.Response:
        setting.server.alive = False
        raise httpx.ReadError("connection reset")

    setting.server._generate = dies  # type: ignore[method-assign]
    with pytest.raises(EngineError, match=r"an engine was lost 3 times in a row, now: .*signal 9"):
        setting.engine.sample(PROMPTS, PARAMS)
    assert len(setting.server.restarts) == 2


def test_a_server_that_cannot_be_restarted_is_an_error_with_the_reason(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.server.die("/generate")
    setting.server.restart_fails = "its SGLang server ended with exit code 1; out of memory"
    with pytest.raises(EngineError, match="out of memory"):
        setting.engine.sample(PROMPTS, PARAMS)
    setting.refuses_to_sample("out of memory")


def test_a_server_of_somebody_else_is_not_restarted() -> None:
    with pytest.raises(
        EngineError, match=r"http://a:1 does not answer and is not a server of this run: start it again"
    ):
        AttachedServer("http://a:1/").restart(Path("/weights"))


@pytest.mark.parametrize("route", BY_DISK[:2])
def test_a_server_that_dies_in_a_sync_is_restarted_with_the_new_weights(tmp_path: Path, route: str) -> None:
    setting = Setting(tmp_path, servers=2)
    setting.sync(1)
    setting.servers[0].die(route)
    setting.sync(2)
    assert [version for _, version in setting.servers[0].restarts] == ["2"]
    (event,) = setting.engine.drain_events()
    assert event.startswith("engine lost in sync: ")
    setting.samples(2)


def test_a_server_that_did_not_answer_an_update_is_restarted_by_the_next_sync(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.server.fail("/update_weights_from_disk", httpx.ReadTimeout)
    with pytest.raises(EngineError, match="no answer within"):
        setting.sync(2)
    setting.sync(3)
    assert [version for _, version in setting.server.restarts] == ["3"]
    setting.samples(3)


@pytest.mark.parametrize("keep", [True, False])
def test_a_sample_over_two_versions_is_kept_and_marked_or_drawn_again(tmp_path: Path, keep: bool) -> None:
    setting = Setting(tmp_path, keep_split=keep)
    setting.sync(3)

    def meanwhile(asked: dict[str, Any]) -> Any:
        setting.sync(4)
        return drawn("3", "4")(asked) if keep else aborted(asked)

    setting.server.plan = [meanwhile, drawn("3", "4")]
    ((first,),) = setting.engine.sample(PROMPTS[:1], SamplingParams(n=1, max_new_tokens=6))
    assert (first.weight_version, first.split) == (4, keep)
    assert setting.server.modes[-1] == ("retract" if keep else "abort")
    assert len(setting.server.sampled) == (1 if keep else 3)
    assert setting.engine.weight_version == 4


def test_a_sample_from_weights_that_are_not_the_engines_is_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(3)
    for label in ("2", "default"):
        setting.server.plan = [drawn(label)]
        with pytest.raises(EngineError, match=f"weights labelled '{label}', the engine's are 3"):
            setting.engine.sample(PROMPTS, PARAMS)
    setting.samples(3)


def test_samples_that_run_when_a_sync_fails_are_not_handed_out(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(3)

    def meanwhile(asked: dict[str, Any]) -> Any:
        setting.server.fail("/update_weights_from_disk", "update_weights_from_disk_missing")
        with pytest.raises(EngineError):
            setting.sync(4)
        return drawn("3")(asked)

    setting.server.plan = [meanwhile]
    with pytest.raises(EngineError, match="proved right"):
        setting.engine.sample(PROMPTS[:1], PARAMS)
    assert "/abort_request" in setting.server.asked


def test_sleep_gives_memory_back_and_a_sync_wakes_in_order(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    assert setting.asked_by(setting.engine.sleep) == ["/pause_generation", "/flush_cache", "/release_memory_occupation"]
    assert setting.server.released == {"weights", "kv_cache"}
    setting.refuses_to_sample("sleeps")
    with pytest.raises(EngineError, match="sleeps"):
        setting.engine.sleep()
    assert setting.asked_by(lambda: setting.sync(2)) == [
        "/resume_memory_occupation",
        "/update_weights_from_disk",
        "/weights_checker",
        "/resume_memory_occupation",
        "/flush_cache",
        "/continue_generation",
    ]
    setting.samples(2)


@pytest.mark.parametrize(
    "route", ["/resume_memory_occupation", "/update_weights_from_disk", "/weights_checker", "/continue_generation"]
)
@pytest.mark.parametrize("fault", ["err_end_without_begin", httpx.ReadTimeout])
def test_a_wake_that_fails_anywhere_stops_sampling_until_a_sync_succeeds(
    tmp_path: Path, route: str, fault: Any
) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.engine.sleep()
    setting.server.fail(route, fault)
    with pytest.raises(EngineError, match=route):
        setting.sync(2)
    setting.refuses_to_sample("proved right")
    setting.sync(3)
    assert not setting.server.released
    setting.samples(3)


def test_an_engine_cannot_sleep_before_its_weights_are_proved_or_while_it_samples(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    with pytest.raises(EngineError, match="holds no weights"):
        setting.engine.sleep()
    setting.sync(1)

    def meanwhile(asked: dict[str, Any]) -> Any:
        with pytest.raises(EngineError, match="cannot sleep while samples are being drawn"):
            setting.engine.sleep()
        return drawn("1")(asked)

    setting.server.plan = [meanwhile]
    setting.samples(1)


def by_group(setting: Setting, version: int) -> Any:
    """The engine's part of a sync by group, up to what is to be proved."""
    for server in setting.servers:
        server.broadcast = weights(version)
    return setting.engine.receive(version, BUCKETS)


def test_weights_by_group_are_sampled_once_they_are_confirmed(tmp_path: Path) -> None:
    setting = Setting(tmp_path, servers=2)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    assert setting.engine.group_place().ranks == 2
    asked = setting.asked_by(lambda: by_group(setting, 2))
    assert asked == [
        "/pause_generation",
        "/begin_weight_update",
        *["/update_weights_from_distributed"] * 2,
        "/end_weight_update",
        "/flush_cache",
        "/weights_checker",
    ]
    setting.refuses_to_sample("has received weights that are not yet proved")
    held = by_group(setting, 2)
    for one in held:
        assert sglang_weights.prove(one, weights(2), None) == ""
    setting.engine.confirm(2, weights_checksum(weights(2)), held)
    assert setting.engine.checksum() == weights_checksum(weights(2))
    setting.samples(2)


def test_a_bit_that_flips_on_the_wire_is_found_by_the_sender_and_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    setting.server.wire = flipped
    (held,) = by_group(setting, 2)
    with pytest.raises(EngineError, match=f"{NORM} differ") as caught:
        sglang_weights.prove(held, weights(2), None)
    setting.engine.refuse(str(caught.value))
    setting.refuses_to_sample(f"{NORM} differ")
    assert setting.server.paused
    assert setting.engine.drain_events() == (str(caught.value),)
    setting.server.wire = dict
    setting.sync(2)
    setting.samples(2)


def test_weights_by_group_that_cannot_be_compared_by_name_are_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    setting.server.wire = lambda held: {f"other.{name}": tensor for name, tensor in held.items()}
    setting.server.weights = {}
    (held,) = by_group(setting, 2)
    with pytest.raises(EngineError, match=r"a sync by group cannot be proved; use rollouts.sync: disk"):
        sglang_weights.prove(held, weights(2), None)


@pytest.mark.parametrize(
    "route",
    [
        "/pause_generation",
        "/begin_weight_update",
        "/update_weights_from_distributed",
        "/end_weight_update",
        "/weights_checker",
    ],
)
@pytest.mark.parametrize("fault", ["err_end_without_begin", httpx.ReadTimeout, httpx.ReadError])
def test_a_sync_by_group_that_fails_anywhere_needs_whole_weights_from_a_folder(
    tmp_path: Path, route: str, fault: Any
) -> None:
    setting = Setting(tmp_path, servers=2)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    setting.servers[1].fail(route, fault)
    with pytest.raises(EngineError):
        by_group(setting, 2)
    setting.refuses_to_sample("proved right")
    with pytest.raises(EngineError, match="proved right"):
        setting.engine.confirm(2, "", [])
    assert not any(server.groups for server in setting.servers)
    setting.sync(3)
    setting.samples(3)


def test_a_sleeping_engine_is_woken_by_group_in_order(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    setting.engine.sleep()
    held = by_group(setting, 2)
    setting.engine.confirm(2, weights_checksum(weights(2)), held)
    assert setting.server.asked[-3:] == ["/resume_memory_occupation", "/flush_cache", "/continue_generation"]
    setting.samples(2)


def test_a_server_that_dies_after_a_sync_by_group_needs_its_weights_again(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.sync(1)
    setting.engine.join_group(*GROUP)
    setting.engine.confirm(2, weights_checksum(weights(2)), by_group(setting, 2))
    setting.server.die("/generate")
    with pytest.raises(WeightsLost, match="its weights came by group, so that no folder has them"):
        setting.engine.sample(PROMPTS, PARAMS)
    assert setting.server.restarts == [(setting.model, "default")]
    setting.refuses_to_sample("came by group")
    setting.sync(2)
    setting.samples(2)


def test_data_parallel_copies_are_refused_a_group(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.engine._units[0].facts = setting.engine._units[0].facts.__class__("0.5.23", "cuda", 1, 2, False)
    with pytest.raises(EngineError, match=r"2 data-parallel copies; .* use replicas in place of data_parallel"):
        setting.engine.group_place()


def test_what_a_user_should_know_of_the_servers_is_said(tmp_path: Path) -> None:
    assert Setting(tmp_path).engine.notes == ()
    other = tmp_path / "other"
    other.mkdir()
    setting = Setting(other)
    (setting.model / "config.json").write_text(json.dumps({"vocab_size": 40, "eos_token_id": [2, 9]}))
    assert setting.engine._remarks(setting.model) == (
        "the servers also end a response at ids [9], which the model's config.json names",
    )


def test_a_model_folder_that_does_not_go_with_the_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config.json cannot be read"):
        Vocabulary.of(tmp_path, tokenizer())
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineError, match=r"config.json names no vocab_size"):
        Vocabulary.of(tmp_path, tokenizer())
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 44}}))
    found = Vocabulary.of(tmp_path, tokenizer())
    assert found.bias == {str(token): -1e30 for token in range(40, 44)}
    assert (found.ends, found.positions) == (frozenset([2]), None)
