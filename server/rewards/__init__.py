"""Verifiable rewards: `grade`, or a `RewardService` for a run."""

from server.rewards.custom import BadReward, time_left
from server.rewards.service import RewardService, RewardServiceError, grade
from server.rewards.verdicts import Item, Score, Verdict, VerdictCode

__all__ = [
    "BadReward",
    "Item",
    "RewardService",
    "RewardServiceError",
    "Score",
    "Verdict",
    "VerdictCode",
    "grade",
    "time_left",
]
