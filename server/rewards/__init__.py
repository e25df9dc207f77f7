"""Verifiable rewards: `grade`, or a `RewardService` for a run."""

from server.rewards.service import RewardService, RewardServiceError, grade
from server.rewards.verdicts import Verdict, VerdictCode

__all__ = ["RewardService", "RewardServiceError", "Verdict", "VerdictCode", "grade"]
