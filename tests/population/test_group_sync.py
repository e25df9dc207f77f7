"""Weights by broadcast: the trainer's side over a real gloo group, and what follows when a side fails."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from population.broadcast import Broadcaster
from population.errors import SyncError
from population.placement import Local
from population.processes import join_group
from population.sync import sync_member
from population.updates import LoraSpec, TrainerError, TrainerSpec
from population.weights import inject_lora, merged_tensors, whole_tensors
from server.rollouts.engine import EngineError, trainable_tensors, weights_checksum
from server.rollouts.sglang_control import Bucket
from server.rollouts.sglang_group import GroupPlace, address_towards
from server.rollouts.sglang_weights import prove
from tests.sglang.setting import Setting, flipped, weights

LIMIT_S = 120.0
RECEIVER = Path(__file__).with_name("group_receiver.py")
HERE = GroupPlace(1, "", "127.0.0.1")


def size_of(bucket: Bucket) -> int:
    kinds = [getattr(torch, kind).itemsize for kind in bucket.dtypes]
    return sum(kind * torch.Size(shape).numel() for kind, shape in zip(kinds, bucket.shapes, strict=True))


@pytest.fixture(scope="module")
def group() -> None:
    """This process is a trainer's only rank, as every other test has it."""
    join_group(TrainerSpec(model_path="none", member="one"), torch.device("cpu"), 0, 1, None)


@pytest.fixture
def model() -> Any:
    from population.demo.models import build_model, build_tokenizer

    return build_model("qwen3", build_tokenizer("qwen3"), seed=1)


def test_buckets_hold_every_tensor_once_in_order_and_no_more_bytes_than_asked(model: Any) -> None:
    sender = Broadcaster(model, None, 0, torch.device("cpu"))
    (everything,) = sender.buckets(1 << 30)
    assert everything.names == tuple(trainable_tensors(model))
    assert "lm_head.weight" not in everything.names
    for limit in (1, 20_000, 100_000):
        buckets = sender.buckets(limit)
        assert [name for bucket in buckets for name in bucket.names] == list(everything.names)
        for bucket in buckets:
            assert size_of(bucket) <= limit or len(bucket.names) == 1
    assert len(sender.buckets(1)) == len(everything.names)


def test_a_tensor_that_would_lie_askew_begins_a_bucket_of_its_own() -> None:
    mixed = torch.nn.Module()
    mixed.a = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    mixed.b = torch.nn.Parameter(torch.ones(2))
    mixed.c = torch.nn.Parameter(torch.ones(2))
    buckets = Broadcaster(mixed, None, 0, torch.device("cpu")).buckets(1 << 20)
    assert [bucket.names for bucket in buckets] == [("a",), ("b", "c")]


def test_what_arrives_over_the_wire_is_the_merged_model_bit_for_bit(group: None, model: Any) -> None:
    inject_lora(model, LoraSpec(2, 4.0, "all-linear"), 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
    merged = merged_tensors(model, None)
    assert [whole.shape for whole in whole_tensors(model)] == [tuple(tensor.shape) for tensor in merged.values()]
    sender = Broadcaster(model, None, 0, torch.device("cpu"))
    meeting, buckets = sender.open(HERE, LIMIT_S), sender.buckets(50_000)
    assert [name for bucket in buckets for name in bucket.names] == list(merged)
    where = [meeting.name, meeting.address, str(meeting.port), str(LIMIT_S)]
    receiver = subprocess.Popen(
        [sys.executable, str(RECEIVER), *where, *(str(size_of(bucket)) for bucket in buckets)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        sender.join(1, LIMIT_S)
        sender.send(50_000, LIMIT_S)
        arrived, _ = receiver.communicate(timeout=LIMIT_S)
    finally:
        receiver.kill()
        receiver.wait()
        sender.close()
    sent = hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in merged.values()))
    assert arrived.strip() == sent.hexdigest()


def test_a_group_that_nobody_joins_is_given_up_at_its_deadline(group: None, model: Any) -> None:
    sender = Broadcaster(model, None, 0, torch.device("cpu"))
    with pytest.raises(TrainerError, match="must be opened before"):
        sender.join(1, 1.0)
    with pytest.raises(TrainerError, match="there is no weight group"):
        sender.send(1 << 20, 1.0)
    sender.open(HERE, 1.0)
    with pytest.raises(TrainerError, match="weight group with 1 engine ranks"):
        sender.join(1, 1.0)


def test_the_meeting_point_is_on_loopback_among_processes_of_one_machine(model: Any) -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    sender = Broadcaster(model, None, 0, torch.device("cpu"))
    meeting = sender.open(GroupPlace(1, socket.gethostname(), "192.0.2.1"), 5.0)
    assert (meeting.address, meeting.backend) == ("127.0.0.1", "gloo")
    assert sender.open(HERE, 5.0).name != meeting.name
    sender.close()


class Sender:
    """A trainer that hands its weights to a pretended server, or fails."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.held = setting, {}
        self.fails = ""
        self.opened = 0

    def weights(self) -> dict[str, torch.Tensor]:
        return self.held

    def checksum(self) -> str:
        return weights_checksum(self.held)

    def open_group(self, place: GroupPlace, deadline_s: float) -> Any:
        self.opened += 1
        return SimpleNamespace(name=f"weights-{self.opened}", address="127.0.0.1", port=1, backend="gloo")

    def join_group(self, ranks: int, deadline_s: float) -> None:
        assert ranks == len(self.setting.servers)

    def buckets(self, max_bytes: int) -> list[Bucket]:
        for server in self.setting.servers:
            server.broadcast = self.held
        return [Bucket((name,), ("float32",), (tuple(t.shape),)) for name, t in self.held.items()]

    def send_weights(self, max_bytes: int, deadline_s: float) -> None:
        if self.fails:
            raise TrainerError(self.fails)

    def proof(self, held: Any) -> str:
        try:
            for one in held:
                prove(one, self.held, None)
        except EngineError as error:
            return str(error)
        return ""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Any, Sender, Setting]]:
    """(member, its trainer, its engine's setting)."""
    setting = Setting(tmp_path, servers=2)
    sender = Sender(setting)
    member = SimpleNamespace(
        name="one",
        trainer=Local(lambda: sender),
        engine=Local(lambda: setting.engine),
        weight_version=0,
        group_bytes=1 << 20,
        met=None,
    )
    yield member, sender, setting
    member.trainer.close()
    member.engine.close()


def step(pair: tuple[Any, Sender, Setting], number: int) -> None:
    member, sender, _ = pair
    sender.held = weights(number)
    sync_member(member, number, LIMIT_S)


def test_a_group_is_joined_once_and_used_for_every_step(pair: tuple[Any, Sender, Setting]) -> None:
    member, sender, setting = pair
    for number in (1, 2, 3):
        step(pair, number)
        assert member.weight_version == number
        setting.samples(number)
    assert sender.opened == 1
    assert "/update_weights_from_disk" not in setting.server.asked
    assert setting.engine.drain_events() == ()


@pytest.mark.parametrize("side", ["trainer", "engine", "meeting"])
def test_a_group_that_fails_is_followed_by_whole_weights_from_a_folder_and_a_new_group(
    pair: tuple[Any, Sender, Setting], side: str
) -> None:
    member, sender, setting = pair
    if side == "meeting":
        setting.servers[1].fail("/init_weights_update_group", httpx.ReadTimeout)
    else:
        step(pair, 1)
    if side == "trainer":
        sender.fails = "broadcast of weights: connection closed by peer"
    if side == "engine":
        setting.servers[1].fail("/update_weights_from_distributed", "err_receive_unknown_group")
    step(pair, 2)
    assert member.weight_version == 2
    setting.samples(2)
    events = setting.engine.drain_events()
    assert events[0].startswith("sync by group failed (member one, sync of step 2: ")
    assert events[0].endswith("weights go through a folder")
    sender.fails = ""
    step(pair, 3)
    setting.samples(3)
    assert sender.opened == 2
    assert setting.engine.drain_events() == ()


def test_weights_that_arrive_changed_stop_the_run_by_name(pair: tuple[Any, Sender, Setting]) -> None:
    member, _, setting = pair
    step(pair, 1)
    setting.servers[1].wire = flipped
    with pytest.raises(
        SyncError, match=r"member 'one', phase sync, step 2: .*model.norm.weight differ; stopped before"
    ):
        step(pair, 2)
    assert member.weight_version is None
    setting.refuses_to_sample("model.norm.weight differ")


def test_weights_from_a_folder_that_arrive_changed_stop_the_run_by_name(pair: tuple[Any, Sender, Setting]) -> None:
    member, _, setting = pair
    member.group_bytes = 0
    step(pair, 1)
    setting.servers[1].wire = flipped
    with pytest.raises(SyncError, match=r"member one, sync of step 2: .*model.norm.weight differ"):
        step(pair, 2)
    assert member.weight_version is None
    setting.refuses_to_sample("model.norm.weight differ")
