"""Weights & Biases, MLflow and Trackio: each is asked for little, and finds the run of an earlier process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

from server.store.views import RunInfo
from server.trackers.tracker import Outcome, Settings

# MLflow's bounds on one call and on one parameter.
_BATCH, _LONGEST = 1000, 500
_TAG = "graft.uid"


class Wandb:
    """A run whose id is the uid; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, settings: Settings, run: RunInfo) -> None:
        import wandb

        settings.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=settings.project, id=run.uid, name=run.uid, group=run.name, config=dict(run.config),
            dir=str(settings.folder), resume="allow", **settings.options,
        )  # fmt: skip
        # Its own counter refuses an evaluation that comes after a later step.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def finish(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=0 if outcome == "finished" else 1)


class Mlflow:
    """A run tagged with the uid, in the experiment named by `project`; MLFLOW_TRACKING_URI says where."""

    def __init__(self, settings: Settings, run: RunInfo) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        experiment = self._client.get_experiment_by_name(settings.project)
        identity = experiment.experiment_id if experiment else self._client.create_experiment(settings.project)
        found = self._client.search_runs([identity], f"tags.{_quoted(_TAG)} = '{run.uid}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(identity, run_name=run.uid, tags={_TAG: run.uid}).info.run_id
        parameters = iter([Param(key, text[:_LONGEST]) for key, text in flat(run.config).items()])
        while part := list(islice(parameters, 100)):
            self._client.log_batch(self._id, params=part)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = iter([self._metric(name, value, now, step) for name, value in values.items()])
        while part := list(islice(metrics, _BATCH)):
            self._client.log_batch(self._id, metrics=part)

    def finish(self, outcome: Outcome) -> None:
        status = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}[outcome]
        self._client.set_terminated(self._id, status)


class Trackio:
    """A run named by the uid; TRACKIO_DIR says where Trackio keeps its database."""

    def __init__(self, settings: Settings, run: RunInfo) -> None:
        import trackio

        quiet = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
        self._run = trackio.init(
            settings.project, name=run.uid, group=run.name, config=dict(run.config), resume="allow",
            **{**quiet, **settings.options},
        )  # fmt: skip

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, outcome: Outcome) -> None:
        self._run.finish()


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A nested configuration as {"exchange.floor": "0.8"}; lists as text."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = str(value)
    return found


def _quoted(name: str) -> str:
    return f"`{name}`"
