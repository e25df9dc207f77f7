"""The engine's states: what is sampled always comes from proved weights, whatever fails and wherever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from server.rollouts import sglang_weights
from server.rollouts.engine import EngineError, SamplingParams, weights_checksum
from server.rollouts.sglang_client import Vocabulary
from server.rollouts.sglang_http import AttachedServer
from tests.sglang.pretend import aborted, drawn
from tests.sglang.recorded import answer
from tests.sglang.setting import EMBEDDING, NORM, PARAMS, PROMPTS, Setting, flipped, tokenizer, weights

BY_DISK = ["/pause_generation", "/update_weights_from_disk", "/weights_checker", "/continue_generation"]


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
