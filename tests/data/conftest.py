"""No test of this folder may reach the network or the user's caches."""

from __future__ import annotations

from pathlib import Path

import datasets
import huggingface_hub.constants
import pytest

UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of local copies; the hub's address is one where nothing listens, its caches are empty."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", UNREACHABLE)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("GRAFT_DATA", str(tmp_path / "local"))
    return tmp_path / "local"
