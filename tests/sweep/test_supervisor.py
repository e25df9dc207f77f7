"""Watching runs whose stores cannot be read at every moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from population.sweep import supervisor
from server.store.records import StoreError


def test_a_store_that_cannot_be_read_for_a_while_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [None, SimpleNamespace(last_step=3, total_steps=9), StoreError("locked"), StoreError("locked")]
    answers.append(SimpleNamespace(last_step=5, total_steps=9))

    def recorded(run: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    monkeypatch.setattr(supervisor, "recorded", recorded)
    process = supervisor._Process(cast(Any, None), cast(Any, None), 0.0)
    looks = [supervisor._steps(process) for _ in range(5)]
    assert looks == [(0, 0), (3, 9), (3, 9), (3, 9), (5, 9)]
    assert process.unreadable_since is None


def test_a_store_that_stays_unreadable_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(run: Any) -> Any:
        raise StoreError("store: no such file")

    monkeypatch.setattr(supervisor, "recorded", recorded)
    monkeypatch.setattr(supervisor, "READABLE_WITHIN_S", -1.0)
    process = supervisor._Process(cast(Any, None), cast(Any, None), 0.0)
    with pytest.raises(StoreError, match="no such file"):
        supervisor._steps(process)
