"""Reward functions by name: found or refused, run in killable workers, cached by the code that gave the verdict."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from server.rewards import BadReward, Item, RewardService, RewardServiceError, Verdict, VerdictCode, process, time_left

TOYS = "tests.rewards.toy_rewards"
PATIENCE_S = 60.0


def told(*responses: str) -> list[Item]:
    return [Item("answer", response, "prompt", f"{TOYS}:as_told") for response in responses]


def graded_by(service: RewardService, function: str, response: str, answer: str = "a", prompt: str = "p") -> Verdict:
    name = f"{TOYS}:{function}"
    service.load_reward(name)
    (verdict,) = service.grade([Item(answer, response, prompt, name)])
    return verdict


@pytest.fixture(scope="module")
def service() -> Iterator[RewardService]:
    with pytest.MonkeyPatch.context() as patch, RewardService(timeout_s=1.0, memory_bytes=1 << 30) as shared:
        patch.setattr(process, "WALL_FACTOR", 200.0)  # a loaded machine must not ring first
        yield shared


def test_a_function_sees_prompt_response_and_answer(service: RewardService) -> None:
    assert graded_by(service, "exact", "a").code is VerdictCode.RIGHT
    assert graded_by(service, "exact", "b").code is VerdictCode.WRONG
    assert graded_by(service, "echoes_prompt", "p").reward == 1.0
    assert graded_by(service, "with_reason", "b") == Verdict(VerdictCode.WRONG, "ü\t\nb", "b is not a")


@pytest.mark.parametrize(("function", "given"), [("half", "returned 0.5"), ("nothing", "returned None")])
def test_a_value_that_is_no_reward_is_an_error(service: RewardService, function: str, given: str) -> None:
    verdict = graded_by(service, function, "x")
    assert verdict.code is VerdictCode.ERROR
    assert given in verdict.detail
    assert "a reward is 0 or 1" in verdict.detail
    assert not verdict.graded


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{TOYS}:exakt", f"{TOYS} has no 'exakt'; did you mean 'exact'?"),
        (f"{TOYS}:constant", "constant is a int, not a function"),
        (f"{TOYS}:later", "later is async"),
        (f"{TOYS}:two_arguments", "cannot take (prompt, response, answer)"),
        ("server.rewards.chioce:score", "no module 'server.rewards.chioce'; did you mean 'server.rewards.choice'?"),
        ("nowhere_to_be_found:score", "modules are looked for on the import path and in the current folder"),
        ("score", "write module:function"),
    ],
)
def test_a_bad_name_is_refused_with_the_nearest_one(service: RewardService, name: str, message: str) -> None:
    with pytest.raises(BadReward) as caught:
        service.load_reward(name)
    assert message in str(caught.value)


def test_a_module_that_fails_at_its_import_says_so(
    service: RewardService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_reward.py").write_text("import numby\n")
    (tmp_path / "raising_reward.py").write_text("raise OSError('no dictionary')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadReward, match="imports numby, which is not installed"):
        service.load_reward("failing_reward:score")
    with pytest.raises(BadReward, match="fails when imported: OSError: no dictionary"):
        service.load_reward("raising_reward:score")
    (tmp_path / "ending_reward.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(
        RewardServiceError, match="the process of ending_reward:score exited with status 3 at its start"
    ):
        service.load_reward("ending_reward:score")


def test_a_module_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_reward.py").write_text("def score(prompt, response, answer):\n    return response == answer\n")
    monkeypatch.chdir(tmp_path)
    with RewardService() as service:
        service.load_reward("my_reward:score")
        (verdict,) = service.grade([Item("a", "a", "p", "my_reward:score")])
    assert verdict.reward == 1.0


def test_an_untried_name_is_refused_at_once(service: RewardService) -> None:
    with pytest.raises(RewardServiceError, match="before load_reward"):
        service.submit([Item("a", "a", "p", f"{TOYS}:half_known")])


@pytest.mark.parametrize(
    ("response", "code", "detail"),
    [
        ("loop", VerdictCode.TIMEOUT, "processor time"),
        ("swallow", VerdictCode.TIMEOUT, "processor time; killed"),
        ("die", VerdictCode.CRASH, "exited with status 3"),
        ("leave", VerdictCode.ERROR, "SystemExit: 0"),
        ("raise", VerdictCode.ERROR, "ValueError: no such case"),
        ("eat", VerdictCode.ERROR, "more memory than the worker may use"),
    ],
)
def test_a_function_at_fault_is_never_a_wrong_answer(
    service: RewardService, response: str, code: VerdictCode, detail: str
) -> None:
    service.load_reward(f"{TOYS}:as_told")
    verdict, following = service.grade(told(response, f"fine after {response}"))
    assert verdict.code is code
    assert detail in verdict.detail
    assert not verdict.graded
    assert following.reward == 1.0


def test_a_function_that_sleeps_is_killed_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WALL_FACTOR", 10.0)
    with RewardService(timeout_s=0.2) as service:
        service.load_reward(f"{TOYS}:as_told")
        (slept,) = service.grade(told("sleep"))
        (following,) = service.grade(told("fine"), timeout_s=PATIENCE_S)
    assert slept.code is VerdictCode.TIMEOUT
    assert "on the clock; killed" in slept.detail
    assert following.reward == 1.0


def test_prints_do_not_reach_the_verdicts(service: RewardService) -> None:
    service.load_reward(f"{TOYS}:as_told")
    assert [v.code for v in service.grade(told("print", "fine", "print"))] == [VerdictCode.RIGHT] * 3


def test_a_function_sees_its_time_and_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with RewardService() as service:
        service.load_reward(f"{TOYS}:as_told")
        environment, left = service.grade(told("environment", "time"))
    assert environment.code is VerdictCode.WRONG
    assert left.code is VerdictCode.RIGHT
    assert time_left() == 5.0


def test_temporary_files_go_with_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with RewardService() as service:
        service.load_reward(f"{TOYS}:as_told")
        (verdict,) = service.grade(told("file"))
        assert verdict.reward == 1.0
        assert [path.name for path in tmp_path.rglob("note")] == ["note"]
    assert list(tmp_path.iterdir()) == []


def test_children_of_a_function_end_with_its_worker() -> None:
    with RewardService() as service:
        child = psutil.Process(int(graded_by(service, "leaves_a_child", "x").detail))
        assert child.is_running()
    deadline = time.monotonic() + PATIENCE_S
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_module_is_imported_once_and_the_worker_kept() -> None:
    with RewardService() as service:
        verdicts = [graded_by(service, "called", f"r{i}") for i in range(3)]
        (pid,) = service.worker_pids()
        assert [v.detail for v in verdicts] == [f"{pid} {i + 1} r{i}" for i in range(3)]
        assert service.counters()["started"] == 1


def test_mathematics_and_functions_take_turns_at_one_worker(service: RewardService) -> None:
    name = f"{TOYS}:exact"
    service.load_reward(name)
    mixed: list[Item | tuple[str, str]] = []
    for i in range(4):
        mixed += [("x+1", rf"\boxed{{1+x+{i}}}"), Item(str(i), str(i // 2 * 2), "p", name)]
    started = service.counters()["started"]
    assert [v.reward for v in service.grade(mixed)] == [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert service.counters()["started"] - started <= 2  # one kind after the other, not in turns


def test_a_verdict_is_cached_for_its_prompt_and_for_the_code_that_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, path = tmp_path / "changing_reward.py", tmp_path / "verdicts.jsonl"
    monkeypatch.syspath_prepend(tmp_path)
    item = Item("a", "r", "p", "changing_reward:score")

    def grade(value: int, *items: Item) -> tuple[list[float], int]:
        module.write_text(f"def score(prompt, response, answer):\n    return {value}\n")
        with RewardService(cache_path=path) as service:
            service.load_reward(item.reward or "")
            return [v.reward for v in service.grade(items)], service.counters().get("by_cache", 0)

    assert grade(1, item, item._replace(prompt="q")) == ([1.0, 1.0], 0)
    assert grade(1, item, item._replace(prompt="other")) == ([1.0, 1.0], 1)
    assert grade(0, item) == ([0.0], 0)
