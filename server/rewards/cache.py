"""Verdicts already given, by (gold, answer). Faults of the grader are remembered for the run, never on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

from server.rewards.rules import VERIFIER_VERSION
from server.rewards.verdicts import Outcome, VerdictCode

_FAULTS = frozenset({VerdictCode.TIMEOUT, VerdictCode.CRASH, VerdictCode.ERROR})


class VerdictCache:
    """A bounded map, oldest entry out first. With a path it is read at the start and written by `save`.

    The file names the version of the verifier; one of another version is not read, so no verdict outlives its rules.
    """

    def __init__(self, path: Path | None = None, *, max_entries: int = 500_000) -> None:
        self._path = path
        self._max_entries = max_entries
        self._sure: dict[tuple[str, str], Outcome] = {}
        self._faults: dict[tuple[str, str], tuple[Outcome, float]] = {}
        if path is not None and path.exists():
            self._load(path)

    def __len__(self) -> int:
        return len(self._sure) + len(self._faults)

    def get(self, key: tuple[str, str], timeout_s: float) -> Outcome | None:
        """The outcome for (gold, answer). A fault met under a shorter time limit is no answer under a longer one."""
        if (outcome := self._sure.get(key)) is not None:
            return outcome
        fault = self._faults.get(key)
        return fault[0] if fault is not None and fault[1] >= timeout_s else None

    def put(self, key: tuple[str, str], outcome: Outcome, timeout_s: float) -> None:
        """Remember an outcome."""
        if outcome[0] in _FAULTS:
            self._faults[key] = (outcome, timeout_s)
        else:
            self._sure[key] = outcome
        for entries in (self._sure, self._faults):
            if len(entries) > self._max_entries:
                del entries[next(iter(entries))]  # type: ignore[attr-defined]

    def save(self) -> None:
        """Write the sure verdicts beside the run; without a path nothing is written."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"verifier": VERIFIER_VERSION}) + "\n")
            for (gold, answer), outcome in self._sure.items():
                file.write(json.dumps([gold, answer, *outcome]) + "\n")
        unfinished.replace(self._path)

    def _load(self, path: Path) -> None:
        with path.open(encoding="utf-8") as file:
            header = json.loads(next(file, "{}"))
            if header.get("verifier") != VERIFIER_VERSION:
                return
            for line in file:
                gold, answer, code, *more = json.loads(line)
                self._sure[gold, answer] = Outcome(VerdictCode(code), *more)
