"""Golden cases of the method."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A busy machine must not fail a test, and the same commit must always run the same examples.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

CASES = Path(__file__).resolve().parent.parent / "cases"


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    """Loads a golden file of tests/cases by its name without suffix."""
    return lambda name: json.loads((CASES / f"{name}.json").read_text())
