"""The section about a cluster: what each part of a member asks for there, and what happens when one is lost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from population.config.section import PositiveFloat, PositiveInt, Section

FailurePolicy = Literal["restart", "drop", "stop"]
Gpus = Annotated[float, Field(ge=0)]


class ClusterConfig(Section):
    """What `graft train --cluster` asks of Ray (docs/cluster.md); without it only `failure` and `max_restarts` act."""

    failure: FailurePolicy = Field(
        default="restart", description="when a member's trainer or engine is lost; members[].failure overrides it"
    )
    max_restarts: Annotated[int, Field(ge=0)] = Field(default=3, description="of one member, over the whole run")
    heartbeat_s: PositiveFloat = Field(default=10, description="time between two looks at an actor that is at work")
    heartbeat_deadline_s: PositiveFloat = Field(
        default=300, description="silence after which an actor counts as lost; long computations do not make it silent"
    )
    start_s: PositiveFloat = Field(default=600, description="longest wait for room on the cluster and for a process")
    cpus_per_rank: PositiveFloat = 1
    gpus_per_rank: Gpus = Field(default=0, description="0: ranks train on the CPU; below 1: several share a GPU")
    cpus_per_engine: PositiveFloat = 1
    gpus_per_engine: Gpus = Field(default=0, description="of the actor that samples, or that starts SGLang's servers")
    resources: dict[str, PositiveFloat] = Field(
        default={}, description="further resources that every actor of a member asks for, as Ray's nodes name them"
    )
    strict_pack: bool = Field(default=False, description="a member fits on one node, or waits")
    verifiers: PositiveInt = Field(default=1, description="actors that grade, each with rewards.workers processes")
    object_store_mib: Annotated[int, Field(ge=128)] = Field(
        default=1024, description="Ray's shared memory where the run starts a cluster on this machine"
    )
    log_to_driver: bool = Field(default=False, description="print what actors print, and Ray's own remarks on them")

    @field_validator("gpus_per_rank", "gpus_per_engine")
    @classmethod
    def _share_or_whole(cls, gpus: float) -> float:
        if gpus > 1 and gpus != int(gpus):
            raise ValueError("above 1 it must be a whole number: Ray shares one GPU, not several")
        return gpus

    @model_validator(mode="after")
    def _patience(self) -> ClusterConfig:
        if self.heartbeat_deadline_s <= self.heartbeat_s:
            raise ValueError(
                f"heartbeat_deadline_s: {self.heartbeat_deadline_s:g} leaves no time for a heartbeat every "
                f"{self.heartbeat_s:g} s; raise it"
            )
        return self
