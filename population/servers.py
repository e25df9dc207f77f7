"""A member's engine on SGLang servers: those the configuration has it start, or those it attaches to."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from population.config import MemberConfig, RunConfig, SglangConfig
from population.errors import ConfigError
from server.rollouts.sglang_engine import SglangEngine, SglangSettings
from server.rollouts.sglang_http import AttachedServer, Server
from server.rollouts.sglang_process import ServerSpec, SglangServer, close_all, start_all
from server.rollouts.tokenizer import MemberTokenizer


def server_specs(
    config: RunConfig, member: MemberConfig, place: Path, *, positions: int | None, dtype: str, on_gpu: bool
) -> list[ServerSpec]:
    """How each replica of a member is started. `place`: folder of the member's servers; positions: the longest sequence
    of the model, None for no limit. Replicas share out the GPUs that are named, or else those that this process sees.
    """
    asked, longest = config.servers_of(member), config.rollouts.max_prompt_tokens + config.rollouts.max_response_tokens
    each = asked.tensor_parallel * asked.data_parallel
    gpus = [str(gpu) for gpu in asked.gpus]
    if on_gpu and not gpus and asked.replicas > 1:
        gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        if len(gpus) < asked.replicas * each:
            raise ConfigError(
                f"member {member.name!r}: {asked.replicas} replicas would all start on the first GPU; name "
                f"{asked.replicas * each} in rollouts.sglang.gpus"
            )
    return [
        ServerSpec(
            name=f"member {member.name!r}" if asked.replicas == 1 else f"member {member.name!r}, replica {replica}",
            folder=place / f"server-{replica}",
            context_length=min(longest, positions or longest),
            python=asked.python or sys.executable,
            device="cuda" if on_gpu else "cpu",
            dtype=dtype,
            host=asked.host,
            port=None if asked.port is None else asked.port + replica,
            tensor_parallel=asked.tensor_parallel,
            data_parallel=asked.data_parallel,
            memory_fraction=asked.memory_fraction,
            gpus=tuple(gpus[replica * each : (replica + 1) * each]) if on_gpu else (),
            memory_saver=config.rollouts.sleep,
            threads=config.update.threads,
            flags=asked.flags,
            start_s=asked.start_s,
        )
        for replica in range(asked.replicas)
    ]


def attached(member: str, asked: SglangConfig) -> list[AttachedServer]:
    """The running servers of a member. Raises ConfigError for a key whose variable is not set."""
    keys = []
    for name in (asked.api_key_env, asked.admin_key_env):
        if name is not None and not os.environ.get(name):
            raise ConfigError(f"member {member!r}: the environment variable {name}, which names a key, is not set")
        keys.append(os.environ[name] if name is not None else "")
    return [AttachedServer(url, *keys) for url in asked.urls]


def build_sglang_engine(
    config: RunConfig,
    member: MemberConfig,
    folder: Path,
    tokenizer: MemberTokenizer,
    place: Path,
    *,
    positions: int | None,
    dtype: str,
    on_gpu: bool,
) -> SglangEngine:
    """The engine of one member, its servers ready; they are ended again where it cannot be had."""
    asked, deadlines = config.servers_of(member), config.deadlines
    settings = SglangSettings(
        max_in_flight=asked.max_in_flight,
        keep_split=config.rollouts.split_versions == "keep",
        sample_s=max(deadlines.sample_s, deadlines.evaluate_s),
        sync_s=deadlines.sync_s,
    )
    weights = place / "weights"
    with ExitStack() as stack:
        servers: Sequence[Server]
        if asked.urls:
            servers = attached(member.name, asked)
        else:
            specs = server_specs(config, member, place, positions=positions, dtype=dtype, on_gpu=on_gpu)
            own = [SglangServer(spec) for spec in specs]
            stack.callback(close_all, own)
            start_all(own, folder)
            servers = own
        engine = SglangEngine(servers, tokenizer, folder, weights, settings)
        stack.pop_all()
    return engine
