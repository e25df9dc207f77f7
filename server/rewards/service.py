"""Grading many answers at once: by reading where that suffices, else in worker processes that can be killed.

One item is in flight per worker, so a hung expression costs its own time limit and nothing else. Workers start when the
first item needs one; each serves the mathematics verifier or one reward function. Safe from any thread and from inside
an event loop (`submit` never waits).
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

from server.rewards.cache import VerdictCache
from server.rewards.custom import BadReward
from server.rewards.extract import MAX_ANSWER_CHARACTERS, find_answer, normalise
from server.rewards.pending import Batch, Task, TaskKey, task_key
from server.rewards.process import (
    WALL_FACTOR,
    Cancelled,
    ItemTimedOut,
    Request,
    WorkerDied,
    WorkerProcess,
    WorkerStartFailed,
)
from server.rewards.rules import decide, needs_no_parser
from server.rewards.verdicts import Item, Outcome, Verdict, VerdictCode

Pair = tuple[str, str]

MAX_ATTEMPTS = 2
# A worker killed from outside while idle is replaced, but not for ever.
MAX_IDLE_DEATHS = 5
MAX_START_FAILURES = 3
IDLE_CHECK_S = 60.0
CLOSE_WAIT_S = 10.0


class RewardServiceError(RuntimeError):
    """No verdicts can be had: the worker does not start, the service is closed, or a deadline passed."""


class RewardService:
    """Grades (gold answer, response) pairs, gold first, as mathematics, and `Item`s by the reward function they name.

    workers: most worker processes at a time. timeout_s: processor time for one item (the clock only caps it, tenfold).
    memory_bytes: address space of a worker. recycle_after: items after which a worker is replaced. cache_path: verdicts
    kept between runs (grader faults are not). Use as a context manager, or call `close`.
    """

    def __init__(
        self,
        workers: int = 1,
        timeout_s: float = 5.0,
        *,
        memory_bytes: int = 2 << 30,
        recycle_after: int = 5000,
        start_timeout_s: float = 120.0,
        cache_path: Path | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"rewards: workers is {workers}; at least one is needed")
        _check_timeout(timeout_s)
        self._max_workers = workers
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._recycle_after = recycle_after
        self._start_timeout_s = start_timeout_s
        self._cache = VerdictCache(cache_path)
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        # All below is guarded by `_changed`.
        self._queue: deque[Task] = deque()
        self._tasks: dict[TaskKey, Task] = {}
        self._versions: dict[str, str] = {}
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._counters: Counter[str] = Counter()
        self._told_deaths = 0
        self._workers: dict[int, WorkerProcess] = {}
        _open_services.add(self)

    def load_reward(self, name: str) -> str:
        """Try a reward function `module:function` in a worker, once; returns the version of its code. Needed before
        items may name it. Raises BadReward where it cannot be used.
        """
        self._check_open()
        with self._changed:
            known = self._versions.get(name)
        if known is not None:
            return known
        batch = Batch(1)
        with self._changed:
            self._enqueue(batch, 0, Request("version", "", "", self._timeout_s, reward=name))
            self._launch(batch)
        (verdict,) = self._await(batch.future)
        if verdict.code is not VerdictCode.RIGHT:
            raise BadReward(verdict.detail)
        with self._changed:
            self._versions[name] = verdict.detail
        return verdict.detail

    def submit(self, items: Sequence[Pair | Item], *, timeout_s: float | None = None) -> Future[list[Verdict]]:
        """Grade items, or (gold answer, response text) pairs; the future holds one verdict each, in their order."""
        limit = self._timeout_s if timeout_s is None else timeout_s
        _check_timeout(limit)
        self._check_open()
        batch = Batch(len(items))
        with self._changed:
            for index, entry in enumerate(items):
                item = Item(*entry)
                if item.reward is None:
                    self._place(batch, index, item.answer, item.response, limit)
                else:
                    self._place_custom(batch, index, item, item.reward, limit)
            complete = self._launch(batch)
        if complete:
            batch.resolve()
        return batch.future

    def grade(self, items: Sequence[Pair | Item], *, timeout_s: float | None = None) -> list[Verdict]:
        """As `submit`, waiting for the verdicts."""
        return self._await(self.submit(items, timeout_s=timeout_s))

    def unparsable(self, answers: Sequence[str]) -> list[int]:
        """The indices of reference answers nothing can be graded against; such prompts should be dropped beforehand."""
        self._check_open()
        batch = Batch(len(answers))
        with self._changed:
            for index, gold in enumerate(answers):
                if not normalise(gold):
                    batch.fill(index, Verdict(VerdictCode.BAD_GOLD))
                elif needs_no_parser(gold):
                    batch.fill(index, Verdict(VerdictCode.RIGHT))
                else:
                    self._enqueue(batch, index, Request("gold", gold, "", self._timeout_s))
            complete = self._launch(batch)
        if complete:
            batch.resolve()
        verdicts = self._await(batch.future)
        return [index for index, verdict in enumerate(verdicts) if verdict.code is not VerdictCode.RIGHT]

    def counters(self) -> dict[str, int]:
        """Counts since the start: `items`, `by_rule`, `by_cache`, `by_worker`; one per verdict (`right`, ...);
        of worker processes `started`, `killed`, `died_busy`, `died_idle`, `recycled`.
        """
        with self._changed:
            return dict(self._counters)

    def incidents(self) -> list[str]:
        """What went wrong, and was mended, since this was asked last: workers that died of themselves."""
        with self._changed:
            died = self._counters["died_busy"] + self._counters["died_idle"]
            told, self._told_deaths = self._told_deaths, died
        if died == told:
            return []
        return [f"{died - told} verifier worker(s) died and were replaced; their answers were tried again"]

    def worker_pids(self) -> list[int]:
        """Process ids of the workers now running."""
        with self._changed:
            return sorted(self._workers)

    def close(self) -> None:
        """End the workers; verdicts still owed fail with RewardServiceError. Safe to call again."""
        if self._owner != os.getpid():
            return  # a forked child: the workers are its parent's, and the lock may be held for ever
        with self._changed:
            if self._closing.is_set():
                return
            self._closing.set()
            self._fail_all(RewardServiceError("rewards: the service was closed before these answers were graded"))
            self._changed.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + CLOSE_WAIT_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._cache.save()

    def __enter__(self) -> RewardService:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- placing items (with the lock held) --------------------------------------------------------------------------

    def _place(self, batch: Batch, index: int, gold: str, response: str, timeout_s: float) -> None:
        """Decide one pair at once, or hand it to the workers."""
        self._counters["items"] += 1
        answer = find_answer(response)
        if not gold or not normalise(gold):
            self._settle(batch, index, answer, Outcome(VerdictCode.BAD_GOLD, "the reference answer is empty"))
        elif answer is None:
            self._settle(batch, index, None, Outcome(VerdictCode.NO_ANSWER, "no complete final answer"))
        elif len(answer) > MAX_ANSWER_CHARACTERS:
            shown = answer[:MAX_ANSWER_CHARACTERS]
            self._settle(batch, index, shown, Outcome(VerdictCode.TOO_LONG, f"{len(answer)} characters"))
        elif (decision := decide(gold, answer)) is not None:
            self._counters["by_rule"] += 1
            right, rule = decision
            self._settle(batch, index, answer, Outcome(VerdictCode.RIGHT if right else VerdictCode.WRONG, rule))
        elif (outcome := self._cache.get((gold, answer), timeout_s)) is not None:
            self._counters["by_cache"] += 1
            self._settle(batch, index, answer, outcome)
        else:
            self._counters["by_worker"] += 1
            self._enqueue(batch, index, Request("grade", gold, answer, timeout_s))

    def _place_custom(self, batch: Batch, index: int, item: Item, reward: str, timeout_s: float) -> None:
        """Hand one item to the workers of its reward function, unless the same was asked of the same code before."""
        if reward not in self._versions:
            raise RewardServiceError(f"rewards: {reward} is named before load_reward({reward!r}) tried it")
        request = Request("score", item.answer, item.response, timeout_s, item.prompt, reward)
        self._counters["items"] += 1
        if (outcome := self._cache.get(self._cache_key(request), timeout_s)) is not None:
            self._counters["by_cache"] += 1
            self._settle(batch, index, None, outcome)
        else:
            self._counters["by_worker"] += 1
            self._enqueue(batch, index, request)

    def _cache_key(self, request: Request) -> tuple[str, str]:
        if request.reward is None:
            return request.gold, request.answer
        asked = json.dumps([request.prompt, request.gold, request.answer])
        return f"{request.reward} {self._versions[request.reward]}", hashlib.sha256(asked.encode()).hexdigest()

    def _settle(self, batch: Batch, index: int, answer: str | None, outcome: Outcome) -> None:
        self._counters[outcome.code.name.lower()] += 1
        batch.fill(index, Verdict(outcome.code, outcome.extracted if answer is None else answer, outcome.detail))

    def _enqueue(self, batch: Batch, index: int, request: Request) -> None:
        task = self._tasks.get(task_key(request))
        if task is None:
            task = Task(request)
            self._tasks[task.key] = task
            self._queue.append(task)
        task.waiting.append((batch, index))

    def _launch(self, batch: Batch) -> bool:
        """Wake or start a thread for each item in the queue, up to the limit; returns whether nothing is left to do."""
        if self._closing.is_set():
            raise RewardServiceError("rewards: the service is closed")
        wanted = min(self._max_workers - len(self._threads), len(self._queue) - self._idle)
        for _ in range(max(0, wanted)):
            # A daemon: an interpreter that ends without close() must not wait for a hung expression.
            thread = threading.Thread(target=self._run, name="graft-rewards", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._changed.notify_all()
        return batch.missing == 0

    def _await(self, future: Future[list[Verdict]]) -> list[Verdict]:
        with self._changed:
            rounds = 1 + len(self._tasks) / self._max_workers
            longest = max([self._timeout_s, *(task.request.timeout_s for task in self._tasks.values())])
        deadline_s = rounds * MAX_ATTEMPTS * (WALL_FACTOR * longest + self._start_timeout_s) + CLOSE_WAIT_S
        try:
            return future.result(deadline_s)
        except FutureTimeout:
            raise RewardServiceError(f"rewards: not all answers were graded within {deadline_s:.0f} s") from None

    def _check_open(self) -> None:
        if self._owner != os.getpid():
            raise RewardServiceError("rewards: this service belongs to another process; make one in this process")
        if self._closing.is_set():
            raise RewardServiceError("rewards: the service is closed")

    # --- worker threads ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """One thread drives one worker process at a time."""
        worker: WorkerProcess | None = None
        try:
            while (task := self._next_task(worker)) is not None:
                worker = self._attempt(worker, task)
        except Cancelled:
            pass  # close() has already failed what was owed
        except Exception as error:  # whatever it was, nobody may wait for ever
            with self._changed:
                self._fail_all(RewardServiceError(f"rewards: {error}"))
        finally:
            if worker is not None:
                self._discard(worker)
            with self._changed:
                self._threads.remove(threading.current_thread())

    def _next_task(self, worker: WorkerProcess | None) -> Task | None:
        """The first task the worker is for, else the first of all; None when the service closes."""
        with self._changed:
            while not self._queue:
                if self._closing.is_set():
                    return None
                self._idle += 1
                self._changed.wait(IDLE_CHECK_S)
                self._idle -= 1
            if self._closing.is_set():
                return None
            if worker is not None and worker.reward != self._queue[0].request.reward:
                fitting = (i for i, task in enumerate(self._queue) if task.request.reward == worker.reward)
                self._queue.rotate(-next(fitting, 0))
            return self._queue.popleft()

    def _attempt(self, worker: WorkerProcess | None, task: Task) -> WorkerProcess | None:
        """Put one item to a worker; returns the worker if it is still of use."""
        if worker is not None and worker.items >= self._recycle_after:
            self._discard(worker, "recycled")
            worker = None
        if worker is not None and worker.reward != task.request.reward:
            self._discard(worker)
            worker = None
        if worker is None:
            worker = self._start_worker(task.request.reward)
        task.attempts += 1
        try:
            self._finish(task, worker.ask(task.request))
            return worker
        except ItemTimedOut as fault:
            self._discard(worker, "killed")
            self._finish(task, Outcome(VerdictCode.TIMEOUT, str(fault)))
        except WorkerDied as fault:
            self._discard(worker, "died_busy" if fault.busy else "died_idle")
            self._after_death(task, fault)
        except Cancelled:
            self._discard(worker)
            raise
        return None

    def _after_death(self, task: Task, fault: WorkerDied) -> None:
        """Try the item again: freely if the worker died idle, once if it died over this item."""
        if not fault.busy:
            task.attempts -= 1
            task.idle_deaths += 1
        if task.attempts >= MAX_ATTEMPTS or task.idle_deaths >= MAX_IDLE_DEATHS:
            self._finish(task, Outcome(VerdictCode.CRASH, str(fault)))
            return
        with self._changed:
            self._queue.appendleft(task)
            self._changed.notify()

    def _start_worker(self, reward: str | None) -> WorkerProcess:
        for attempt in range(1, MAX_START_FAILURES + 1):
            try:
                worker = WorkerProcess(
                    memory_bytes=self._memory_bytes,
                    start_timeout_s=self._start_timeout_s,
                    cancelled=self._closing,
                    reward=reward,
                )
                break
            except WorkerStartFailed:
                if attempt == MAX_START_FAILURES:
                    raise
        with self._changed:
            self._counters["started"] += 1
            self._workers[worker.pid] = worker
        return worker

    def _discard(self, worker: WorkerProcess, counter: str | None = None) -> None:
        worker.kill()
        with self._changed:
            self._workers.pop(worker.pid, None)
            if counter is not None:
                self._counters[counter] += 1

    def _finish(self, task: Task, outcome: Outcome) -> None:
        with self._changed:
            if self._tasks.pop(task.key, None) is None:
                return  # closed meanwhile
            request = task.request
            if request.op in ("grade", "score"):
                self._cache.put(self._cache_key(request), outcome, request.timeout_s)
            for batch, index in task.waiting:
                self._settle(batch, index, request.answer if request.reward is None else None, outcome)
            complete = {batch for batch, _ in task.waiting if batch.missing == 0}
        for batch in complete:
            batch.resolve()

    def _fail_all(self, error: RewardServiceError) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self._queue.clear()
        for batch in {batch for task in tasks for batch, _ in task.waiting}:
            if not batch.future.done():
                batch.future.set_exception(error)


def _check_timeout(timeout_s: float) -> None:
    if not 0.0 < timeout_s < 3600.0:
        raise ValueError(f"rewards: timeout_s is {timeout_s}; it must be more than 0 and less than an hour")


_open_services: weakref.WeakSet[RewardService] = weakref.WeakSet()
_shared_lock = threading.Lock()
_shared: RewardService | None = None


def grade(pairs: Sequence[Pair], *, timeout_s: float = 5.0) -> list[Verdict]:
    """Verdicts on (gold answer, response text) pairs, gold first, from a service this process shares.

    timeout_s is the processor time one answer may cost; beyond it the verdict is TIMEOUT, which counts as not graded.
    """
    global _shared
    with _shared_lock:
        if _shared is None or _shared._owner != os.getpid() or _shared._closing.is_set():
            _shared = RewardService()
        service = _shared
    return service.grade(pairs, timeout_s=timeout_s)


@atexit.register
def _close_open_services() -> None:
    for service in list(_open_services):
        service.close()
