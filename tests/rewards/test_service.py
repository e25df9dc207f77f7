"""The service under faults: hung expressions, killed workers, threads, event loops, memory, closing."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.rewards import Item, RewardService, RewardServiceError, VerdictCode, grade
from server.rewards.cache import VerdictCache
from server.rewards.process import processor_seconds

# Runs for minutes of processor time: the floor of a number with a billion digits.
HUNG = r"\lfloor \frac{(10^8)!}{%d} \rfloor"
PATIENCE_S = 60.0


def boxed(answer: str) -> str:
    return rf"so it is \boxed{{{answer}}}"


def sums(count: int, start: int = 1) -> list[tuple[str, str]]:
    """Distinct pairs that need the parser; every third one is wrong."""
    return [(f"x+{i}", boxed(f"{i + (i % 3 == 0)}+x")) for i in range(start, start + count)]


def expected(pairs: list[tuple[str, str]]) -> list[VerdictCode]:
    return [VerdictCode.WRONG if int(gold[2:]) % 3 == 0 else VerdictCode.RIGHT for gold, _ in pairs]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def service() -> Iterator[RewardService]:
    with RewardService(workers=1, timeout_s=PATIENCE_S) as shared:
        yield shared


def test_plain_answers_start_no_worker() -> None:
    with RewardService() as service:
        pairs = [(str(i), boxed(str(i + i % 2))) for i in range(100)]
        assert [v.reward for v in service.grade(pairs)] == [1.0, 0.0] * 50
        assert service.unparsable(["42", r"\frac{1}{2}", r"\text{even}", ""]) == [3]
        assert service.worker_pids() == []
        assert service.counters()["by_rule"] == 100


def test_verdicts_keep_the_order_of_the_pairs(service: RewardService) -> None:
    pairs = sums(12)
    verdicts = service.grade(pairs)
    assert [v.code for v in verdicts] == expected(pairs)
    assert verdicts[0].extracted == "1+x"


def test_a_second_look_comes_from_the_cache(service: RewardService) -> None:
    pair = ("x+y", boxed("y+x"))
    service.grade([pair, pair])
    before = service.counters()
    assert service.grade([pair])[0].code is VerdictCode.RIGHT
    after = service.counters()
    assert after["by_cache"] - before.get("by_cache", 0) == 1
    assert after["by_worker"] == before["by_worker"]


def test_swapped_order_differs(service: RewardService) -> None:
    right, swapped = service.grade([("9", boxed("2x+3=9")), ("2x+3=9", boxed("9"))])
    assert right.code is VerdictCode.RIGHT
    assert swapped.code is VerdictCode.WRONG


def test_golds_that_cannot_be_read_are_found_beforehand(service: RewardService) -> None:
    golds = ["42", "x+1", r"\foo{3} ;; #", "", r"\frac{\pi}{2}"]
    assert service.unparsable(golds) == [2, 3]
    (verdict,) = service.grade([(r"\foo{3} ;; #", boxed("x+1"))])
    assert verdict.code is VerdictCode.BAD_GOLD
    assert not verdict.graded


def test_hung_expressions_cost_their_own_time_only() -> None:
    pairs = sums(60)
    hung = (5, 20, 21, 50)
    for index in hung:
        pairs[index] = (f"x+{index + 1}", boxed(HUNG % index))
    with RewardService(workers=2, timeout_s=2.0) as service:
        verdicts = service.grade(pairs)
        codes = [VerdictCode.TIMEOUT if i in hung else code for i, code in enumerate(expected(pairs))]
        assert [v.code for v in verdicts] == codes
        assert all(not verdicts[i].graded and verdicts[i].reward == 0.0 for i in hung)
        # The next hundred are graded as ever.
        following = sums(100, start=1000)
        assert [v.code for v in service.grade(following)] == expected(following)


def test_a_worker_killed_while_idle_changes_no_verdict() -> None:
    with RewardService(timeout_s=5.0) as service:
        service.grade(sums(1))
        (pid,) = service.worker_pids()
        os.kill(pid, signal.SIGKILL)
        pairs = sums(20, start=100)
        assert [v.code for v in service.grade(pairs)] == expected(pairs)
        assert service.counters()["died_idle"] == 1
        assert "crash" not in service.counters()
        (told,) = service.incidents()
        assert told.startswith("1 verifier worker(s) died")
        assert service.incidents() == []


def test_a_worker_killed_in_the_middle_of_an_answer_costs_no_verdict_and_nothing_is_counted_twice(
    tmp_path: Path,
) -> None:
    begun = tmp_path / "begun"
    with RewardService(timeout_s=PATIENCE_S) as service:
        service.load_reward("tests.rewards.toy_rewards:stalls_once")
        items = [Item("1", str(begun), "", "tests.rewards.toy_rewards:stalls_once") for _ in range(2)]
        items += [Item(str(n), f"{n}", "", "tests.rewards.toy_rewards:exact") for n in range(3)]
        service.load_reward("tests.rewards.toy_rewards:exact")
        before = service.counters()["right"]
        future = service.submit(items)
        wait_for(begun.exists)
        (pid,) = service.worker_pids()
        os.kill(pid, signal.SIGKILL)
        assert [v.code for v in future.result(PATIENCE_S)] == [VerdictCode.RIGHT] * 5
        counted = service.counters()
        assert (counted["items"], counted["right"] - before, counted["died_busy"]) == (5, 5, 1)
        assert "crash" not in counted
        assert len(service.incidents()) == 1


def test_a_worker_killed_over_an_item_is_tried_once_more_then_the_item_is_a_crash() -> None:
    with RewardService(timeout_s=PATIENCE_S) as service:
        future = service.submit([("x+1", boxed(HUNG % 7)), *sums(3)])
        for deaths in (1, 2):
            wait_for(lambda: service.worker_pids())
            (pid,) = service.worker_pids()
            started = processor_seconds(pid)
            wait_for(lambda pid=pid, started=started: processor_seconds(pid) > started + 0.1)  # it has begun
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda deaths=deaths: service.counters().get("died_busy") == deaths)
        verdicts = future.result(PATIENCE_S)
        assert [v.code for v in verdicts] == [VerdictCode.CRASH, *expected(sums(3))]
        assert not verdicts[0].graded
        assert "signal 9" in verdicts[0].detail


def test_grading_from_many_threads_at_once(service: RewardService) -> None:
    results: dict[int, list[VerdictCode]] = {}

    def work(start: int) -> None:
        results[start] = [v.code for v in service.grade(sums(8, start=start))]

    threads = [threading.Thread(target=work, args=(start,)) for start in (200, 300, 400)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert results == {start: expected(sums(8, start=start)) for start in (200, 300, 400)}


def test_a_hung_expression_leaves_an_event_loop_running() -> None:
    async def run(service: RewardService) -> tuple[list[VerdictCode], int]:
        turns, graded = 0, asyncio.wrap_future(service.submit([("x+1", boxed(HUNG % 3)), *sums(2, start=7)]))
        while not graded.done():
            await asyncio.sleep(0.05)
            turns += 1
        return [v.code for v in await graded] + [v.code for v in service.grade(sums(1, start=30))], turns

    with RewardService(timeout_s=2.0) as service:
        codes, turns = asyncio.run(asyncio.wait_for(run(service), PATIENCE_S))
    assert codes == [VerdictCode.TIMEOUT, *expected(sums(2, start=7)), *expected(sums(1, start=30))]
    assert turns > 3


def test_a_timeout_is_cached_for_its_limit_only() -> None:
    pair = ("x+1", boxed(HUNG % 5))
    with RewardService(timeout_s=0.3) as service:
        assert service.grade([pair])[0].code is VerdictCode.TIMEOUT
        assert service.grade([pair])[0].code is VerdictCode.TIMEOUT
        assert service.counters()["by_worker"] == 1
        service.grade([pair], timeout_s=0.4)
        assert service.counters()["by_worker"] == 2


def test_sure_verdicts_outlive_the_run_and_faults_do_not(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    pairs = sums(2)
    with RewardService(timeout_s=0.5, cache_path=path) as service:
        service.grade(pairs, timeout_s=PATIENCE_S)
        service.grade([("x+1", boxed(HUNG % 9))])
    assert "lfloor" not in path.read_text()
    with RewardService(cache_path=path) as service:
        assert [v.code for v in service.grade(pairs)] == expected(pairs)
        assert service.counters()["by_cache"] == 2
    path.write_text(path.read_text().replace("math-verify", "another"))
    assert len(VerdictCache(path)) == 0


def test_the_memory_limit_is_contained() -> None:
    pairs = [("5", boxed(r"\lfloor 2^{10^{11}} \rfloor")), *sums(5)]
    with RewardService(timeout_s=5.0, memory_bytes=400 << 20) as service:
        verdicts = service.grade(pairs)
    assert verdicts[0].code in (VerdictCode.ERROR, VerdictCode.CRASH)
    assert not verdicts[0].graded
    assert [v.code for v in verdicts[1:]] == expected(sums(5))


def test_the_worker_sees_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:secret@host/db")
    with RewardService() as service:
        service.grade(sums(1))
        (pid,) = service.worker_pids()
        environment = Path(f"/proc/{pid}/environ")
        if not environment.exists():
            pytest.skip("no /proc here to read the environment from")
        names = {entry.partition("=")[0] for entry in environment.read_text().split("\0") if entry}
    assert "secret" not in str(names)
    assert names <= {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"} | {
        "PYTHONPATH",
        "PYTHONHASHSEED",
        "OMP_NUM_THREADS",
    }


def test_workers_are_recycled() -> None:
    with RewardService(recycle_after=4) as service:
        pairs = sums(10)
        assert [v.code for v in service.grade(pairs)] == expected(pairs)
        assert service.counters()["recycled"] == 2
        assert len(service.worker_pids()) == 1


def test_closing_while_a_worker_starts_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    service = RewardService()
    future = service.submit(sums(1))
    service.close()
    service.close()
    with pytest.raises(RewardServiceError, match="closed"):
        future.result(PATIENCE_S)
    with pytest.raises(RewardServiceError, match="closed"):
        service.grade(sums(1))
    assert capfd.readouterr() == ("", "")
    assert service.worker_pids() == []


def test_closing_ends_a_hung_worker() -> None:
    service = RewardService(timeout_s=PATIENCE_S)
    service.submit([("x+1", boxed(HUNG % 11))])
    wait_for(lambda: service.worker_pids())
    (pid,) = service.worker_pids()
    service.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_module_function_grades_with_a_shared_service() -> None:
    right, wrong, none = grade([("1/2", boxed("0.5")), ("3", boxed("4")), ("3", "I do not know")], timeout_s=2.0)
    assert (right.reward, wrong.reward, none.code) == (1.0, 0.0, VerdictCode.NO_ANSWER)
    assert right.graded
    assert none.graded


def test_nonsense_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="workers is 0"):
        RewardService(workers=0)
    with pytest.raises(ValueError, match="timeout_s is 0"):
        grade([], timeout_s=0)


def test_nothing_to_grade_is_no_verdicts() -> None:
    assert grade([]) == []
