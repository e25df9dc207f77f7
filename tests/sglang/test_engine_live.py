"""The engine on real servers: log-probabilities as the trainer's, weights proved, and what must be refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from population.broadcast import Broadcaster
from population.errors import SyncError
from population.member import load_tokenizer
from population.placement import Local
from population.sync import sync_member
from population.trainer import Trainer, TrainerSpec, TrainingResponse
from server.rollouts import sglang_weights
from server.rollouts.engine import EngineError, Sample, SamplingParams, TokenPrompt
from server.rollouts.sglang_checksums import byte_hash, compare
from server.rollouts.sglang_control import Control
from server.rollouts.sglang_engine import SglangEngine, SglangSettings
from server.rollouts.sglang_http import AttachedServer, Exchange, KeyRefused
from server.rollouts.tokenizer import MemberTokenizer
from tests.sglang.conftest import MEMBERS, Live

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

LIMIT_S = 120.0
GAP = 1e-4
PROMPTS = [TokenPrompt(1, (1, 5, 6, 7)), TokenPrompt(2, (1, 8)), TokenPrompt(3, (1, 9, 10, 11, 12, 13))]
KEYS = [{"admin_key": "wrong"}, {"api_key": "wrong"}, {"api_key": "", "admin_key": ""}]


class Pair:
    """A trainer and an engine of one member as a run has them, synced by hand."""

    def __init__(self, live: Live, folder: Path, *, tokenizer: MemberTokenizer | None = None, **changes: Any) -> None:
        self.live = live
        self.tokenizer = tokenizer or load_tokenizer(live.name, live.model)
        self.folder = folder
        self.changes = changes
        self.trainers: list[Trainer] = []
        self.trainer = self.trainer_at(1.0)
        # Not the server itself, which other tests use too: the engine would end it.
        server = AttachedServer(live.server.url, live.server.api_key, live.server.admin_key)
        settings = SglangSettings(sample_s=LIMIT_S, sync_s=LIMIT_S, keep_split=changes.get("keep_split", False))
        self.engine = SglangEngine([server], self.tokenizer, live.model, folder / "weights", settings)
        self.member = SimpleNamespace(
            name=live.name,
            trainer=Local(lambda: self.trainer),
            engine=Local(lambda: self.engine),
            weight_version=0,
            group_bytes=changes.get("group_bytes", 0),
            met=None,
        )

    def trainer_at(self, temperature: float) -> Trainer:
        limit = self.tokenizer.id_limit
        spec = TrainerSpec(
            model_path=str(self.live.model),
            member=self.live.name,
            learning_rate=1e-3,
            temperature=temperature,
            device="cpu",
            dtype="float32",
            vocab_limit=limit,
        )
        self.trainers.append(Trainer(spec))
        return self.trainers[-1]

    def sync(self, version: int) -> None:
        sync_member(self.member, version, LIMIT_S)

    def train(self, step: int, samples: list[list[Sample]]) -> None:
        """One update that changes every weight."""
        responses = [
            TrainingResponse(
                prompt_ids=np.array(prompt.ids),
                response_ids=sample.ids,
                old_logprobs=None,
                advantage=float(1 - 2 * (sample.index % 2)),
            )
            for prompt, row in zip(PROMPTS, samples, strict=True)
            for sample in row
        ]
        before = self.trainer.checksum()
        self.trainer.update(step, [responses])
        assert self.trainer.checksum() != before

    def gap(self, samples: list[list[Sample]], trainer: Trainer) -> float:
        """The largest difference of a log-probability between engine and trainer."""
        rows = [(prompt, sample) for prompt, row in zip(PROMPTS, samples, strict=True) for sample in row]
        scored = trainer.score([(np.array(prompt.ids), sample.ids) for prompt, sample in rows])
        return max(float(np.abs(own - sample.logprobs).max()) for own, (_, sample) in zip(scored, rows, strict=True))

    def sample(self, n: int = 8, tokens: int = 40, **changes: Any) -> list[list[Sample]]:
        return self.engine.sample(PROMPTS, SamplingParams(n=n, max_new_tokens=tokens, **changes))

    def close(self) -> None:
        self.engine.close()
        self.member.trainer.close()
        self.member.engine.close()
        for trainer in self.trainers:
            trainer.close()


@pytest.fixture
def paired(live: dict[str, Live], tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """A function that makes the pair of a member; all are closed at the end."""
    made: list[Pair] = []

    def make(name: str, **changes: Any) -> Pair:
        made.append(Pair(live[name], tmp_path / f"{name}-{len(made)}", **changes))
        return made[-1]

    try:
        yield make
    finally:
        for pair in made:
            pair.close()


@pytest.mark.parametrize("group_bytes", [0, 40_000], ids=["disk", "group"])
@pytest.mark.parametrize("name", MEMBERS)
def test_engine_and_trainer_agree_after_every_sync_at_both_temperatures(
    paired: Callable[..., Pair], name: str, group_bytes: int
) -> None:
    pair = paired(name, group_bytes=group_bytes)
    for version in (1, 2):
        pair.sync(version)
        assert pair.engine.checksum() == pair.trainer.checksum()
        assert pair.engine.drain_events() == ()
        for temperature in (1.0, 0.6):
            # The trainer's own temperature is fixed, so that another one reads the other's weights.
            scorer = pair.trainer if temperature == 1.0 else pair.trainer_at(temperature)
            if scorer is not pair.trainer:
                scorer._model.hf.load_state_dict(pair.trainer._model.hf.state_dict())
            samples = pair.sample(temperature=temperature)
            assert {sample.weight_version for row in samples for sample in row} == {version}
            assert pair.gap(samples, scorer) < GAP
        pair.train(version, pair.sample())


@pytest.mark.parametrize("name", MEMBERS)
def test_a_server_says_of_its_weights_what_is_computed_here(paired: Callable[..., Pair], name: str) -> None:
    pair = paired(name)
    pair.sync(1)
    ranks = pair.engine._units[0].control.checksums(LIMIT_S)
    sent = {key: tensor.clone() for key, tensor in pair.trainer.weights().items()}
    assert compare(ranks, sent, byte_hash).equal
    for key in sent:
        spoiled = {**sent, key: sent[key].clone()}
        spoiled[key].view(torch.int32).view(-1)[-1] ^= 1
        assert len(compare(ranks, spoiled, byte_hash).differing) == 1


def test_a_tensor_that_is_spoiled_on_disk_is_refused_by_name_and_nothing_is_sampled(
    paired: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = paired("llama")
    pair.sync(1)
    write = sglang_weights.save_file

    def spoil(tensors: dict[str, torch.Tensor], *rest: Any, **named: Any) -> None:
        name = "model.layers.1.mlp.up_proj.weight"
        spoiled = {**tensors, name: tensors[name].clone()}
        spoiled[name].view(torch.int32).view(-1)[5] ^= 1 << 20
        write(spoiled, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(sglang_weights, "save_file", spoil)
        with pytest.raises(SyncError, match=r"member llama, sync of step 2: .*model.layers.1.mlp.gate_up_proj.weight"):
            pair.sync(2)
    with pytest.raises(EngineError, match="proved right"):
        pair.sample()
    pair.sync(2)
    assert pair.gap(pair.sample(), pair.trainer) < GAP


def test_a_tensor_that_is_spoiled_on_the_wire_is_refused_by_name_and_nothing_is_sampled(
    paired: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = paired("qwen3", group_bytes=40_000)
    pair.sync(1)
    send = Broadcaster._send

    def spoil(self: Broadcaster, buffer: torch.Tensor, deadline_s: float) -> None:
        buffer[-1] ^= 1
        send(self, buffer, deadline_s)

    with monkeypatch.context() as patch:
        patch.setattr(Broadcaster, "_send", spoil)
        with pytest.raises(SyncError, match=r"member 'qwen3', phase sync, step 2: .* differ; stopped"):
            pair.sync(2)
    with pytest.raises(EngineError, match="proved right"):
        pair.sample()
    pair.sync(2)
    assert pair.gap(pair.sample(), pair.trainer) < GAP


def test_a_trainer_that_does_not_send_costs_the_group_and_the_weights_come_by_disk(
    paired: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = paired("qwen3", group_bytes=40_000)
    pair.sync(1)

    def fail(self: Broadcaster, buffer: torch.Tensor, deadline_s: float) -> None:
        self.close()
        raise RuntimeError("the trainer's side is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Broadcaster, "_send", fail)
        pair.sync(2)
    assert pair.engine.drain_events()[0].startswith("sync by group failed")
    assert pair.gap(pair.sample(), pair.trainer) < GAP
    pair.sync(3)
    assert pair.engine.drain_events() == ()
    assert pair.gap(pair.sample(), pair.trainer) < GAP


def test_ids_that_the_tokenizer_does_not_know_are_never_sampled_and_the_rest_sums_to_one(
    live: dict[str, Live], paired: Callable[..., Pair]
) -> None:
    # The larger model with the smaller one's tokenizer: 61 of its 101 ids have no text.
    pair = paired("llama", tokenizer=load_tokenizer("qwen3", live["qwen3"].model))
    pair.sync(1)
    assert len(pair.engine._vocabulary.bias) == 61
    for temperature in (1.0, 0.6):
        scorer = pair.trainer if temperature == 1.0 else pair.trainer_at(temperature)
        samples = pair.sample(n=32, temperature=temperature)
        assert max(int(sample.ids.max()) for row in samples for sample in row) < 40
        assert pair.gap(samples, scorer) < GAP


def test_greedy_samples_have_the_log_probabilities_of_temperature_one(paired: Callable[..., Pair]) -> None:
    pair = paired("qwen3")
    pair.sync(1)
    samples = pair.sample(n=2, temperature=0.0)
    assert all(np.array_equal(row[0].ids, row[1].ids) for row in samples)
    assert pair.gap(samples, pair.trainer) < GAP


def test_truncated_samples_have_the_log_probabilities_of_the_whole_distribution(paired: Callable[..., Pair]) -> None:
    pair = paired("llama")
    pair.sync(1)
    for cut in ({"top_p": 0.5}, {"top_k": 5}):
        assert pair.gap(pair.sample(**cut), pair.trainer) < GAP


def test_an_id_out_of_range_is_refused_here_and_the_server_lives(paired: Callable[..., Pair]) -> None:
    pair = paired("qwen3")
    pair.sync(1)
    for token in (40, -1, 10**6):
        with pytest.raises(EngineError, match=r"prompt 9 has token ids outside 0\.\.39"):
            pair.engine.sample([PROMPTS[0], TokenPrompt(9, (1, token))], SamplingParams(n=1, max_new_tokens=2))
    assert pair.gap(pair.sample(), pair.trainer) < GAP


def test_a_request_that_the_server_refuses_is_told_in_its_words_and_the_server_lives(
    paired: Callable[..., Pair],
) -> None:
    pair = paired("qwen3")
    pair.sync(1)
    pair.engine._vocabulary = replace(pair.engine._vocabulary, positions=None)
    with pytest.raises(EngineError, match="maximum context length"):
        pair.sample(tokens=5000)
    assert pair.gap(pair.sample(), pair.trainer) < GAP


def test_wrong_and_missing_keys_are_named_errors(live: dict[str, Live]) -> None:
    server = live["qwen3"].server
    for wrong in KEYS:
        keys = {"api_key": server.api_key, "admin_key": server.admin_key, **wrong}
        control = Control(Exchange(AttachedServer(server.url, **keys)))
        if keys["api_key"] != server.api_key:
            with pytest.raises(KeyRefused, match=r"/server_info: the API key (was refused|is missing); check"):
                control.facts()
        if keys["admin_key"] != server.admin_key:
            with pytest.raises(KeyRefused, match=r"/pause_generation: the (admin|API) key (was refused|is missing)"):
                control.pause("abort", LIMIT_S)


@pytest.mark.parametrize("keep", [True, False], ids=["keep", "drop"])
def test_weights_that_change_while_samples_run_leave_no_sample_unmarked(
    paired: Callable[..., Pair], keep: bool
) -> None:
    pair = paired("qwen3", keep_split=keep)
    pair.sync(1)
    found: list[list[list[Sample]]] = []
    drawing = threading.Thread(target=lambda: found.append(pair.sample(n=60, tokens=90)), daemon=True)
    drawing.start()
    exchange = pair.engine._units[0].exchange
    while drawing.is_alive() and not exchange.read("/v1/loads")["loads"][0]["num_running_reqs"]:
        drawing.join(0.01)
    pair.engine.load_weights(2, pair.trainer.weights())
    drawing.join(LIMIT_S)
    samples = [sample for row in found[0] for sample in row]
    assert len(samples) == 180
    assert {sample.weight_version for sample in samples} <= {1, 2}
    assert any(sample.weight_version == 2 for sample in samples)
    assert any(sample.split for sample in samples) is keep
    # Both versions are the same weights, so every log-probability is still the trainer's.
    assert pair.gap(found[0], pair.trainer) < GAP


@pytest.mark.parametrize("group_bytes", [0, 40_000], ids=["disk", "group"])
def test_a_sleeping_server_is_woken_by_a_sync(paired: Callable[..., Pair], group_bytes: int) -> None:
    # Without a GPU a server gives nothing back; that it is asked in an order it accepts is what shows here.
    pair = paired("llama", group_bytes=group_bytes)
    pair.sync(1)
    for version in (2, 3):
        pair.engine.sleep()
        with pytest.raises(EngineError, match="sleeps"):
            pair.sample()
        pair.sync(version)
        assert pair.gap(pair.sample(), pair.trainer) < GAP


def test_a_wake_that_failed_can_be_tried_again(paired: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    pair = paired("llama")
    pair.sync(1)
    pair.engine.sleep()
    with monkeypatch.context() as patch:
        patch.setattr(sglang_weights, "compare", lambda *_: (_ for _ in ()).throw(EngineError("spoiled")))
        with pytest.raises(SyncError, match="spoiled"):
            pair.sync(2)
    pair.sync(2)
    assert pair.gap(pair.sample(), pair.trainer) < GAP
