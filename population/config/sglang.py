"""The section about SGLang servers: those that a run starts, or those it attaches to (docs/sglang.md)."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, ValidationError, field_validator, model_validator

from population.config.section import PositiveFloat, PositiveInt, Section

Flag = bool | int | float | str | tuple[int | float | str, ...]

# Flags of a server that a run sets itself, and where to say it instead.
OURS = {
    "model-path": "set members[].model",
    "tokenizer-path": "set members[].model",
    "served-model-name": "the run names the server itself",
    "host": "set rollouts.sglang.host",
    "port": "set rollouts.sglang.port",
    "api-key": "keys are made for each run; for servers of yours set urls and api_key_env",
    "admin-api-key": "keys are made for each run; for servers of yours set urls and admin_key_env",
    "config": "give its flags here",
    "tensor-parallel-size": "set rollouts.sglang.tensor_parallel",
    "data-parallel-size": "set rollouts.sglang.data_parallel",
    "mem-fraction-static": "set rollouts.sglang.memory_fraction",
    "base-gpu-id": "set rollouts.sglang.gpus",
    "gpu-id-step": "set rollouts.sglang.gpus",
    "device": "set update.device",
    "dtype": "set update.dtype",
    "context-length": "set rollouts.max_prompt_tokens and rollouts.max_response_tokens",
    "skip-tokenizer-init": "ids go in and out, so it is always set",
    "enable-memory-saver": "set rollouts.sleep: true",
    "random-seed": "servers with one seed would draw the same samples; for seeds per sample set "
    "enable-deterministic-inference",
    "nnodes": "a server over several machines is started by you: set urls",
    "node-rank": "a server over several machines is started by you: set urls",
    "dist-init-addr": "a server over several machines is started by you: set urls",
}
OTHER_NAMES = {
    "model": "model-path",
    "tp": "tensor-parallel-size",
    "tp-size": "tensor-parallel-size",
    "dp": "data-parallel-size",
    "dp-size": "data-parallel-size",
}
# What says how a server is started, and says nothing about one that already runs.
STARTING = (
    "host", "port", "replicas", "tensor_parallel", "data_parallel", "memory_fraction", "gpus", "python", "flags",
)  # fmt: skip


class SglangConfig(Section):
    """Where the samples of `engine: sglang` come from: servers that the run starts, or running ones under `urls`."""

    urls: tuple[str, ...] = Field(default=(), description="running servers of this member; none: they are started")
    api_key_env: str | None = Field(default=None, description="environment variable that holds the servers' API key")
    admin_key_env: str | None = Field(default=None, description="environment variable that holds their admin key")
    host: str = Field(default="127.0.0.1", description="address that a started server listens on")
    port: Annotated[int, Field(ge=1024, le=65535)] | None = Field(
        default=None, description="of the first replica, the next ones follow; null: free ones are found"
    )
    replicas: PositiveInt = Field(default=1, description="servers of one member")
    tensor_parallel: PositiveInt = Field(default=1, description="GPUs that one copy of the weights is spread over")
    data_parallel: PositiveInt = Field(default=1, description="copies of the weights inside one server")
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="share of a GPU for weights and key-value cache; null: SGLang's choice"
    )
    gpus: tuple[Annotated[int, Field(ge=0)] | str, ...] = Field(
        default=(), description="GPUs of the member's servers, as CUDA_VISIBLE_DEVICES counts them"
    )
    python: str | None = Field(default=None, description="interpreter that has sglang; null: the run's own")
    flags: dict[str, Flag] = Field(
        default={}, description="any other flag of the server, without its dashes: true, a value or a list"
    )
    start_s: PositiveFloat = Field(default=600, description="longest time from start to ready")
    bucket_mib: PositiveInt = Field(default=1024, description="of weights in one broadcast (rollouts.sync: group)")
    max_in_flight: PositiveInt = Field(default=256, description="samples that one server is asked for at a time")

    @field_validator("urls")
    @classmethod
    def _whole_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if not re.fullmatch(r"https?://[^/?#@\s]+/*", url):
                raise ValueError(f"{url!r} is no server's address; give one such as http://10.0.0.4:30000")
        if len(set(urls)) < len(urls):
            raise ValueError("an address is given twice; one server cannot be two replicas")
        return tuple(url.rstrip("/") for url in urls)

    @field_validator("api_key_env", "admin_key_env")
    @classmethod
    def _variable(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            # The value is not repeated: it may be the key itself.
            raise ValueError("must be the name of an environment variable, such as SGLANG_API_KEY, never the key")
        return name

    @field_validator("flags")
    @classmethod
    def _flags(cls, flags: dict[str, Flag]) -> dict[str, Flag]:
        named: dict[str, Flag] = {}
        for given, value in flags.items():
            flag = given.removeprefix("--").replace("_", "-")
            if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", flag):
                raise ValueError(f"{given!r} is no flag's name; give one such as attention-backend")
            reason = OURS.get(OTHER_NAMES.get(flag, flag))
            if reason:
                raise ValueError(f"{given}: the run sets this flag itself; {reason}")
            if flag in named:
                raise ValueError(f"{given}: is given twice")
            named[flag] = value
        return named

    @model_validator(mode="after")
    def _attached_or_started(self) -> SglangConfig:
        defaults = SglangConfig.model_fields
        started = [key for key in STARTING if getattr(self, key) != defaults[key].default]
        if self.urls and started:
            raise ValueError(f"{started[0]}: says how servers are started, but urls names running ones; leave one out")
        if not self.urls and (self.api_key_env or self.admin_key_env):
            raise ValueError("api_key_env and admin_key_env: keys of started servers are made for each run; set urls")
        wanted = self.replicas * self.tensor_parallel * self.data_parallel
        if self.gpus and len(self.gpus) != wanted:
            raise ValueError(
                f"gpus: names {len(self.gpus)}, but replicas x tensor_parallel x data_parallel is {wanted}"
            )
        if self.gpus and len(set(self.gpus)) < len(self.gpus):
            raise ValueError("gpus: one is named twice")
        return self

    def with_overrides(self, over: SglangConfig | None) -> SglangConfig:
        """This section under the keys that a member gives itself, flag by flag. Raises ValueError (one line) where the
        two do not fit together. A member that names its servers leaves out how others are started.
        """
        if over is None:
            return self
        given = over.model_dump(exclude_unset=True)
        below = self.model_dump(exclude=set(STARTING) if over.urls else None)
        if "flags" in given:
            given["flags"] = {**below.get("flags", {}), **given["flags"]}
        try:
            return SglangConfig.model_validate({**below, **given})
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
