"""Placements: order, errors by name, deadlines that hold, and trainers side by side in one process."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from population.placement import Local, LostError, MemberLost, PlacementError, gather, wait
from population.trainer import Trainer, TrainerSpec, UpdateReport
from tests.trainer.helpers import FAMILIES, responses

PATIENCE_S = 60.0


class Recorder:
    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise ValueError("start is negative")
        self.calls = [start]
        self.thread = threading.current_thread()
        self.closed = False

    def add(self, value: int, *, pause_s: float = 0.0) -> list[int]:
        time.sleep(pause_s)
        assert threading.current_thread() is self.thread
        self.calls.append(value)
        return list(self.calls)

    def threads(self) -> int:
        return torch.get_num_threads()

    def fail(self) -> None:
        raise RuntimeError("disk on fire")

    def hang(self, gate: threading.Event) -> None:
        gate.wait()

    def slow_failure(self) -> None:
        raise TimeoutError("the socket timed out")

    def close(self) -> None:
        self.closed = True


def test_calls_run_in_order_on_one_thread_with_its_own_thread_count() -> None:
    here = torch.get_num_threads()
    placed = Local(Recorder, 7, threads=here + 1)
    futures = [placed.call("add", value, pause_s=0.01) for value in (1, 2, 3)]
    assert wait(futures[-1], PATIENCE_S, member="ada", phase="add", step=1) == [7, 1, 2, 3]
    assert wait(placed.call("threads"), PATIENCE_S, member="ada", phase="threads", step=1) == here + 1
    recorder = placed.ready.result(PATIENCE_S)
    placed.close()
    assert recorder.closed
    assert torch.get_num_threads() == here
    placed.close()
    with pytest.raises(PlacementError, match="closed"):
        placed.call("add", 1)


def test_an_error_names_member_phase_and_step_and_keeps_its_cause() -> None:
    placed = Local(Recorder)
    with pytest.raises(PlacementError, match=r"member ada, update of step 12: disk on fire") as caught:
        wait(placed.call("fail"), PATIENCE_S, member="ada", phase="update", step=12)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(PlacementError, match=r"member ada, update of step 12: the socket timed out"):
        wait(placed.call("slow_failure"), PATIENCE_S, member="ada", phase="update", step=12)
    assert wait(placed.call("add", 1), PATIENCE_S, member="ada", phase="add", step=None) == [0, 1]
    placed.close()


def test_an_object_that_cannot_be_built_fails_every_call_by_name() -> None:
    placed = Local(Recorder, -1)
    for future in (placed.ready, placed.call("add", 1)):
        with pytest.raises(PlacementError, match=r"member ada, load: start is negative"):
            wait(future, PATIENCE_S, member="ada", phase="load", step=None)
    placed.close()


def test_a_call_that_never_returns_is_given_up_at_the_deadline_by_name() -> None:
    gate = threading.Event()
    placed, quick = Local(Recorder), Local(Recorder)
    answered = quick.call("add", 1)
    answered.result(PATIENCE_S)
    with pytest.raises(PlacementError, match=r"member bo, sample of step 3: no answer within the deadline of 0.2 s"):
        gather({"ada": answered, "bo": placed.call("hang", gate)}, 0.2, phase="sample", step=3)
    assert placed.close(0.1) is False
    gate.set()
    assert quick.close() is True


def test_what_is_killed_fails_the_calls_it_owes_and_takes_no_more() -> None:
    gate = threading.Event()
    placed = Local(Recorder)
    assert placed.attributes("closed", "calls").result(PATIENCE_S) == {"closed": False, "calls": [0]}
    owed = [placed.call("hang", gate), placed.call("add", 1)]
    placed.kill()
    for future in owed:
        assert isinstance(future.exception(PATIENCE_S), LostError)
    with pytest.raises(MemberLost, match=r"member ada, sample of step 4: Recorder was ended") as caught:
        wait(owed[1], PATIENCE_S, member="ada", phase="sample", step=4)
    assert (caught.value.member, caught.value.phase, caught.value.step) == ("ada", "sample", 4)
    assert caught.value.reason == "Recorder was ended"
    with pytest.raises(PlacementError, match="closed"):
        placed.call("add", 2)
    gate.set()


def test_gather_returns_by_member_and_reports_a_failure_before_the_slow_ones() -> None:
    placed = {name: Local(Recorder, number) for number, name in enumerate(("ada", "bo"))}
    found = gather({name: local.call("add", 5) for name, local in placed.items()}, PATIENCE_S, phase="add", step=1)
    assert found == {"ada": [0, 5], "bo": [1, 5]}
    gate = threading.Event()
    calls = {"ada": placed["ada"].call("hang", gate), "bo": placed["bo"].call("fail")}
    with pytest.raises(PlacementError, match="member bo, update of step 2: disk on fire"):
        gather(calls, PATIENCE_S, phase="update", step=2)
    gate.set()
    for local in placed.values():
        local.close()


def test_trainers_in_threads_update_as_they_would_one_after_another(models: dict[str, Path]) -> None:
    specs = {
        family: TrainerSpec(
            str(models[family]), member=family, learning_rate=1e-2, device="cpu", max_tokens_per_pack=80
        )
        for family in FAMILIES
    }
    batches = [[responses(step, prompts=6), responses(step + 20, old=False)] for step in range(1, 5)]
    alone: dict[str, tuple[list[UpdateReport], str]] = {}
    for family, spec in specs.items():
        trainer = Trainer(spec)
        alone[family] = ([trainer.update(step, batch) for step, batch in enumerate(batches, 1)], trainer.checksum())
        trainer.close()
    placed = {family: Local(Trainer, spec) for family, spec in specs.items()}
    reports: dict[str, list[UpdateReport]] = {family: [] for family in specs}
    for step, batch in enumerate(batches, 1):
        calls = {family: local.call("update", step, batch) for family, local in placed.items()}
        for family, report in gather(calls, 120, phase="update", step=step).items():
            reports[family].append(report)
    held = gather({f: local.call("checksum") for f, local in placed.items()}, PATIENCE_S, phase="checksum", step=None)
    assert {family: (reports[family], held[family]) for family in specs} == alone
    for local in placed.values():
        local.close()
