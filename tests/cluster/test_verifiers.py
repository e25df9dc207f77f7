"""Grading in actors gives the verdicts of the service in this process, also when a verifier is killed. Slow."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from population.config import ClusterConfig, ConfigError, RewardConfig, parse
from population.errors import LostError
from population.grading import require_reward, reward_service
from population.placement import verifiers as verifiers_module
from population.placement.ray import Cluster, Room
from population.placement.verifiers import Verifiers
from server.rewards import Item, RewardServiceError, VerdictCode

pytestmark = pytest.mark.slow
PATIENCE_S = 300.0
SMALLEST = {"name": "r", "steps": 1, "method": "grpo", "members": [{"name": "a", "model": "m"}]}
CHOICE = "server.rewards.choice:score"
# One that needs a worker, one that reading decides, one without an answer, and one for a reward function.
ITEMS = [
    Item("x^2 - 1", r"\boxed{(x-1)(x+1)}", "", None),
    Item("12", r"\boxed{12}", "", None),
    Item("7", "no idea", "", None),
    Item("B", r"\boxed{B}", "", CHOICE),
    Item("x^2 - 4", r"\boxed{(x-2)(x+1)}", "", None),
]


@pytest.fixture
def verifiers(cluster: Cluster) -> Iterator[Verifiers]:
    build = partial(reward_service, RewardConfig(timeout_s=60))
    with Verifiers(cluster, [Room({"CPU": 1.0})] * 2, build, restarts=2) as found:
        found.load_reward(CHOICE)
        yield found


class Owing:
    """A verifier's actor that owes every answer, or is lost."""

    def __init__(self, error: Exception | None, name: str) -> None:
        self._error = error

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if self._error is not None:
            answer.set_exception(self._error)
        return answer


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (None, r"verifier 1, reward function m:f: no answer within cluster.start_s = 0.01 s; raise it, or see"),
        (LostError("verifier 1: it was killed"), r"reward function m:f: verifier 1: it was killed; mend what ended it"),
    ],
)
def test_a_verifier_that_does_not_answer_before_the_run_is_named(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, message: str
) -> None:
    monkeypatch.setattr(verifiers_module, "Remote", lambda *where, name: Owing(error, name))
    hurried = SimpleNamespace(settings=ClusterConfig(start_s=0.01))
    owing = Verifiers(cast(Any, hurried), [Room({"CPU": 1.0})] * 2, partial(reward_service, RewardConfig()), restarts=1)
    data = parse({**SMALLEST, "data": {"source": "d", "prompts_per_step": 32, "reward": "m:f"}}).data
    with pytest.raises(ConfigError, match=r"data.reward: " + message):
        require_reward(data, "data", owing)
    with pytest.raises(RewardServiceError, match="reference answers: "):
        owing.unparsable(["1"])


def test_verdicts_survive_killed_workers_and_killed_verifiers(verifiers: Verifiers) -> None:
    with reward_service(RewardConfig(timeout_s=60)) as here:
        here.load_reward(CHOICE)
        expected = here.grade(ITEMS)
        assert verifiers.unparsable(["12", ""]) == here.unparsable(["12", ""]) == [1]
    assert [verdict.code for verdict in expected] == [
        VerdictCode.RIGHT,
        VerdictCode.RIGHT,
        VerdictCode.NO_ANSWER,
        VerdictCode.RIGHT,
        VerdictCode.WRONG,
    ]
    assert verifiers.submit(ITEMS).result(PATIENCE_S) == expected
    assert verifiers.submit([]).result(PATIENCE_S) == []
    assert verifiers.incidents() == []

    first = verifiers.actors()[0]
    (worker,) = first.call("worker_pids").result(PATIENCE_S)
    os.kill(worker, signal.SIGKILL)
    fresh = [item._replace(answer=item.answer + " ") for item in ITEMS]
    assert verifiers.submit(fresh).result(PATIENCE_S) == expected
    assert verifiers.incidents() == [
        "1 verifier worker(s) died and were replaced; their answers were tried again",
    ]

    owed = verifiers.submit(ITEMS)
    for actor in verifiers.actors():
        os.kill(actor.pids[0], signal.SIGKILL)
    assert owed.result(PATIENCE_S) == expected
    assert verifiers.submit(ITEMS).result(PATIENCE_S) == expected
    told = verifiers.incidents()
    assert len(told) == 2
    assert all(text.endswith("; started again, its answers were graded again") for text in told)

    os.kill(verifiers.actors()[0].pids[0], signal.SIGKILL)
    with pytest.raises(RewardServiceError, match="no restart is left"):
        verifiers.submit(ITEMS).result(PATIENCE_S)
