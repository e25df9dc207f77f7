"""Whole runs on real servers: two members with tokenizers of their own learn from each other for three steps."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file

from population import servers
from population.config import RunConfig, parse
from population.coordinator import StepReport
from population.run import Watch, train
from server.rollouts.sglang_control import Control
from server.rollouts.sglang_guard import descendants
from server.rollouts.sglang_http import AttachedServer, Exchange
from server.rollouts.sglang_process import SglangServer
from server.rollouts.sglang_weights import HeldWeights, prove
from server.store.reader import Reader, open_reader
from tests.sglang.conftest import Live

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

STEPS = 3
GAP = 1e-4
WATCH_S = 300.0


def configuration(folder: Path, models: dict[str, Path], temperature: float, rollouts: dict[str, Any]) -> RunConfig:
    return parse(
        {
            "name": "live",
            "method": "graft",
            "steps": STEPS,
            "folder": str(folder),
            "members": [{"name": name, "model": str(model)} for name, model in models.items()],
            "data": {"source": "demo:train", "prompts_per_step": 8, "reward": "tests.sglang.lucky:score"},
            "rollouts": {
                "engine": "sglang",
                "rollouts_per_prompt": 4,
                "temperature": temperature,
                "max_prompt_tokens": 32,
                "max_response_tokens": 40,
                **rollouts,
            },
            "update": {"prompts_per_minibatch": 4, "learning_rate": 1e-3, "device": "cpu"},
            "exchange": {"balance": "none", "floor": 0.0, "normaliser": "bytes", "holdout": 0},
        }
    )


def run(config: RunConfig, after_step: Callable[[int], None] = lambda step: None) -> Reader:
    """Train in this process; what the store has of it."""

    def observe(report: StepReport) -> None:
        after_step(report.step)

    train(config, Watch(lambda *_: None, lambda _: None, lambda *_: None, observe), uid="live")
    return open_reader(config.store_url)


def check_steps(reader: Reader) -> None:
    """Three whole steps in which both members sampled, learned and at least one group moved, and engines agreed."""
    (info,) = reader.runs()
    assert (info.status, info.last_step) == ("finished", STEPS)
    steps = range(1, STEPS + 1)
    assert any(reader.step_transfers("live", step) for step in steps)
    for step in steps:
        for name in (member.name for member in info.members):
            groups = reader.groups("live", step, name)
            assert len(groups) == 8
    gaps, tokens = reader.metric("live", "engine_trainer_gap", 1, STEPS)
    assert (tokens > 0).all()
    assert (gaps / tokens < GAP).all()


def holds(server: SglangServer, exported: Path) -> None:
    """Raises EngineError unless the server holds the weights of the folder."""
    with_keys = AttachedServer(server.url, server.api_key, server.admin_key)
    control = Control(Exchange(with_keys))
    held = HeldWeights(server.url, control.facts().device, tuple(control.checksums(60.0)))
    prove(held, load_file(exported / "model.safetensors"), exported)


def bearer(server: SglangServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.api_key}"}


class Killer:
    """Kills the scheduler of one server while it generates, once, after it has been told to."""

    def __init__(self, started: Sequence[SglangServer]) -> None:
        self._started, self._told = started, threading.Event()
        self.killed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def tell(self, step: int) -> None:
        self._told.set()

    def _watch(self) -> None:
        assert self._told.wait(WATCH_S)
        server = next(server for server in self._started if "'llama'" in server.spec.name)
        assert server.guard_pid is not None
        deadline = time.monotonic() + WATCH_S
        with httpx.Client(trust_env=False, headers=bearer(server)) as client:
            while time.monotonic() < deadline:
                loads = client.get(f"{server.url}/v1/loads").json()
                if loads["loads"][0]["num_running_reqs"]:
                    for pid in descendants(server.guard_pid):
                        with suppress(FileNotFoundError):
                            if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes():
                                os.kill(pid, signal.SIGKILL)
                                self.killed.set()
                                return
                time.sleep(0.01)


def test_a_run_starts_its_servers_syncs_by_folder_and_outlives_the_death_of_one_in_mid_generation(
    sglang_python: str, tiny_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[SglangServer] = []
    begin = servers.start_all

    def recording(own: Sequence[SglangServer], model: Path) -> None:
        started.extend(own)
        begin(own, model)

    monkeypatch.setattr(servers, "start_all", recording)
    killer = Killer(started)
    config = configuration(tmp_path, tiny_models, 1.0, {"sync": "disk", "sglang": {"python": sglang_python}})
    with run(config, killer.tell) as reader:
        check_steps(reader)
        assert killer.killed.is_set()
        lost = [event for event in reader.events("live") if "engine lost in sample" in event.message]
        assert [event.member for event in lost] == ["llama"]
    assert len(started) == 2
    assert not any(server.alive for server in started)
    assert not list(tmp_path.glob("live/sglang/*/weights/version_*"))


def test_a_run_attached_to_running_servers_syncs_by_group_and_leaves_them_running_with_its_weights(
    live: dict[str, Live], tiny_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {}
    for name, member in live.items():
        monkeypatch.setenv(f"{name}_API".upper(), member.server.api_key)
        monkeypatch.setenv(f"{name}_ADMIN".upper(), member.server.admin_key)
        own[name] = {
            "urls": [member.server.url],
            "api_key_env": f"{name}_API".upper(),
            "admin_key_env": f"{name}_ADMIN".upper(),
        }
    tree = configuration(tmp_path, tiny_models, 0.6, {"sync": "group"}).model_dump(mode="json")
    for member in tree["members"]:
        member["sglang"] = own[member["name"]]
    with run(parse(tree)) as reader:
        check_steps(reader)
    for name, member in live.items():
        assert member.server.alive
        # An update from a folder would have left that folder's name behind.
        info = httpx.get(f"{member.server.url}/model_info", headers=bearer(member.server), trust_env=False).json()
        assert str(tmp_path) not in info["model_path"]
        holds(member.server, tmp_path / "live" / "members" / name)
