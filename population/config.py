"""The configuration of a run: strict, typed, one unit per name.

``load(path, overrides)`` reads YAML, applies ``a.b=value`` overrides and returns a :class:`RunConfig`, or raises
:class:`ConfigError` with one line that names the key, what is wrong and the nearest valid name. Importing this module
needs neither torch nor a model library.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from graft.admission import one_success, random_admission
from graft.methods import METHODS
from graft.selection import exchange, random_prompts
from population.data.presets import source_settings
from population.data.templates import template_text
from population.errors import ConfigError
from population.layers import read_layer, refuse_unknown, stack
from server.store.best import Rule, Split, selecting
from server.store.records import Role

__all__ = ["ConfigError", "RunConfig", "as_dict", "course", "differences", "digest", "load", "parse"]

PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
SomeShare = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]

# Rules that rank complementary candidates, so that a measured value changes what they choose.
CHOOSING = (exchange, random_prompts)
# Rules of admission whose weights are a draw, which measures no candidate.
DRAWING = (one_success, random_admission)


class Section(BaseModel):
    """Base of all sections: unknown keys are refused, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RecordedSource(Section):
    """A member of a recorded run, which takes part with what it said then (docs/stored_peers.md)."""

    store: str = Field(description="database URL of the store that holds the run")
    run: str = Field(description="uid of the recorded run")
    member: str = Field(description="name of the member in that run")
    match: Literal["step", "prompt"] = Field(
        default="step",
        description="step: the groups of the same step, which must have asked the same prompts; prompt: for each "
        "prompt the newest group recorded at or before the step, else the oldest",
    )

    @field_validator("run")
    @classmethod
    def _named(cls, run: str) -> str:
        if run == "latest":
            raise ValueError("give the run's uid: another run may be the latest when this one is resumed")
        return run


class MemberConfig(Section):
    """One model of the population, or a member of a recorded run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    model: str = Field(
        default="",
        description="a model folder, a hub name, or demo:qwen3 | demo:llama | demo:neox; beside source: the "
        "model whose tokenizer the record must have",
    )
    source: RecordedSource | None = Field(default=None, description="a recorded run in the place of a model")
    learning_rate: PositiveFloat | None = Field(
        default=None, description="overrides update.learning_rate for this member"
    )
    max_tokens_per_pack: PositiveInt | None = Field(default=None, description="overrides update.max_tokens_per_pack")

    @model_validator(mode="after")
    def _one_kind(self) -> MemberConfig:
        if self.source is None and not self.model:
            raise ValueError(f"member {self.name!r} needs a model, or a source if it is a recorded one")
        if self.source is not None and (self.learning_rate or self.max_tokens_per_pack):
            raise ValueError(f"member {self.name!r} is recorded and not trained: leave out its training settings")
        return self


class DataConfig(Section):
    """A set of verifiable problems: each has a prompt text and a reference answer. A preset or a
    generator fills in the keys that are not given.
    """

    source: str = Field(
        description="preset:NAME, hub:OWNER/NAME, gym:GENERATOR, champ:all, demo:train, demo:heldout, or a .jsonl, "
        ".csv or .parquet file"
    )
    subset: str | None = Field(default=None, description="the hub's name for a part of a data set, its configuration")
    split: str | None = Field(default=None, description="of a hub data set; may be left out where there is only one")
    revision: str | None = Field(default=None, description="branch, tag or commit of a hub data set")
    load_s: PositiveFloat = Field(default=600, description="longest time the hub or a generator may take")
    prompt_field: str = Field(default="prompt", description="a field, or a dotted path such as prompt.0.content")
    answer_field: str = "answer"
    answer_format: Literal["plain", "boxed", "hashes"] = Field(
        default="plain", description="the answer field as it is, its last \\boxed{}, or what follows its last ####"
    )
    subject_field: str | None = "subject"
    level_field: str | None = "level"
    template: str = Field(
        default="{prompt}", description="text of the user message, {prompt} is the problem; or a template's name"
    )
    reward: str | None = Field(
        default=None, description="module:function that scores a response (docs/rewards.md); null: mathematics"
    )
    unparsable: Literal["refuse", "skip"] = Field(
        default="refuse", description="what to do with an answer no rule can read"
    )

    @field_validator("reward")
    @classmethod
    def _reward_name(cls, reward: str | None) -> str | None:
        if reward is not None and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", reward):
            raise ValueError('must be "module:function", for instance "server.rewards.choice:score"')
        return reward

    @model_validator(mode="before")
    @classmethod
    def _known_values(cls, given: Any) -> Any:
        """What the source fixes, unless the configuration says otherwise: a recorded configuration names every key."""
        if not isinstance(given, dict) or not isinstance(given.get("source"), str):
            return given
        return {**source_settings(given["source"]), **given}

    @field_validator("template")
    @classmethod
    def _template(cls, template: str) -> str:
        return template_text(template)


class TrainDataConfig(DataConfig):
    """The training problems and how many of them make a step."""

    prompts_per_step: PositiveInt


class RolloutConfig(Section):
    """How every member samples. Training rollouts are untruncated (top_p = 1), or log-ratios would be wrong."""

    engine: Literal["embedded"] = "embedded"
    rollouts_per_prompt: Annotated[int, Field(ge=2)] = 8
    temperature: PositiveFloat = 1.0
    top_p: float = 1.0
    max_prompt_tokens: PositiveInt = 2048
    max_response_tokens: PositiveInt = 4096
    max_batch_rows: PositiveInt = 256
    dynamic_sampling: bool = Field(
        default=False, description="leave out groups without variance and sample further prompts until a step is full"
    )
    dynamic_sampling_rounds: PositiveInt = Field(
        default=4, description="further prompt batches a step may sample for that"
    )

    @field_validator("top_p")
    @classmethod
    def _untruncated(cls, top_p: float) -> float:
        if top_p != 1.0:
            raise ValueError(
                "must be 1.0 for training: truncated sampling makes the policy ratio wrong (evaluation may use it)"
            )
        return top_p


class LoraConfig(Section):
    """Low-rank adapters instead of full-parameter training (peft)."""

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    target_modules: str | list[str] = "all-linear"


class UpdateConfig(Section):
    """The optimiser update (paper table 3 gives the defaults)."""

    prompts_per_minibatch: PositiveInt = 32
    learning_rate: PositiveFloat = 1e-6
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    max_grad_norm: PositiveFloat = 1.0
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: PositiveFloat = 0.28
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = "token-mean"
    kl_coefficient: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="of the k3 estimator against the model the run began with"
    )
    old_logprobs: Literal["auto", "engine", "trainer"] = Field(
        default="auto",
        description="theta_old of own tokens; auto: the engine's where it runs the trainer's own arithmetic",
    )
    max_tokens_per_pack: PositiveInt = 16384
    logprob_chunk_tokens: PositiveInt = 1024
    zero_stage: Literal[1, 2, 3] = 1
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="of weights and forward; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    gradient_checkpointing: bool = False
    offload_optimizer: bool = False
    lora: LoraConfig | None = None
    threads: PositiveInt = Field(default=1, description="CPU threads of one member's trainer and engine")


class ExchangeConfig(Section):
    """Which groups move and what the gate admits (paper eq. 4 and 6-8; METHOD part 2 for N members)."""

    balance: Literal["circulation", "pairwise", "receiver", "none"] = "circulation"
    router: Literal["estimated", "scored"] = Field(
        default="estimated", description="a candidate's value: from edge rates, or by a forward pass over the best two"
    )
    ties: bool = True
    floor: Annotated[float, Field(ge=0)] = 0.8
    normaliser: Literal["own", "bytes", "reference"] = "own"
    source_logprobs: Literal["auto", "engine", "trainer"] = "auto"
    holdout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.1, description="share of selected groups kept as a control, not grafted"
    )
    min_successes: PositiveInt = 1
    max_peer_share: SomeShare | None = None
    max_source_share: SomeShare | None = None
    edge_rate_decay: Annotated[float, Field(gt=0, lt=1)] = 0.9
    capability_batches: PositiveInt = Field(
        default=5, description="steps over which HACPO measures a member's accuracy"
    )


class BenchmarkConfig(DataConfig):
    """Held-out problems on which every member is measured."""

    name: str
    responses_per_prompt: PositiveInt = 8
    temperature: Annotated[float, Field(ge=0)] = 0.6
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    role: Role = Field(default="test", description="validation: selects checkpoints; test: is reported")
    skip: Annotated[int, Field(ge=0)] = Field(default=0, description="problems left out at the beginning")
    limit: PositiveInt | None = Field(default=None, description="problems taken after those skipped; null: all")


class BestConfig(Section):
    """Which checkpoint of a member is its best (docs/evaluation.md)."""

    rule: Rule = Field(default="mean", description="highest unweighted mean of pass@1 over benchmarks, or the last")
    split: Split = Field(
        default="auto",
        description="which benchmarks select; auto: the validation ones where there are any, else the tests",
    )


class EvaluationConfig(Section):
    """When and on what members are evaluated; step 0 and the last step are always evaluated when there are
    benchmarks.
    """

    every_steps: PositiveInt = 5
    benchmarks: tuple[BenchmarkConfig, ...] = ()
    k: tuple[PositiveInt, ...] = Field(default=(4, 8), description="of pass@k and maj@k, where there are k responses")
    best: BestConfig = BestConfig()
    repeats: Annotated[int, Field(ge=0)] = Field(default=5, description="evaluations of the best checkpoint at the end")

    @model_validator(mode="after")
    def _selectable(self) -> EvaluationConfig:
        names = [benchmark.name for benchmark in self.benchmarks]
        if len(set(names)) < len(names):
            raise ValueError("benchmarks: two benchmarks have the same name")
        roles: dict[str, Role] = {benchmark.name: benchmark.role for benchmark in self.benchmarks}
        role, chosen = selecting(roles, self.best.split)
        if roles and not chosen:
            raise ValueError(
                f"best.split: no benchmark has role: {role}; give one that role, or set evaluation.best.split: auto"
            )
        return self


class CheckpointConfig(Section):
    """Population-wide checkpoints: all members, optimiser, router, success graph, cursor."""

    every_steps: PositiveInt = 10
    keep_last: Annotated[int, Field(ge=1)] = 2


class RewardConfig(Section):
    """Verification of answers in killable workers."""

    workers: PositiveInt = 1
    timeout_s: PositiveFloat = 5.0
    memory_mib: Annotated[int, Field(ge=256)] = Field(default=2048, description="address space of one worker")


class DeadlineConfig(Section):
    """The longest each phase may take, in seconds; past it the run stops and names member, phase and step."""

    load_s: PositiveFloat = 1800
    sample_s: PositiveFloat = 3600
    grade_s: PositiveFloat = 1800
    exchange_s: PositiveFloat = 1800
    update_s: PositiveFloat = 3600
    sync_s: PositiveFloat = 600
    evaluate_s: PositiveFloat = 7200
    checkpoint_s: PositiveFloat = 1800


class RunConfig(Section):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    method: str = "graft"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    steps: PositiveInt | None = Field(default=None, description="training steps; give steps or epochs")
    epochs: PositiveInt | None = None
    folder: Path = Field(default=Path("runs"), description="checkpoints, exported members and caches of all runs")
    store: str | None = Field(default=None, description="database URL; default: sqlite file graft.db in the folder")
    warm_start_seed: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="seed of demo: members; default: seed"
    )
    members: Annotated[tuple[MemberConfig, ...], Field(min_length=1)]
    data: TrainDataConfig
    rollouts: RolloutConfig = RolloutConfig()
    update: UpdateConfig = UpdateConfig()
    exchange: ExchangeConfig = ExchangeConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    rewards: RewardConfig = RewardConfig()
    deadlines: DeadlineConfig = DeadlineConfig()

    @property
    def store_url(self) -> str:
        """The database URL of the run."""
        return self.store or f"sqlite:///{quote(str(self.folder / 'graft.db'))}"

    @property
    def trained(self) -> tuple[MemberConfig, ...]:
        """The members that are models: they sample, receive and learn."""
        return tuple(member for member in self.members if member.source is None)

    @property
    def member_seed(self) -> int:
        """Seed of the demo members' warm start."""
        return self.seed if self.warm_start_seed is None else self.warm_start_seed

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.method not in METHODS:
            near = difflib.get_close_matches(self.method, METHODS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(METHODS)}"
            raise ValueError(f"method: there is no method {self.method!r}; {hint}")
        if METHODS[self.method].exchanges and len(self.members) < 2:
            raise ValueError(
                f"members: method {self.method!r} exchanges groups and needs at least two members; "
                "add one or use method: grpo"
            )
        if METHODS[self.method].exchanges and self.rollouts.dynamic_sampling:
            raise ValueError(
                f"rollouts.dynamic_sampling: it leaves out the all-fail groups that method {self.method!r} exchanges; "
                "use it with method: grpo"
            )
        which, admit = METHODS[self.method].which, METHODS[self.method].how.admit
        if self.exchange.router == "scored" and which is not None and (which not in CHOOSING or admit in DRAWING):
            raise ValueError(
                f"exchange.router: scored measures which candidate is best, and method {self.method!r} does not choose "
                "by that; set estimated"
            )
        names = [member.name for member in self.members]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"members: two members are named {name!r}; give each its own name")
        self._check_recorded()
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("steps: give either steps or epochs, not both and not neither")
        size, whole = self.update.prompts_per_minibatch, self.data.prompts_per_step
        if size > whole or whole % size:
            raise ValueError(
                f"update.prompts_per_minibatch: {size} does not divide data.prompts_per_step = {whole}; "
                f"choose a divisor of {whole}"
            )
        return self

    def _check_recorded(self) -> None:
        """What a recorded member cannot do: receive, be scored anew, or follow a batch that sampling decides."""
        recorded = [member for member in self.members if member.source is not None]
        if not recorded:
            if self.method == "stored":
                raise ValueError("members: method 'stored' needs a recorded member; give one a source")
            return
        name = recorded[0].name
        if not self.trained:
            raise ValueError("members: all are recorded, none is trained; add a member with a model")
        if METHODS[self.method].exchanges and self.exchange.balance != "none":
            raise ValueError(
                f"exchange.balance: {self.exchange.balance} makes members give as much as they receive, but the "
                f"recorded member {name!r} never receives; set exchange.balance: none, or method: stored"
            )
        if self.exchange.source_logprobs == "trainer":
            raise ValueError(
                f"exchange.source_logprobs: trainer would score the recorded member {name!r} with its model, which is "
                "not loaded; set auto or engine"
            )


def load(path: str | Path, overrides: Sequence[str] = (), overlays: Sequence[str | Path] = ()) -> RunConfig:
    """Read a YAML file, lay overlays and ``key.path=value`` overrides (values in YAML syntax) over it, and validate.

    Raises :class:`ConfigError` (one line) for a missing file, bad YAML, an unknown key, a wrong type or an
    inconsistency, naming the file that has it.
    """
    layers = [(str(place), read_layer(Path(place))) for place in (path, *overlays)]
    for source, layer in layers:
        refuse_unknown(layer, RunConfig, (), source)
    return _validated(stack(layers, overrides), " + ".join(source for source, _ in layers))


def parse(tree: Mapping[str, Any], source: str = "configuration") -> RunConfig:
    """Validate a nested mapping; errors as in :func:`load`."""
    return _validated(stack([(source, tree)], ()), source)


def _validated(tree: Mapping[str, Any], source: str) -> RunConfig:
    refuse_unknown(tree, RunConfig, (), source)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        given = "" if first["type"] in ("value_error", "missing") else f" (got {first['input']!r})"
        raise ConfigError(f"{source}: {place + ': ' if place else ''}{message}{given}") from None


def as_dict(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain JSON values, as the store keeps it."""
    return config.model_dump(mode="json")


# What a resumed run may change: its length, and where and how often it writes.
FREE_KEYS = ("steps", "epochs", "folder", "store", "checkpoint", "deadlines", "name")


def course(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration (as from :func:`as_dict`) that decides the course of a run."""
    return {key: value for key, value in tree.items() if key not in FREE_KEYS}


def digest(tree: Mapping[str, Any]) -> str:
    """Hash of the course of a run."""
    return hashlib.sha256(json.dumps(course(tree), sort_keys=True).encode()).hexdigest()[:16]


def differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys under which two configurations (as from :func:`as_dict`) differ."""
    keys = []
    for key in sorted(set(first) | set(second)):
        a, b = first.get(key), second.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            keys += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            keys.append(f"{prefix}{key}")
    return keys
