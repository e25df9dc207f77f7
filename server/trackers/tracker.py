"""What a tracker is, and how one is opened by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from server.store.views import RunInfo

Kind = Literal["tensorboard", "wandb", "mlflow", "trackio"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Outcome = Literal["finished", "failed", "interrupted"]


class TrackerError(Exception):
    """A tracker that cannot be used: one line with the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a tracker puts a run. `folder`: event files, and what a service keeps on this machine; `project`: W&B's and
    Trackio's project, MLflow's experiment; `options`: passed on to the `init` of W&B or Trackio.
    """

    kind: Kind
    folder: Path
    project: str = "graft"
    options: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Protocol):
    """One run in a tracker. Steps come in ascending order; evaluations of a step may come after later steps."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show finite values of a step."""

    def finish(self, outcome: Outcome) -> None:
        """Send what is left and close the run."""


def open_tracker(settings: Settings, run: RunInfo, after: int) -> Tracker:
    """Begin or go on with a run that has everything up to step `after`. TrackerError when its package is missing."""
    try:
        if settings.kind == "tensorboard":
            from server.trackers.event_file import EventFile

            return EventFile(settings, run, after)
        from server.trackers import services

        opening: dict[str, Callable[[Settings, RunInfo], Tracker]]
        opening = {"wandb": services.Wandb, "mlflow": services.Mlflow, "trackio": services.Trackio}
        return opening[settings.kind](settings, run)
    except ModuleNotFoundError as fault:
        package = {"mlflow": "mlflow-skinny"}.get(settings.kind, settings.kind)
        raise TrackerError(
            f"tracker {settings.kind}: {fault.name} is not installed; pip install {package}, "
            "or the extra: pip install -e '.[trackers]'"
        ) from None
