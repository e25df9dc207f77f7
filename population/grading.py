"""Rewards of a run: the service its configuration asks for, the functions its data sets name, and items to grade."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from population.config import DataConfig, RewardConfig
from population.errors import ConfigError
from population.prompts import Problem
from server.rewards import BadReward, Item, RewardService, RewardServiceError, Verdict


class Rewards(Protocol):
    """What a run needs of whoever grades: a `RewardService` in this process, or verifiers on a cluster."""

    def load_reward(self, name: str) -> str:
        """Try a reward function once; items may name it then."""
        ...

    def submit(self, items: Sequence[Item]) -> Future[list[Verdict]]:
        """One verdict an item, in their order."""
        ...

    def unparsable(self, answers: Sequence[str]) -> list[int]:
        """Indices of reference answers nothing can be graded against."""
        ...

    def incidents(self) -> list[str]:
        """What went wrong, and was mended, since this was asked last."""
        ...


def reward_service(settings: RewardConfig) -> RewardService:
    """A service with the limits of the configuration; it starts no process yet."""
    return RewardService(settings.workers, settings.timeout_s, memory_bytes=settings.memory_mib << 20)


def require_reward(data: DataConfig, place: str, rewards: Rewards) -> None:
    """Try the reward function of a data set in a worker. ConfigError, with the place of its key, if it is of no use."""
    if data.reward is None:
        return
    try:
        rewards.load_reward(data.reward)
    except (BadReward, RewardServiceError) as error:
        raise ConfigError(f"{place}.reward: {error}") from None


def to_grade(problem: Problem, response: str) -> Item:
    """One response to a problem, as the service takes it."""
    return Item(problem.answer, response, problem.prompt, problem.reward)
