"""Where the parts of a run are: on threads of this process, or in actors of a cluster with room for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from population.config import ClusterConfig, RunConfig, SglangConfig
from population.errors import ConfigError
from population.grading import require_reward, reward_service
from population.placement.local import Local
from population.placement.protocol import Placement

if TYPE_CHECKING:
    from population.placement.ray import Cluster, Room
    from population.placement.verifiers import Verifiers


@dataclass(frozen=True)
class Site:
    """Where one member's trainer and engine run. Without rooms: in this process."""

    threads: int
    cluster: Cluster | None = None
    ranks: Sequence[Room] = ()
    sampler: Sequence[Room] = ()

    def trainer(self, name: str, build: Callable[..., Any], *args: Any) -> Placement:
        """A new trainer; several ranks call `build` with `rank`, `world` and `rendezvous` besides."""
        return self._placed(self.ranks, f"the trainer of {name}", build, args)

    def engine(self, name: str, build: Callable[..., Any], *args: Any) -> Placement:
        """A new engine."""
        return self._placed(self.sampler, f"the engine of {name}", build, args)

    def release(self) -> None:
        """Give the member's room back to the cluster: nothing can be started in it again."""
        if self.cluster is not None:
            self.cluster.release(self.sampler[0])

    def _placed(self, rooms: Sequence[Room], name: str, build: Callable[..., Any], args: Sequence[Any]) -> Placement:
        if self.cluster is None:
            return Local(build, *args, threads=self.threads)
        from population.placement.remote import Remote

        return Remote(self.cluster, rooms, build, *args, name=name, threads=self.threads)


def refuse_unplaced(config: RunConfig, *, clustered: bool) -> None:
    """ConfigError for parts that have no place where the run is to be."""
    if config.update.ranks > 1 and not clustered:
        raise ConfigError(
            f"update.ranks: {config.update.ranks} ranks of a trainer need a process each; add --cluster auto, or set "
            "update.ranks=1"
        )
    asked = config.cluster
    if clustered and config.rollouts.engine == "embedded" and bool(asked.gpus_per_rank) != bool(asked.gpus_per_engine):
        raise ConfigError(
            f"cluster.gpus_per_engine: {asked.gpus_per_engine:g} with gpus_per_rank = {asked.gpus_per_rank:g} puts the "
            "embedded engine and its trainer on different kinds of device, so their weights would differ; give both "
            "a share of a GPU, or neither"
        )
    if clustered and config.rollouts.engine == "sglang":
        for member in config.trained:
            _check_servers_room(member.name, config.servers_of(member), asked)


def _check_servers_room(name: str, servers: SglangConfig, asked: ClusterConfig) -> None:
    """ConfigError where Ray gives an engine other GPUs than its servers are to use."""
    if servers.gpus:
        raise ConfigError(
            f"member {name!r}: sglang.gpus: with --cluster, Ray chooses the GPUs; leave gpus out and set "
            "cluster.gpus_per_engine"
        )
    wanted = servers.replicas * servers.tensor_parallel * servers.data_parallel
    given = asked.gpus_per_engine
    if asked.gpus_per_rank and not servers.urls and given != wanted and not (wanted == 1 and 0 < given < 1):
        raise ConfigError(
            f"member {name!r}: its SGLang servers take {wanted} GPU(s), replicas x tensor_parallel x data_parallel, "
            f"but cluster.gpus_per_engine is {given:g}; set it to {wanted}"
        )
    if 0 < given < 1 and servers.memory_fraction is None and not servers.urls:
        raise ConfigError(
            f"member {name!r}: its SGLang server gets {given:g} of a GPU and would take most of its memory; set "
            "rollouts.sglang.memory_fraction below that"
        )


def decided(config: RunConfig) -> RunConfig:
    """The configuration as actors are to read it: another node may have another device and another working folder."""
    device = config.update.device
    if device == "auto":
        device = "cuda" if config.cluster.gpus_per_rank else "cpu"
    update = config.update.model_copy(update={"device": device})
    return config.model_copy(update={"update": update, "folder": config.folder.absolute()})


@contextmanager
def on_cluster(config: RunConfig, address: str) -> Iterator[Cluster]:
    """The cluster at the address, once it is known to have what the whole run asks for."""
    from population.placement.ray import connect, together

    asked = [*member_parts(config) * len(config.trained), *verifier_parts(config)]
    with connect(address, config.cluster, together(asked)) as cluster:
        yield cluster


def verifiers(config: RunConfig, cluster: Cluster) -> Verifiers:
    """Verifiers on the cluster that know the reward functions of all data sets. ConfigError for one that is of no use
    there.
    """
    from population.placement.ray import Room
    from population.placement.verifiers import Verifiers

    rooms = [Room(part, environment=environment(1)) for part in verifier_parts(config)]
    build = partial(reward_service, config.rewards)
    found = Verifiers(cluster, rooms, build, config.cluster.max_restarts)
    require_reward(config.data, "data", found)
    for benchmark in config.evaluation.benchmarks:
        require_reward(benchmark, f"evaluation.benchmarks.{benchmark.name}", found)
    return found


def member_parts(config: RunConfig) -> list[dict[str, float]]:
    """What one member asks of a cluster: its ranks, then its engine."""
    asked = config.cluster
    rank = _request(asked, asked.cpus_per_rank, asked.gpus_per_rank)
    return [*[rank] * config.update.ranks, _request(asked, asked.cpus_per_engine, asked.gpus_per_engine)]


def verifier_parts(config: RunConfig) -> list[dict[str, float]]:
    """What the verifiers ask of a cluster: a CPU for each of their workers."""
    return [{"CPU": float(config.rewards.workers)}] * config.cluster.verifiers


def site_of(config: RunConfig, cluster: Cluster | None) -> Site:
    """A place for one more member: this process, or room of its own on the cluster."""
    threads = config.update.threads
    if cluster is None:
        return Site(threads)
    rooms = [replace(room, environment=environment(threads)) for room in cluster.reserve(member_parts(config))]
    return Site(threads, cluster, rooms[:-1], rooms[-1:])


def environment(threads: int) -> Mapping[str, str]:
    """What an actor needs to know before torch is imported. Ray shows each rank its own GPU as number 0."""
    return {"OMP_NUM_THREADS": str(threads), "LOCAL_RANK": "0", "TOKENIZERS_PARALLELISM": "false"}


def _request(asked: ClusterConfig, cpus: float, gpus: float) -> dict[str, float]:
    return {"CPU": cpus, **({"GPU": gpus} if gpus else {}), **asked.resources}
