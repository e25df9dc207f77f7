"""What the dashboard's tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_main_module() -> Iterator[None]:
    """Streamlit's AppTest leaves its script as ``__main__``; later tests that start processes need pytest's own."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main
