"""One model of the population: its tokenizer, its trainer, its engine and the version of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from graft.methods import METHODS
from population.config import MemberConfig, RunConfig
from population.demo import warmstart
from population.demo.models import build_tokenizer
from population.demo.parallel import prepare_all
from population.errors import MemberError
from population.placement import Placement, wait
from population.placement.site import site_of
from population.plan import model_config
from population.servers import build_sglang_engine
from population.trainer import LoraSpec, Trainer, TrainerSpec
from population.weights import load_causal_lm
from server.rollouts.embedded import EmbeddedEngine
from server.rollouts.engine import Engine
from server.rollouts.tokenizer import MemberTokenizer, end_ids_of

if TYPE_CHECKING:
    from population.placement.ray import Cluster

Progress = Callable[[str, int, int, float], None]


@dataclass
class Member:
    """A member as the coordinator drives it. ``trainer`` and ``engine`` are placements: ``call(method, ...)`` gives a
    Future. ``new_trainer`` and ``new_engine`` start another one of each, ``release`` gives up where they run.
    ``group_bytes``: of one bucket where weights are broadcast to the engine, 0 where they go otherwise; ``met``: the
    trainer and engine whose weight group stands.
    """

    name: str
    model: str
    family: str
    tokenizer: MemberTokenizer
    trainer: Placement
    engine: Placement
    new_trainer: Callable[[], Placement]
    new_engine: Callable[[], Placement]
    release: Callable[[], None]
    parameters: int
    weight_version: int | None = 0
    exact_logprobs: bool = False
    notes: tuple[str, ...] = ()
    group_bytes: int = 0
    met: tuple[Placement, Placement] | None = None

    def restart_trainer(self) -> None:
        """End the trainer, if it lives, and start one with the weights of the model folder: load a checkpoint next."""
        self.trainer.kill()
        self.trainer = self.new_trainer()

    def restart_engine(self) -> None:
        """End the engine, if it lives, and start one with the weights of the model folder: load weights next."""
        self.engine.kill()
        self.engine = self.new_engine()

    def leave(self) -> None:
        """End both placements at once and for good; others may have their room."""
        self.trainer.kill()
        self.engine.kill()
        self.release()

    def close(self) -> None:
        """End both placements."""
        self.engine.close()
        self.trainer.close()


def locate_models(config: RunConfig) -> dict[str, Path]:
    """{member name: folder} of every member that is a local folder or a hub name, its tokenizer checked; demo members
    are only checked to exist. Writes nothing. Raises :class:`MemberError` for a folder that is missing or holds no
    usable model.
    """
    folders = {}
    for member in config.trained:
        if warmstart.is_demo(member.model):
            try:
                warmstart.parse(member.model)
            except ValueError as error:
                raise MemberError(f"member {member.name!r}: {error}") from None
        else:
            folders[member.name] = _folder(member)
            load_tokenizer(member.name, folders[member.name])
    return folders


def warm_start_demos(config: RunConfig, progress: Progress | None = None) -> dict[str, Path]:
    """{member name: folder} of the demo members, warm-started unless cached under the run folder."""
    demos = {m.name: warmstart.parse(m.model) for m in config.trained if warmstart.is_demo(m.model)}
    folders: dict[str, Path] = {}
    for size in sorted({size for _, size in demos.values()}):
        cached = prepare_all(
            sorted({demo for demo, its_size in demos.values() if its_size == size}),
            seed=config.member_seed,
            cache_dir=config.folder / "warm-start",
            deadline_s=config.deadlines.load_s,
            progress=progress,
            size=size,
        )
        folders |= {name: cached[demo] for name, (demo, its_size) in demos.items() if its_size == size}
    return folders


def named_fingerprint(member: MemberConfig) -> str:
    """Of the tokenizer of a recorded member's `model`; its weights are neither read nor fetched."""
    if not warmstart.is_demo(member.model):
        return load_tokenizer(member.name, _folder(member, weights=False)).fingerprint
    try:
        tokenizer = build_tokenizer(warmstart.parse(member.model)[0])
    except ValueError as error:
        raise MemberError(f"member {member.name!r}: {error}") from None
    return MemberTokenizer(tokenizer).fingerprint


def _folder(member: MemberConfig, *, weights: bool = True) -> Path:
    """A local model folder, or the snapshot of a hub name, without its weights if they are not needed."""
    path = Path(member.model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise MemberError(
                f"member {member.name!r}: {path} holds no config.json; give a folder written by save_pretrained"
            )
        return path
    if path.is_absolute() or member.model.startswith(".") or member.model.count("/") != 1:
        raise MemberError(
            f"member {member.name!r}: model folder {member.model} does not exist; check members.{member.name}.model"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        patterns = ["*.json", "*.model", "*.txt", "*.jinja", *(["*.safetensors"] if weights else [])]
        return Path(snapshot_download(member.model, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, OSError) as error:
        raise MemberError(
            f"member {member.name!r}: {member.model} is no local folder and could not be fetched from the model hub "
            f"({type(error).__name__}); download it elsewhere and give the folder's path"
        ) from None


def load_members(
    config: RunConfig,
    folders: Mapping[str, Path],
    tokenizers: Mapping[str, MemberTokenizer],
    place: Path,
    cluster: Cluster | None = None,
) -> dict[str, Member]:
    """Trainer and engine of every trained member, started side by side but for :func:`engines_first`; all are closed
    again when one of them fails.
    `place`: the run's own folder, for what engines keep on disk.
    """
    with ExitStack() as stack:
        started = {}
        for member in config.trained:
            folder, tokenizer = folders[member.name].absolute(), tokenizers[member.name]
            site = site_of(config, cluster)
            new_trainer = partial(site.trainer, member.name, build_trainer, config, member, folder, tokenizer)
            servers = place.absolute() / "sglang" / member.name
            new_engine = partial(site.engine, member.name, build_engine, config, member, folder, tokenizer, servers)
            engine = new_engine()
            stack.callback(engine.close)
            if engines_first(config, clustered=cluster is not None):
                wait(engine.ready, config.deadlines.load_s, member=member.name, phase="load", step=None)
            started[member.name] = (member, engine, new_trainer, new_engine, site.release)
        trainers = {}
        for name, (_, _, new_trainer, *_) in started.items():
            trainers[name] = new_trainer()
            stack.callback(trainers[name].close)
        members = {}
        for name, (member, engine, new_trainer, new_engine, release) in started.items():
            trainer = trainers[name]
            about = partial(wait, deadline_s=config.deadlines.load_s, member=name, phase="load", step=None)
            trained = about(trainer.attributes("parameters", "notes"))
            sampled = about(engine.attributes("exact_logprobs", "notes"))
            members[name] = Member(
                name=name,
                model=member.model,
                family=model_config(folders[name]).get("model_type", "unknown"),
                tokenizer=tokenizers[name],
                trainer=trainer,
                engine=engine,
                new_trainer=new_trainer,
                new_engine=new_engine,
                release=release,
                parameters=trained["parameters"],
                exact_logprobs=sampled["exact_logprobs"],
                notes=(*trained["notes"], *sampled["notes"]),
                group_bytes=_group_bytes(config, member),
            )
        stack.pop_all()
    return members


def engines_first(config: RunConfig, *, clustered: bool) -> bool:
    """Whether engines start one after the other, before any trainer: SGLang takes its share of what is free when it
    starts, and fails where others take memory at that moment.
    """
    return config.rollouts.engine == "sglang" and not clustered and on_gpu(config)


def _group_bytes(config: RunConfig, member: MemberConfig) -> int:
    """Bytes of one bucket where a member's weights are broadcast, else 0."""
    by_group = config.rollouts.engine == "sglang" and config.rollouts.sync == "group"
    return config.servers_of(member).bucket_mib << 20 if by_group else 0


def positions_of(folder: Path) -> int | None:
    """The longest sequence a model takes, None when its configuration sets no limit."""
    found = model_config(folder)
    text = found.get("text_config", found)
    value = text.get("max_position_embeddings") or text.get("n_positions")
    return int(value) if value else None


def load_tokenizer(name: str, folder: Path) -> MemberTokenizer:
    """The tokenizer of a model folder with every end token its generation configuration names."""
    from transformers import AutoTokenizer, GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(folder) if (folder / "generation_config.json").is_file() else None
        return MemberTokenizer(AutoTokenizer.from_pretrained(folder), generation_end_ids=end_ids_of(generation))
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        if not reason.startswith("tokenizer "):
            reason = (
                f"tokenizer or generation configuration of {folder} cannot be read ({reason[:200]}); write them anew"
            )
        raise MemberError(f"member {name!r}: {reason}") from None


def trainer_spec(config: RunConfig, member: MemberConfig, folder: Path, tokenizer: MemberTokenizer) -> TrainerSpec:
    """What the trainer of one member is built from."""
    update, how = config.update, METHODS[config.method].how
    lora = None
    if update.lora is not None:
        modules = update.lora.target_modules
        lora = LoraSpec(update.lora.rank, update.lora.alpha, modules if isinstance(modules, str) else tuple(modules))
    return TrainerSpec(
        model_path=str(folder),
        member=member.name,
        seed=config.seed,
        learning_rate=member.learning_rate or update.learning_rate,
        warmup_steps=update.warmup_steps,
        betas=update.betas,
        eps=update.eps,
        weight_decay=update.weight_decay,
        max_grad_norm=update.max_grad_norm,
        zero_stage=update.zero_stage,
        dtype=resolved_dtype(config),
        max_tokens_per_pack=member.max_tokens_per_pack or update.max_tokens_per_pack,
        logprob_chunk_tokens=update.logprob_chunk_tokens,
        temperature=config.rollouts.temperature,
        clip_low=update.clip_low,
        clip_high=update.clip_high,
        aggregation=update.aggregation,
        own_loss=how.own_loss,
        peer_loss=how.peer_loss,
        peer_coefficient=how.coefficient,
        shared_denominator=how.shared_denominator,
        kl_coefficient=update.kl_coefficient,
        importance_cap=update.importance_cap,
        gradient_checkpointing=update.gradient_checkpointing,
        offload_optimizer=update.offload_optimizer,
        lora=lora,
        threads=update.threads,
        device=update.device,
        vocab_limit=tokenizer.id_limit,
        excluded_ids=tuple(np.flatnonzero(~tokenizer.known(tokenizer.id_limit)).tolist()),
    )


def build_trainer(
    config: RunConfig, member: MemberConfig, folder: Path, tokenizer: MemberTokenizer, **group: Any
) -> Trainer:
    """The trainer of one member, or one rank of it. `auto` is decided where this runs."""
    return Trainer(trainer_spec(config, member, folder, tokenizer), **group)


def build_engine(
    config: RunConfig, member: MemberConfig, folder: Path, tokenizer: MemberTokenizer, place: Path
) -> Engine:
    """The engine of one member of a run; `place` is the folder of its servers. `auto` is decided where this runs."""
    if config.rollouts.engine == "embedded":
        return build_embedded(config, folder, tokenizer)
    return build_sglang_engine(
        config,
        member,
        folder,
        tokenizer,
        place,
        positions=positions_of(folder),
        dtype=resolved_dtype(config),
        on_gpu=on_gpu(config),
    )


def build_embedded(config: RunConfig, folder: Path, tokenizer: MemberTokenizer) -> EmbeddedEngine:
    """The embedded engine with its own copy of the model."""
    model = load_causal_lm(folder, getattr(torch, resolved_dtype(config))).to("cuda" if on_gpu(config) else "cpu")
    return EmbeddedEngine(model, tokenizer, max_batch_rows=config.rollouts.max_batch_rows)


def on_gpu(config: RunConfig) -> bool:
    """Whether trainers and engines run on a GPU."""
    return config.update.device == "cuda" or (config.update.device == "auto" and torch.cuda.is_available())


def resolved_dtype(config: RunConfig) -> Literal["float32", "bfloat16"]:
    """update.dtype with `auto` decided."""
    if config.update.dtype != "auto":
        return config.update.dtype
    return "bfloat16" if on_gpu(config) else "float32"


def describe(member: Member) -> dict[str, Any]:
    """What the store keeps of a member."""
    return {
        "name": member.name,
        "model": member.model,
        "family": member.family,
        "tokenizer_sha": member.tokenizer.fingerprint,
        "parameters": member.parameters,
    }
