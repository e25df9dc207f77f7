"""A recorded demo run as a stored peer gives what it gave online, and a record that does not fit trains nothing."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from population.config import RunConfig, load
from population.coordinator import StepReport
from population.errors import MemberError
from population.replay_command import Question, ask
from population.report import summarise
from population.run import Watch, train
from server.store.reader import EventInfo, Reader, TransferRecord, open_reader
from server.store.records import RunRecord, StepRecord
from server.store.writer import open_writer

STEPS = 2
SETTINGS = (
    "exchange.balance=none", "exchange.holdout=0", "evaluation.benchmarks=[]", "data.prompts_per_step=16",
    "checkpoint.every_steps=1",
)  # fmt: skip


def configuration(folder: Path, *more: str, llama: dict[str, Any] | None = None) -> RunConfig:
    """The demo pair for two short steps; `llama` in the place of that member."""
    settings = [f"folder={folder}", f"store={url_of(folder)}", f"steps={STEPS}", *SETTINGS, *more]
    if llama is not None:
        settings.append(f"members.llama={json.dumps({'name': 'llama', **llama})}")
    return load("configs/demo_pair.yaml", settings)


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'stored.db'}"


def run(config: RunConfig, uid: str, *, resume: bool = False, stop_after: int | None = None) -> list[StepReport]:
    """Train in this process, or interrupt it after a step; what every step did."""
    reports: list[StepReport] = []

    def observe(report: StepReport) -> None:
        reports.append(report)
        if report.step == stop_after:
            raise KeyboardInterrupt

    quiet = Watch(lambda *progress: None, lambda text: None, lambda *begin: None, observe)
    with suppress(KeyboardInterrupt):
        train(config, quiet, uid=uid, resume=resume)
    return reports


def recorded(folder: Path, uid: str = "online", **keys: str) -> dict[str, Any]:
    return {"source": {"store": url_of(folder), "run": uid, "member": "llama", **keys}}


@pytest.fixture(scope="module")
def folder(warm_folder: Path) -> Path:
    """A run folder that holds the online run `online` and its stored twin `stored`."""
    folder = warm_folder / "stored"
    folder.mkdir()
    (folder / "warm-start").symlink_to(warm_folder / "warm-start")
    run(configuration(folder), "online")
    run(configuration(folder, llama=recorded(folder)), "stored")
    return folder


def to_qwen3(reader: Reader, uid: str, step: int) -> list[TransferRecord]:
    return [transfer for transfer in reader.step_transfers(uid, step) if transfer.receiver == "qwen3"]


def warnings_of(reader: Reader, uid: str) -> list[EventInfo]:
    return [event for event in reader.events(uid) if event.level == "warning" and event.message.startswith("rewards:")]


def test_the_transfers_are_those_of_the_online_run_bit_for_bit(folder: Path) -> None:
    with open_reader(url_of(folder)) as reader:
        for step in range(1, STEPS + 1):
            online, stored = to_qwen3(reader, "online", step), reader.step_transfers("stored", step)
            assert online == stored
            assert any(response.s is not None for transfer in online for response in transfer.responses)
        # The other direction existed online, and does not from a record.
        assert any(t.receiver == "llama" for t in reader.step_transfers("online", 1))
        for name in ("loss", "grad_norm", "clip_peer"):
            series = [reader.metric_series(uid, name, 1, STEPS)[1][:, 0] for uid in ("online", "stored")]
            np.testing.assert_array_equal(*series)


def test_the_recorded_member_is_a_member_of_the_record(folder: Path) -> None:
    with open_reader(url_of(folder)) as reader:
        member = reader.run("stored").members[1]
        assert member.model == f"recorded:{url_of(folder)}#online/llama"
        assert member.tokenizer_sha == reader.run("online").members[1].tokenizer_sha
        for step in range(1, STEPS + 1):
            assert reader.group_counts("stored", step)["llama"] == reader.group_counts("online", step)["llama"]
        first = [reader.complementarity(uid, 1, 1) for uid in ("online", "stored")]
        np.testing.assert_array_equal(first[0][0], first[1][0])
        for trained_only in ("loss", "learning_rate", "tokens_per_second_rollout"):
            assert reader.metric("stored", trained_only, 1, STEPS)[1][1] == 0
        changed, responses = reader.metric("stored", "rewards_changed", 1, STEPS)
        assert (changed[1], responses[1]) == (0, STEPS * 16 * 8)
        assert warnings_of(reader, "stored") == []
        summary = summarise(reader, reader.run("stored"))[1]
        assert (summary.rescued, summary.all_fail[1]) == ((0, 0), STEPS * 16)
        assert ask(url_of(folder), Question("stored"))[1].reproduced
    assert [path.name for path in (folder / "stored" / "members").iterdir()] == ["qwen3"]


def test_a_stopped_run_goes_on_with_its_recorded_member(folder: Path) -> None:
    config = configuration(folder, llama=recorded(folder))
    run(config, "resumed", stop_after=1)
    with open_reader(url_of(folder)) as reader:
        assert reader.run("resumed").status == "interrupted"
    assert [report.step for report in run(config, "resumed", resume=True)] == [2]
    with open_reader(url_of(folder)) as reader:
        for step in range(1, STEPS + 1):
            assert reader.step_transfers("resumed", step) == reader.step_transfers("stored", step)


def test_rewards_are_verified_anew_and_differences_are_said(folder: Path) -> None:
    with open_reader(url_of(folder)) as reader:
        info, counts = reader.run("online"), reader.group_counts("online", 1)["llama"]
        groups = reader.groups("online", 1, "llama")
        prompts = tuple(reader.prompts(list(counts)).values())
    doctored = next(i for i, group in enumerate(groups) if 0 < group.successes < group.n)
    wrong = tuple(replace(response, reward=1.0 - response.reward) for response in groups[doctored].responses)
    groups[doctored] = replace(groups[doctored], responses=wrong)
    with open_writer(url_of(folder)) as writer:
        writer.start_run(RunRecord("doctored", "x", "grpo", info.members, 1, 0, info.config))
        writer.commit(StepRecord(1, prompts, tuple(groups)))
        writer.finish("finished")
    run(configuration(folder, "steps=1", llama=recorded(folder, "doctored", match="prompt")), "verified")
    with open_reader(url_of(folder)) as reader:
        (event,) = warnings_of(reader, "verified")
        assert event.message == "rewards: 8 of 128 recorded rewards differ from today's verdicts, which are used"
        assert (event.member, event.step) == ("llama", 1)
        assert reader.step_transfers("verified", 1) == reader.step_transfers("stored", 1)


@pytest.mark.parametrize("method", ["sgt", "hacpo", "graft-random-prompts"])
def test_other_methods_take_a_recorded_member_too(folder: Path, method: str) -> None:
    run(configuration(folder, "steps=1", f"method={method}", llama=recorded(folder)), method)
    with open_reader(url_of(folder)) as reader:
        moved = reader.step_transfers(method, 1)
        assert {(t.receiver, t.source) for t in moved} == {("qwen3", "llama")}
        assert any(response.refusal is None for t in moved for response in t.responses)
        assert ask(url_of(folder), Question(method))[1].reproduced


def test_matched_by_prompt_what_has_no_record_has_no_source(folder: Path) -> None:
    peer = recorded(folder, match="prompt")
    (report,) = run(configuration(folder, "steps=1", "seed=5", "warm_start_seed=0", llama=peer), "other-order")
    with open_reader(url_of(folder)) as reader:
        met = set(reader.visits("online", "llama")[1]) | set(reader.visits("online", "llama")[2])
        asked = set(reader.visits("other-order", "qwen3")[1])
        assert set(reader.visits("other-order", "llama").get(1, {})) == met & asked
        assert report.step == 1
        with pytest.raises(MemberError, match=r"asked other prompts in step 1: its seed was 0"):
            run(configuration(folder, "seed=5", "warm_start_seed=0", llama=recorded(folder)), "never")


def test_the_tokenizer_of_the_named_model_is_compared_before_anything_is_trained(folder: Path) -> None:
    with pytest.raises(MemberError, match=r"'llama' \(demo:llama\) with another tokenizer than that of demo:neox"):
        run(configuration(folder, llama={"model": "demo:neox", **recorded(folder)}), "never")
    with open_reader(url_of(folder)) as reader:
        assert "never" not in {info.uid for info in reader.runs()}
