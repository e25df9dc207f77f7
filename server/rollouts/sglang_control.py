"""What can be asked of one SGLang server besides samples: its weights, its cache, its memory, pause and continue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from server.rollouts.engine import EngineError
from server.rollouts.sglang_http import Exchange, RequestRefused

PauseMode = Literal["abort", "retract"]

# How the server says that weights were taken over although it calls the update failed.
_DIRTY = "cache was not flushed"
_FLUSH_TRY_S = 5.0


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel in one broadcast, as one row of bytes in this order."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself. ranks: those that join a weight group; copies: data-parallel ones; memory_saver:
    whether it can give device memory back.
    """

    version: str
    device: str
    ranks: int
    copies: int
    memory_saver: bool


class Control:
    """The admin routes of one server. Every call has its own deadline; errors are those of Exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @property
    def url(self) -> str:
        """The server's address."""
        return self._exchange.server.url

    def facts(self) -> ServerFacts:
        """Of a running server. Raises EngineError for an answer that is no SGLang server's."""
        info = self._exchange.read("/server_info")
        try:
            ranks = int(info["tp_size"]) * int(info.get("pp_size") or 1)
            copies, saver = int(info.get("dp_size") or 1), bool(info.get("enable_memory_saver"))
            return ServerFacts(str(info["version"]), str(info["device"]), ranks, copies, saver)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"{self.url}/server_info is not the answer of an SGLang server ({type(error).__name__}: {error})"
            ) from error

    def answers(self) -> bool:
        """Whether the server still works. /ready would not tell: a paused server is not ready either."""
        try:
            self.facts()
        except EngineError:
            return False
        return True

    def pause(self, mode: PauseMode, deadline_s: float) -> None:
        """Stop generating. abort: running requests end as aborted; retract: they wait and are computed anew."""
        self._exchange.control("/pause_generation", {"mode": mode}, deadline_s=deadline_s)

    def resume(self, deadline_s: float) -> None:
        """Go on generating; requests that waited go first."""
        self._exchange.control("/continue_generation", {}, deadline_s=deadline_s)

    def abort_all(self, deadline_s: float) -> None:
        """End every running request as aborted."""
        self._exchange.control("/abort_request", {"abort_all": True}, deadline_s=deadline_s)

    def update_from_folder(self, folder: Path, version: str, *, flush: bool, deadline_s: float) -> bool:
        """Take over the weights of a folder. True: the cache of the old ones is gone too; False: it must be flushed.

        Raises RequestRefused where the weights were not taken over.
        """
        payload = {"model_path": str(folder), "weight_version": version, "flush_cache": flush}
        try:
            self._exchange.control("/update_weights_from_disk", payload, deadline_s=deadline_s)
        except RequestRefused as error:
            if _DIRTY not in error.reason:
                raise
            return False
        return flush

    def flush(self, deadline_s: float) -> None:
        """Empty the cache, waiting for requests that still run. Raises EngineError at the deadline."""
        ends = time.monotonic() + deadline_s
        while True:
            left = ends - time.monotonic()
            wait_s = max(1, round(min(_FLUSH_TRY_S, left)))
            try:
                self._exchange.control(f"/flush_cache?timeout={wait_s}", deadline_s=max(left, 0.0) + wait_s)
            except RequestRefused as error:
                if time.monotonic() >= ends:
                    raise EngineError(
                        f"{self.url}: its cache was not flushed within {deadline_s:g} s ({error.reason}); requests of "
                        "somebody else may be running on it"
                    ) from error
            else:
                return

    def checksums(self, deadline_s: float) -> list[dict[str, Any]]:
        """One entry per rank, as `sglang_checksums.compare` takes them."""
        answer = self._exchange.control("/weights_checker", {"action": "checksum"}, deadline_s=deadline_s)
        try:
            return [
                {"checksums": dict(rank["checksums"]), "parallelism_info": list(rank["parallelism_info"])}
                for rank in answer["ranks"]
            ]
        except (KeyError, TypeError) as error:
            raise EngineError(f"{self.url}/weights_checker gave no checksums ({type(error).__name__})") from error

    def release_memory(self, tags: Sequence[str], deadline_s: float) -> None:
        """Give device memory back; the server must be paused and idle."""
        self._exchange.control("/release_memory_occupation", {"tags": list(tags)}, deadline_s=deadline_s)

    def resume_memory(self, tags: Sequence[str], deadline_s: float) -> None:
        """Take device memory again. What was in it is undefined."""
        self._exchange.control("/resume_memory_occupation", {"tags": list(tags)}, deadline_s=deadline_s)

    def join_group(
        self, name: str, address: str, port: int, *, offset: int, world: int, backend: str, deadline_s: float
    ) -> None:
        """Join a weight group as its ranks `offset`, `offset` + 1, ..; returns when all of the group have joined."""
        payload = {
            "master_address": address,
            "master_port": port,
            "rank_offset": offset,
            "world_size": world,
            "group_name": name,
            "backend": backend,
        }
        self._exchange.control("/init_weights_update_group", payload, deadline_s=deadline_s)

    def leave_group(self, name: str, deadline_s: float) -> None:
        """Leave a weight group."""
        self._exchange.control("/destroy_weights_update_group", {"group_name": name}, deadline_s=deadline_s)

    def begin_update(self, deadline_s: float) -> None:
        """Open a weight update; one that was left open before is closed first."""
        try:
            self._exchange.control("/begin_weight_update", {}, deadline_s=deadline_s)
        except RequestRefused as error:
            if "already open" not in error.reason:
                raise
            self.end_update(deadline_s)
            self._exchange.control("/begin_weight_update", {}, deadline_s=deadline_s)

    def end_update(self, deadline_s: float) -> None:
        """Close a weight update."""
        self._exchange.control("/end_weight_update", {}, deadline_s=deadline_s)

    def receive(self, group: str, bucket: Bucket, version: str | None, deadline_s: float) -> None:
        """Take part in the broadcast of one bucket. After an error the server holds a mixture of two versions."""
        payload: dict[str, Any] = {
            "names": bucket.names,
            "dtypes": bucket.dtypes,
            "shapes": bucket.shapes,
            "group_name": group,
            "load_format": "flattened_bucket",
            "flush_cache": False,
        }
        if version is not None:
            payload["weight_version"] = version
        self._exchange.control("/update_weights_from_distributed", payload, deadline_s=deadline_s)
