"""docs/configuration.md names every key of the configuration."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from population.config import RunConfig
from population.layers import section_of

TEXT = Path("docs/configuration.md").read_text()


def keys(section: type[BaseModel]) -> set[str]:
    found = set()
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        found |= {name} if inner is None else {name} | keys(inner)
    return found


def test_every_key_is_documented() -> None:
    missing = {
        key for key in keys(RunConfig) if f"`{key}`" not in TEXT and f".{key}`" not in TEXT and f"## {key}" not in TEXT
    }
    assert missing - {"evaluation", "checkpoint", "rewards", "deadlines"} == set()
