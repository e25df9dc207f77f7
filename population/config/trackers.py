"""Experiment trackers that are shown a run while it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from population.config.section import Section


class TrackerConfig(Section):
    """One tracker; its name alone stands for all defaults (docs/store.md)."""

    kind: Literal["tensorboard", "wandb", "mlflow", "trackio"]
    project: str = Field(default="graft", description="project of W&B and Trackio, experiment of MLflow")
    folder: Path | None = Field(default=None, description="files it keeps here; default: folder/trackers")
    options: dict[str, Any] = Field(default={}, description="further arguments of wandb.init or trackio.init")


def _named(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


Trackers = tuple[Annotated[TrackerConfig, BeforeValidator(_named)], ...]
