"""Folders with tiny random models, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.helpers import FAMILIES, tiny_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model folder by family."""
    folders = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    for family, folder in folders.items():
        tiny_model(family).save_pretrained(folder)
    return folders
