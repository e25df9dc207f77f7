"""A run on a cluster is the run in one process, whatever is killed meanwhile. Slow: each run starts its actors."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from population.config import load
from population.errors import ResumeError
from population.placement.remote import Remote
from population.run import Watch, train
from server.store.reader import open_reader
from server.store.verify import verify
from tests.cluster.sabotage import Kill, sabotaged
from tests.commands import ROOT
from tests.faults.test_kill_and_resume import everything, weights
from tests.postgres import Server

pytestmark = pytest.mark.slow
STEPS = 4
PATIENCE_S = 300
WATCH = Watch(lambda *progress: None, lambda note: None, lambda *beginning: None, lambda report: None)
SMALL = (
    f"steps={STEPS}",
    "data.prompts_per_step=6",
    "update.prompts_per_minibatch=3",
    "checkpoint.every_steps=2",
    f"evaluation.every_steps={STEPS}",
    "evaluation.repeats=1",
    "evaluation.benchmarks.heldout.limit=6",
    "exchange.router=scored",
)

# What a member does at its device, from its update to its next samples.
TURN = (("trainer", "update"), ("engine", "load_weights"), ("engine", "sample"))

# Answers that no rule of the verifier decides, so that every one of them goes through a worker.
BY_FUNCTION = ("data.reward=server.rewards.choice:score",)


def run(
    folder: Path, uid: str, *settings: str, store: str = "", cluster: str | None = None, resume: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Train the demo; all that it recorded, and the warnings, oldest first."""
    store = store or f"sqlite:///{folder / f'{uid}.db'}"
    config = load("configs/demo.yaml", [f"folder={folder}", f"store={store}", *SMALL, *settings])
    assert train(config, WATCH, uid=uid, cluster=cluster, resume=resume) == uid
    with open_reader(store) as reader:
        assert reader.run(uid).status == "finished"
        warnings = [event for event in reversed(reader.events(uid)) if event.level == "warning"]
        return everything(reader, uid, STEPS), [f"{event.member} {event.step} {event.message}" for event in warnings]


@pytest.fixture(scope="module")
def here(warm_folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The run of one process."""
    return run(warm_folder, "here", *BY_FUNCTION)


def test_kills_of_an_engine_a_trainer_and_verifiers_leave_the_run_of_one_process(
    warm_folder: Path, here: tuple[dict[str, Any], list[str]], address: str
) -> None:
    expected, calm = here
    kills = [
        Kill("the engine of qwen3", "sample", 2),
        Kill("the trainer of llama", "update", 4),
        Kill("verifier 1", "grade", 8, worker=True),
        Kill("verifier 1", "grade", 11),
    ]
    with sabotaged(kills) as done:
        found, warned = run(warm_folder, "there", *BY_FUNCTION, cluster=address)
    assert set(done) == set(kills)
    for key in expected:
        assert found[key] == expected[key], key
    for of in ("members", "best"):
        assert weights(warm_folder, "there", of) == weights(warm_folder, "here", of)
        assert len(weights(warm_folder, "here", of)) == 3
    told = sorted(text for text in warned if text not in calm)
    wanted = [
        r"None \d 1 verifier worker\(s\) died and were replaced; their answers were tried again",
        r"None \d verifier 1: .*; started again, its answers were graded again",
        r"llama 4 trainer lost in update: .*; restarted, loaded as of step 2, 1 update\(s\) repeated",
        r"qwen3 2 engine lost in sample: .*; restarted, samples drawn again",
    ]
    assert [bool(re.fullmatch(*pair)) for pair in zip(wanted, told, strict=True)] == [True] * 4, told


def test_members_on_parts_of_one_gpu_take_turns_and_are_the_run_of_one_process_on_postgresql(
    warm_folder: Path,
    here: tuple[dict[str, Any], list[str]],
    address: str,
    postgres: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []
    original = Remote.call

    def call(self: Remote, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        part, _, member = self._name.removeprefix("the ").partition(" of ")
        if (part, method) in TURN:
            asked.append((method, member))
        return original(self, method, *args, **kwargs)

    monkeypatch.setattr(Remote, "call", call)
    store = postgres.url(postgres.new_database(), trajectories=tmp_path)
    parts = ("cluster.gpus_per_rank=0.125", "cluster.gpus_per_engine=0.125", "update.device=cpu")
    found, _ = run(warm_folder, "turns", *BY_FUNCTION, *parts, store=store, cluster=address)
    # The time for which it held the GPU that the other run had not.
    del found["metrics"]["gpu_seconds"]
    for key, value in here[0].items():
        assert found[key] == value, key
    assert weights(warm_folder, "turns", "members") == weights(warm_folder, "here", "members")
    assert verify(store).faults == []
    first = next(at for at, (method, _) in enumerate(asked) if method == "update")
    for number in range(3 * (STEPS - 1)):
        own = asked[first + 3 * number : first + 3 * number + 3]
        assert [method for method, _ in own] == [method for _, method in TURN]
        assert len({member for _, member in own}) == 1


# One member is enough where ranks are concerned.
ALONE = (
    "method=grpo",
    "members=[{name: qwen3, model: 'demo:qwen3'}]",
    "evaluation.every_steps=2",
    "exchange.router=estimated",
)
RANKS = (*ALONE, "update.ranks=2", "update.zero_stage=3")


def losses(found: dict[str, Any]) -> Any:
    return found["metrics"]["loss"]


def test_a_member_of_two_ranks_survives_the_kill_of_one(warm_folder: Path, address: str) -> None:
    one, _ = run(warm_folder, "one-rank", *ALONE)
    two, _ = run(warm_folder, "two-ranks", *RANKS, cluster=address)
    assert np.allclose(losses(two)[1], losses(one)[1], atol=1e-4)
    kill = Kill("the trainer of qwen3", "update", 3, rank=1)
    with sabotaged([kill]) as done:
        found, warned = run(warm_folder, "killed-ranks", *RANKS, cluster=address)
    assert done == [kill]
    for key in two:
        assert found[key] == two[key], key
    assert weights(warm_folder, "killed-ranks", "members") == weights(warm_folder, "two-ranks", "members")
    wanted = r"qwen3 3 trainer lost in update: rank \d of the trainer of qwen3: .*; restarted, .*"
    assert [bool(re.fullmatch(wanted, text)) for text in warned] == [True]
    with pytest.raises(ResumeError, match=r"configuration differs in update\.ranks"):
        run(warm_folder, "two-ranks", *RANKS, "update.ranks=1", "steps=5", resume=True)


def test_a_stopped_run_ends_the_cluster_that_it_started(warm_folder: Path) -> None:
    store = f"sqlite:///{warm_folder / 'stopped.db'}"
    settings = (*SMALL, *ALONE, "steps=500", "evaluation.benchmarks=[]", f"folder={warm_folder}", f"store={store}")
    command = [sys.executable, "-m", "population", "train", "configs/demo.yaml", "--run", "stopped"]
    command += ["--cluster", "auto", *(part for setting in settings for part in ("--set", setting))]
    log = warm_folder / "stopped.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (warm_folder / "stopped.db").exists() or not steps_of(store):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("raylet" in child.name() for child in children)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 130, log.read_text()
    finally:
        process.kill()
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
    assert "interrupted; go on with --resume" in log.read_text()
    with open_reader(store) as reader:
        assert reader.run("stopped").status == "interrupted"


def steps_of(store: str) -> int:
    with open_reader(store) as reader:
        return reader.run("stopped").last_step or 0
