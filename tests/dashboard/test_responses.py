"""What a card says about a response: its reward, the gate, and what became of the group."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dashboard import responses
from server.store.reader import GraftedRecord, GroupRecord, ResponseRecord, TransferRecord


def group(*rewards: float) -> GroupRecord:
    nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return GroupRecord("b", 1, tuple(ResponseRecord("", *nothing, reward, 0.0, 0, "stop", 0) for reward in rewards))


def transfer(*pairs: tuple[float, float]) -> TransferRecord:
    """Admitted responses with these (s, weight)."""
    grafted = tuple(GraftedRecord(i, s, weight, None, 5, -1.0, 5, -1.0) for i, (s, weight) in enumerate(pairs))
    return TransferRecord("a", "b", 1, 0.5, False, False, grafted)


@pytest.mark.parametrize(
    ("reward", "badge"),
    [
        (1.0, ":green-badge[✓ reward 1]"),
        (0.0, ":gray-badge[✗ reward 0]"),
        (0.5, ":green-badge[✓ reward 0.50]"),
        (0.75, ":green-badge[✓ reward 0.75]"),
        (-1.0, ":gray-badge[✗ reward −1.00]"),
        (math.nan, ":gray-badge[✗ reward NaN]"),
    ],
)
def test_a_reward_between_0_and_1_is_not_rounded_to_one_of_them(reward: float, badge: str) -> None:
    assert responses._reward_badge(reward) == badge


def test_a_floor_is_shown_only_where_it_decided() -> None:
    assert responses.gate_floor(0.8, transfer((0.9, 0.9), (1.3, 1.0))) == 0.8
    assert responses.gate_floor(0.8, transfer((0.9, 0.9), (0.5, 1.0))) is None
    assert responses.gate_floor(0.8, transfer((0.9, 1.0))) is None
    assert responses.gate_floor(0.8, None) == 0.8
    assert responses.gate_floor(None, transfer((0.9, 0.9))) is None


def test_a_peer_group_is_not_said_to_have_solved_what_it_did_not() -> None:
    assert "not choose it" in responses._peer_note(group(1, 0), None, 0.8)
    assert responses._peer_note(group(0, 0), None, 0.8).startswith("No candidate")
    assert responses._peer_note(group(1, 1), None, 0.8).startswith("No candidate")
    assert "min(s, 1)" in responses._peer_note(group(1, 0), transfer((0.9, 0.9)), 0.8)
    assert "min(s, 1)" not in responses._peer_note(group(1, 0), transfer((0.9, 1.0)), None)
