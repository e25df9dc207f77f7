"""A Ray cluster: found or started, asked for room, and left clean. Ray itself is imported when a run asks for it."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from population.config.cluster import ClusterConfig
from population.errors import PlacementError
from population.placement.host import Host, last_lines, sealed

Resources = Mapping[str, float]

# Looks at whether a wait was given up meanwhile.
LOOK_S = 0.5
LOG_DEADLINE_S = 10.0
PULSE = "pulse"
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def _ray() -> Any:
    """Ray, which sends nobody usage statistics. PlacementError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if any(name in os.environ for name in TOKENS) or (Path.home() / ".ray" / "auth_token").is_file():
        # Clusters begun where there is a token want it shown; Ray shows it only to those it began itself.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError:
        raise PlacementError(
            "--cluster needs Ray, which is not installed here: pip install 'graft-population[cluster]'"
        ) from None
    return ray


@contextmanager
def connect(address: str, settings: ClusterConfig, asked: Resources) -> Iterator[Cluster]:
    """The cluster at an address, or with `auto` the one that `ray start` began on this machine, else one that lives as
    long as this block. `asked`: what the whole run will ask for.

    Raises PlacementError when there is no Ray, no cluster at the address, or too small a one.
    """
    if not settings.log_to_driver:
        # Ray's own switch leaves out what actors print, but not its remarks on actors that died, which the record has.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    ray = _ray()
    if ray.is_initialized():
        raise PlacementError("this process is connected to a Ray cluster already; a run makes its own connection")
    try:
        with _signals_kept():
            _join(ray, address, settings, asked)
        check_size(ray, asked)
        yield Cluster(settings, ray)
    finally:
        ray.shutdown()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and a run that is stopped by it would not say so."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _join(ray: Any, address: str, settings: ClusterConfig, asked: Resources) -> None:
    said: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": settings.log_to_driver}
    place = begun_here() if address == "auto" else address
    if place is None:
        # CPUs are a number that Ray counts down, not cores: one machine runs what it would run without a cluster.
        ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, round(asked.get("CPU", 0) + 0.5)),
            resources={name: amount for name, amount in asked.items() if name not in ("CPU", "GPU")},
            include_dashboard=False,
            object_store_memory=settings.object_store_mib << 20,
            **said,
        )
        return
    try:
        ray.init(address=place, **said)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        remedy = "give --cluster auto" if place == address else "forget that one with `ray stop`"
        raise PlacementError(
            f"no Ray cluster can be used at {place} ({reason[:200]}); start one with `ray start --head`, or {remedy}"
        ) from None


def begun_here() -> str | None:
    """The address of the cluster that `ray start` began on this machine, or that RAY_ADDRESS names; None without one.

    Ray's own search also finds clusters that belong to another run, and end with it.
    """
    noted = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    return os.environ.get("RAY_ADDRESS") or (noted.read_text().strip() if noted.is_file() else None)


def check_size(ray: Any, asked: Resources) -> None:
    """PlacementError, with both sizes, when the whole cluster is too small for what a run will ask for."""
    whole = ray.cluster_resources()
    found = {name: whole.get(name, 0.0) for name in asked}
    if any(found[name] < amount for name, amount in asked.items()):
        raise PlacementError(
            f"the run asks for {_listed(asked)}; the cluster has {_listed(found)}: "
            "start more nodes (ray start --address=...), or lower cluster.cpus_per_rank, cluster.gpus_per_rank, "
            "update.ranks or the like"
        )


def _listed(resources: Resources) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "nothing"


def _where() -> tuple[str, str, tuple[str, ...]]:
    """Address and id of the node that this is called on, and the GPUs of it that the actor was given."""
    ray = _ray()
    context = ray.get_runtime_context()
    gpus = tuple(map(str, context.get_accelerator_ids().get("GPU", ())))
    return ray.util.get_node_ip_address(), context.get_node_id(), gpus


def together(parts: Sequence[Resources]) -> dict[str, float]:
    """The sum of several requests."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


@dataclass(frozen=True)
class Room:
    """Where one actor is to run: what it asks for, and its place in a member's placement group, if it has one."""

    resources: Resources
    group: Any = None
    bundle: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    """A connection to a cluster. Everything that waits here takes `given_up`, asked every half second."""

    settings: ClusterConfig
    ray: Any

    def reserve(self, parts: Sequence[Resources]) -> list[Room]:
        """One placement group with room for all parts, together on a node where possible. Does not wait for it."""
        strategy = "STRICT_PACK" if self.settings.strict_pack else "PACK"
        group = self.ray.util.placement_group([dict(part) for part in parts], strategy=strategy)
        return [Room(part, group, number) for number, part in enumerate(parts)]

    def wait_for(self, room: Room, given_up: Callable[[], bool]) -> None:
        """Until the room's group is reserved; PlacementError when it is not within `start_s`."""
        if room.group is None:
            return
        deadline = time.monotonic() + self.settings.start_s
        while not room.group.wait(timeout_seconds=LOOK_S):
            if given_up():
                raise PlacementError("ended before there was room for it")
            if time.monotonic() > deadline:
                parts = "; ".join(_listed(part) for part in room.group.bundle_specs)
                raise PlacementError(
                    f"no room within cluster.start_s = {self.settings.start_s:g} s for {parts}; free on the cluster: "
                    f"{_listed({k: v for k, v in self.ray.available_resources().items() if k in ('CPU', 'GPU')})}"
                )

    def release(self, room: Room) -> None:
        """Give back the whole group that a room is of; actors in it end."""
        if room.group is not None and self.ray.is_initialized():
            self.ray.util.remove_placement_group(room.group)

    def start(self, room: Room) -> Any:
        """An actor handle of a new `Host`; Ray never restarts it by itself."""
        wanted = dict(room.resources)
        options: dict[str, Any] = {
            "num_cpus": wanted.pop("CPU", 0),
            "num_gpus": wanted.pop("GPU", 0),
            "resources": wanted,
            "max_restarts": 0,
            "max_task_retries": 0,
            "runtime_env": {"env_vars": dict(room.environment)},
            "scheduling_strategy": "SPREAD",
        }
        if room.group is not None:
            options["scheduling_strategy"] = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                placement_group=room.group, placement_group_bundle_index=room.bundle
            )
        # A second thread answers heartbeats while the first one works.
        actor = self.ray.remote(concurrency_groups={PULSE: 1})(Host)
        return actor.options(**options).remote(self.ray.put, self.ray.get, _where)

    def end(self, actors: Sequence[Any]) -> None:
        """Kill actors at once."""
        if self.ray.is_initialized():
            for actor in actors:
                self.ray.kill(actor, no_restart=True)

    def sealed(self, value: Any) -> Any:
        """Tensors by name as a parcel; anything else as it is."""
        return sealed(value, self.ray.put)

    def log_tail(self, path: str, node: str) -> str:
        """The last lines of a file on a node, "" where nothing can be read of it within ten seconds."""
        here = last_lines(path)
        if here or not path:
            return here
        strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        reading = self.ray.remote(last_lines).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
        try:
            return str(self.ray.get(reading.remote(path), timeout=LOG_DEADLINE_S))
        except self.ray.exceptions.RayError:
            return ""  # the node went down with the actor
