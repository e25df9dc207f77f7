"""What a run needs of each GPU, estimated before any work, and what to change where it does not fit. No torch here.

Sizes are counted, not fitted: bytes per parameter are those that DeepSpeed holds at each ZeRO stage, activations those
that a decoder layer keeps for its backward pass. docs/performance.md compares them with measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from population.config import MemberConfig, RunConfig

GIB = 2**30
# Context, kernels and fragmentation of one GPU that no part below accounts for.
RESERVE = GIB + GIB // 2
# A server that has room for fewer responses at their full length is not worth starting; more wait their turn.
SERVER_ROWS = 16
RANKS = (2, 4, 8)

Parts = dict[str, int]


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder that decide its memory."""

    parameters: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int
    gated: bool
    normed_heads: bool


@dataclass(frozen=True)
class Footprint:
    """Bytes by part on one device: held all the time, and besides while the member trains or samples.

    ``engine``: held while the engine is awake, which with `rollouts.sleep` it is not while its member trains.
    """

    held: Parts = field(default_factory=dict)
    engine: Parts = field(default_factory=dict)
    training: Parts = field(default_factory=dict)
    sampling: Parts = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceNeed:
    """The peak of one device: bytes by part, when it comes, how many such devices there are, and the share of a GPU
    that the run asked for.
    """

    name: str
    when: str
    parts: Parts
    count: int = 1
    share: float = 1.0

    @property
    def total(self) -> int:
        """Bytes of the parts together."""
        return sum(self.parts.values())

    def fits(self, memory: int) -> bool:
        """Whether the peak, and what no part accounts for, fits into the share of a GPU of ``memory`` bytes."""
        return self.total + RESERVE <= memory * min(self.share, 1.0)


def decoder(model: Mapping[str, Any], parameters: int | None) -> Decoder | None:
    """The sizes named in a config.json; None where it does not name them as decoders commonly do."""
    hidden, layers = dimension(model, "hidden_size", "n_embd"), dimension(model, "num_hidden_layers", "n_layer")
    heads = dimension(model, "num_attention_heads", "n_head")
    if parameters is None or hidden is None or layers is None or heads is None:
        return None
    return Decoder(
        parameters,
        hidden,
        layers,
        heads,
        kv_heads=int(model.get("num_key_value_heads") or heads),
        head=int(model.get("head_dim") or hidden // heads),
        inner=int(model.get("intermediate_size") or 4 * hidden),
        vocabulary=int(model.get("vocab_size") or 0),
        gated=model.get("hidden_act") in ("silu", "gelu_pytorch_tanh"),
        normed_heads=str(model.get("model_type", "")).startswith("qwen3"),
    )


def dimension(model: Mapping[str, Any], *names: str) -> int | None:
    """The first of these sizes that a config.json gives."""
    return next((int(model[name]) for name in names if model.get(name)), None)


def plan_dtype(config: RunConfig) -> str:
    """update.dtype, with `auto` taken as the run would resolve it on the configured device (auto: a GPU)."""
    if config.update.dtype != "auto":
        return config.update.dtype
    return "float32" if config.update.device == "cpu" else "bfloat16"


def trainer_footprint(config: RunConfig, member: MemberConfig, model: Decoder) -> Footprint:
    """One rank of a member's trainer."""
    update, ranks = config.update, config.update.ranks
    width = _width(config)
    trained = _adapter_parameters(config, model) or model.parameters
    shard = ranks if update.zero_stage == 3 else 1
    # bfloat16 trains at stage 2 at least, where the float32 gradients are sharded as well.
    sharded = ranks if update.zero_stage >= 2 or width == 2 else 1
    held = {"weights": model.parameters * width // shard}
    if not update.offload_optimizer:
        # A float32 copy of the weights and AdamW's two moments, whatever the dtype of the model.
        held["optimiser"] = 12 * trained // ranks
    if update.kl_coefficient:
        held["initial model"] = model.parameters * width
    pack = member.max_tokens_per_pack or update.max_tokens_per_pack
    layer = pack * _layer_bytes(model, width)
    checkpointed = update.gradient_checkpointing
    kept = layer + model.layers * pack * model.hidden * width if checkpointed else model.layers * layer
    chunk = min(update.logprob_chunk_tokens, pack)
    training = {
        "gradients": 4 * trained // sharded + (2 * trained // shard if width == 2 else 0),
        "activations": kept + 3 * pack * model.hidden * width,
        # Logits and their gradient, and the head's float32 gradient, in which the chunks add up.
        "logits": 8 * chunk * model.vocabulary + 4 * model.vocabulary * model.hidden,
    }
    return Footprint(held=held, training=training)


def engine_footprint(config: RunConfig, member: MemberConfig, model: Decoder, memory: int | None) -> Footprint:
    """One GPU, of ``memory`` bytes if that is known, of a member's engine: the embedded one's cache for all rows, a
    server's for SERVER_ROWS responses at least, and as much as `memory_fraction` gives it.
    """
    width, servers = _width(config), config.servers_of(member)
    samples = config.data.prompts_per_step * config.rollouts.rollouts_per_prompt
    length = config.rollouts.max_prompt_tokens + config.rollouts.max_response_tokens
    served = config.rollouts.engine == "sglang"
    spread = servers.tensor_parallel if served else 1
    weights = model.parameters * width // spread
    rows = min(SERVER_ROWS if served else config.rollouts.max_batch_rows, samples)
    cache = 2 * rows * length * model.layers * model.kv_heads * model.head * width // spread
    if not served:
        return Footprint(engine={"engine weights": weights}, sampling={"KV cache": cache})
    # A server reserves its cache when it starts; the embedded engine makes one for each batch.
    reserved = int((memory or 0) * (servers.memory_fraction or 0)) - weights
    return Footprint(engine={"engine weights": weights, "KV cache": max(cache, reserved)})


def device_needs(
    config: RunConfig, models: Mapping[str, Decoder], cluster: bool, memory: int | None = None
) -> list[DeviceNeed]:
    """The peak of every kind of device: in one process its GPU and those that servers have besides, on a cluster those
    of each member's ranks and engine.

    ``models`` {member: sizes} of the trained members; ``memory``: bytes of one GPU, None if not known.
    """
    members = [member for member in config.trained if member.name in models]
    if not cluster:
        return _in_one_process(config, members, models, memory)
    needs = []
    for member in members:
        model, wanted = models[member.name], config.cluster
        rank = _peak(f"{member.name}, a trainer's rank", {member.name: trainer_footprint(config, member, model)}, False)
        needs.append(_placed(rank, config.update.ranks, wanted.gpus_per_rank))
        server = config.servers_of(member)
        if not server.urls:
            footprint = engine_footprint(config, member, model, memory)
            engine = _peak(f"{member.name}, an engine", {member.name: footprint}, False)
            each = server.tensor_parallel * server.data_parallel * server.replicas
            gpus = each if config.rollouts.engine == "sglang" else 1
            needs.append(_placed(engine, gpus, wanted.gpus_per_engine / gpus))
    return needs


def first_change_that_fits(
    config: RunConfig, models: Mapping[str, Decoder], memory: int, cluster: bool
) -> tuple[str, list[DeviceNeed]] | None:
    """The first change, or else the first changes together, with which every device fits into ``memory`` bytes.

    Tried in the order of what they cost: less at a time, then computing again, then moving, then spreading, then
    training fewer weights. None when not even all together are enough.
    """
    tried: dict[str, Any] = {}
    for changes in [*([change] for change in _changes(config, cluster)), *_together(config, cluster)]:
        changed, tried = config, {key: value for change in changes for key, value in change.items()}
        for key, value in tried.items():
            changed = _with(changed, key, value)
        needs = device_needs(changed, models, cluster, memory)
        if all(need.fits(memory) for need in needs):
            return ", ".join(f"{key}: {_said(value)}" for key, value in tried.items()), needs
    return None


def _changes(config: RunConfig, cluster: bool) -> Iterator[dict[str, Any]]:
    update, rollouts = config.update, config.rollouts
    longest = rollouts.max_prompt_tokens + rollouts.max_response_tokens
    if update.max_tokens_per_pack > longest:
        yield {"update.max_tokens_per_pack": longest}
    if rollouts.engine == "embedded" and rollouts.max_batch_rows > SERVER_ROWS:
        yield {"rollouts.max_batch_rows": SERVER_ROWS}
    if not update.gradient_checkpointing:
        yield {"update.gradient_checkpointing": True}
    if not rollouts.sleep and not cluster:
        yield {"rollouts.sleep": True}
    if not update.offload_optimizer:
        yield {"update.offload_optimizer": True}
    if cluster:
        for ranks in RANKS:
            if ranks > update.ranks:
                yield {"update.ranks": ranks, "update.zero_stage": 3}
    if update.lora is None:
        yield {"update.lora": {"rank": 16}}


def _together(config: RunConfig, cluster: bool) -> Iterator[Sequence[dict[str, Any]]]:
    """Growing sets of the changes, each with all that cost less."""
    found = list(_changes(config, cluster))
    for last in range(1, len(found)):
        yield found[: last + 1]


def _with(config: RunConfig, key: str, value: Any) -> RunConfig:
    section, name = key.split(".")
    part = getattr(config, section)
    changed = type(part).model_validate({**part.model_dump(), name: value})
    return config.model_copy(update={section: changed})


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_said(entry)}" for key, entry in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_one_process(
    config: RunConfig, members: Sequence[MemberConfig], models: Mapping[str, Decoder], memory: int | None
) -> list[DeviceNeed]:
    """GPU 0, which all trainers are on, and the others that servers are given; those that hold the same as one."""
    served = config.rollouts.engine == "sglang"
    engines: dict[str, list[str]] = {"0": []}
    for member in members:
        servers = config.servers_of(member)
        for gpu in (() if servers.urls else servers.gpus or (0,)) if served else (0,):
            engines.setdefault(str(gpu), []).append(member.name)
    alike: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for gpu, held in engines.items():
        alike.setdefault((gpu == "0", tuple(held)), []).append(gpu)
    needs = []
    for (trains, names), gpus in alike.items():
        footprints = {}
        for member in members:
            model = models[member.name]
            trainer = trainer_footprint(config, member, model) if trains else Footprint()
            engine = engine_footprint(config, member, model, memory) if member.name in names else Footprint()
            footprints[member.name] = Footprint(trainer.held, engine.engine, trainer.training, engine.sampling)
        title = "all members on one device" if len(engines) == 1 else f"GPU {', '.join(gpus)}"
        need = _peak(title, footprints, config.rollouts.sleep)
        needs.append(DeviceNeed(need.name, need.when, need.parts, len(gpus)))
    return needs


def _peak(name: str, footprints: Mapping[str, Footprint], sleep: bool) -> DeviceNeed:
    """What is held all the time, and the most that one member's training or sampling adds to it."""
    moments: list[tuple[str, Parts]] = []
    for worker, own in footprints.items():
        for when, extra in (("trains", own.training), ("samples", own.sampling)):
            parts: Parts = {}
            for member, footprint in footprints.items():
                asleep = sleep and member == worker and when == "trains"
                awake = {} if asleep else footprint.engine
                busy = extra if member == worker else {}
                parts |= {f"{member} {part}": size for part, size in (footprint.held | awake | busy).items()}
            moments.append((f"{worker} {when}", parts))
    when, parts = max(moments, key=lambda moment: sum(moment[1].values()))
    return DeviceNeed(name, when, parts)


def _placed(need: DeviceNeed, count: int, share: float) -> DeviceNeed:
    return DeviceNeed(need.name, need.when, need.parts, count, share or 1.0)


def _width(config: RunConfig) -> int:
    return 2 if plan_dtype(config) == "bfloat16" else 4


def _adapter_parameters(config: RunConfig, model: Decoder) -> int | None:
    """Weights of adapters on every linear layer; None without LoRA."""
    if config.update.lora is None:
        return None
    queries, keys = model.heads * model.head, model.kv_heads * model.head
    shapes = [(model.hidden, queries), (model.hidden, keys), (model.hidden, keys), (queries, model.hidden)]
    shapes += [(model.hidden, model.inner)] * (2 if model.gated else 1) + [(model.inner, model.hidden)]
    return config.update.lora.rank * model.layers * sum(a + b for a, b in shapes)


def _layer_bytes(model: Decoder, width: int) -> int:
    """Bytes that one layer keeps for each token: two norms in float32 and their result, queries, keys and values as
    the attention kernel gets them and what it returns, and the feed-forward block's inner values.
    """
    queries, keys = model.heads * model.head, model.kv_heads * model.head
    norms = 2 * (8 + width) * model.hidden
    heads = 3 * width * (queries + keys) if model.normed_heads else 0
    return norms + heads + 4 * width * queries + (4 if model.gated else 2) * width * model.inner
