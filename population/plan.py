"""Every derived number of a run, before any work: samples, updates, steps, and the sizes of its members.

Needs neither torch nor a model library: parameter counts come from safetensors headers, or from the model's
config.json.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.admission import everything, one_success
from graft.methods import METHODS
from population.config import MemberConfig, RunConfig
from population.errors import MemberError
from population.memory import Decoder, decoder, dimension


@dataclass(frozen=True)
class MemberPlan:
    """One member's size; None where the model is not on this machine yet, or its config.json names no sizes.
    ``recorded``: it gives from a record and has no model.
    """

    name: str
    model: str
    parameters: int | None
    decoder: Decoder | None
    recorded: bool = False


@dataclass(frozen=True)
class Plan:
    """The derived numbers of a run; counts are per step unless the name says otherwise.

    ``floor``: None where the method admits without one.
    ``published``: the sources whose files are not on this machine, so that their published counts were taken.
    """

    members: tuple[MemberPlan, ...]
    method: str
    problems: int
    prompts_per_step: int
    samples_per_member: int
    samples: int
    updates_per_member: int
    steps_per_epoch: int
    steps: int
    epochs: float
    rollouts_total: int
    response_tokens_at_most: int
    evaluations: int
    evaluation_samples: int
    repeats: int
    repeat_samples: int
    exchanges: bool
    normaliser: str
    floor: float | None
    balance: str
    holdout: float
    published: tuple[str, ...] = ()

    @property
    def evaluation_samples_total(self) -> int:
        """Of all evaluations of the run, and of the repeats of the best checkpoints at its end."""
        return self.evaluations * self.evaluation_samples + self.repeats * self.repeat_samples


def total_steps(config: RunConfig, problems: int) -> int:
    """Steps of the whole run; an epoch is floor(problems / prompts_per_step) steps, as in the paper."""
    return config.steps or (config.epochs or 1) * (problems // config.data.prompts_per_step)


def make_plan(
    config: RunConfig,
    problems: int,
    benchmark_problems: Mapping[str, int],
    folders: Mapping[str, Path],
    published: Sequence[str] = (),
) -> Plan:
    """Derive everything. ``problems`` is the size of the training set, ``folders`` {member: model folder} where
    known.
    """
    per_step = config.data.prompts_per_step
    samples = per_step * config.rollouts.rollouts_per_prompt
    steps = total_steps(config, problems)
    batches = 1 + config.rollouts.dynamic_sampling * config.rollouts.dynamic_sampling_rounds
    benchmarks = config.evaluation.benchmarks
    evaluations = (
        1 + steps // config.evaluation.every_steps + (steps % config.evaluation.every_steps > 0) if benchmarks else 0
    )
    return Plan(
        members=tuple(member_plan(member, folders.get(member.name)) for member in config.members),
        method=config.method,
        problems=problems,
        prompts_per_step=per_step,
        samples_per_member=samples,
        samples=samples * len(config.trained),
        updates_per_member=per_step // config.update.prompts_per_minibatch,
        steps_per_epoch=problems // per_step,
        steps=steps,
        epochs=steps / max(problems // per_step, 1),
        rollouts_total=samples * len(config.trained) * steps,
        response_tokens_at_most=samples * batches * len(config.trained) * config.rollouts.max_response_tokens,
        evaluations=evaluations,
        evaluation_samples=evaluation_samples(config, benchmark_problems, ("validation", "test")),
        repeats=config.evaluation.repeats if any(b.role == "test" for b in benchmarks) else 0,
        repeat_samples=evaluation_samples(config, benchmark_problems, ("test",)),
        exchanges=METHODS[config.method].exchanges,
        normaliser=config.exchange.normaliser,
        floor=None if METHODS[config.method].how.admit in (everything, one_success) else config.exchange.floor,
        balance=config.exchange.balance,
        holdout=config.exchange.holdout,
        published=tuple(published),
    )


def evaluation_samples(config: RunConfig, benchmark_problems: Mapping[str, int], roles: Collection[str]) -> int:
    """Samples of all members in one evaluation on the benchmarks of these roles."""
    benchmarks = (b for b in config.evaluation.benchmarks if b.role in roles)
    return sum(benchmark_problems[b.name] * b.responses_per_prompt for b in benchmarks) * len(config.trained)


def member_plan(member: MemberConfig, folder: Path | None) -> MemberPlan:
    """The sizes of one member by its model folder."""
    if member.source is not None:
        return MemberPlan(member.name, f"{member.source.member} of run {member.source.run}", None, None, recorded=True)
    if folder is None or not (folder / "config.json").is_file():
        return MemberPlan(member.name, member.model, None, None)
    whole = model_config(folder)
    model = whole.get("text_config", whole)
    parameters = stored_parameters(folder) or estimated_parameters(model)
    return MemberPlan(member.name, member.model, parameters, decoder(model, parameters))


def model_config(folder: Path) -> dict[str, Any]:
    """The model's config.json. Raises MemberError when it is no JSON object."""
    place = folder / "config.json"
    try:
        found = json.loads(place.read_text())
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise MemberError(f"{place}: cannot be read ({reason}); give a folder written by save_pretrained") from None
    if not isinstance(found, dict):
        raise MemberError(f"{place}: holds no object; give a folder written by save_pretrained")
    return found


def stored_parameters(folder: Path) -> int | None:
    """Number of parameters by the headers of the folder's safetensors files; None without any."""
    total = 0
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        try:
            with file.open("rb") as stream:
                (size,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(size))
        except (struct.error, ValueError):
            raise MemberError(f"{file}: is not a whole safetensors file; fetch it again") from None
        for name, entry in header.items():
            if name != "__metadata__":
                count = 1
                for extent in entry["shape"]:
                    count *= extent
                total += count
    return total if files else None


def estimated_parameters(model: Mapping[str, Any]) -> int | None:
    """Parameters of a decoder from its config.json: embeddings, attention and feed-forward blocks; None when
    unnamed.
    """
    hidden, layers = dimension(model, "hidden_size", "n_embd"), dimension(model, "num_hidden_layers", "n_layer")
    heads = dimension(model, "num_attention_heads", "n_head")
    if hidden is None or layers is None or heads is None or not model.get("vocab_size"):
        return None
    head = int(model.get("head_dim") or hidden // heads)
    kv = int(model.get("num_key_value_heads") or heads) * head
    inner = int(model.get("intermediate_size") or 4 * hidden)
    feed_forward = (3 if model.get("hidden_act") in ("silu", "gelu_pytorch_tanh") else 2) * hidden * inner
    attention = 2 * hidden * heads * head + 2 * hidden * kv
    embeddings = int(model["vocab_size"]) * hidden * (1 if model.get("tie_word_embeddings", True) else 2)
    return embeddings + layers * (attention + feed_forward + 2 * hidden) + hidden
