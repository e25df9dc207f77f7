"""The sections about sampling, the update and what surrounds them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from population.config.section import Decay, PositiveFloat, PositiveInt, Section, SomeShare
from population.config.sglang import SglangConfig


class RolloutConfig(Section):
    """How every member samples. Training rollouts are untruncated (top_p = 1), or log-ratios would be wrong."""

    engine: Literal["embedded", "sglang"] = Field(
        default="embedded", description="embedded: in the run's own process; sglang: SGLang servers (docs/sglang.md)"
    )
    sglang: SglangConfig = SglangConfig()
    sync: Literal["auto", "disk", "group"] = Field(
        default="auto", description="how servers get new weights: from a folder, or by broadcast; auto: disk"
    )
    split_versions: Literal["drop", "keep"] = Field(
        default="drop", description="a sample during which the server's weights changed"
    )
    sleep: bool = Field(default=False, description="an engine gives back its device memory while its member trains")
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
    importance_cap: Annotated[float, Field(ge=1)] | None = Field(
        default=None, description="of the weight pi_old / pi_engine on own tokens; null: no weight"
    )
    mismatch_alarm: PositiveFloat = Field(
        default=0.05, description="mean |trainer - engine| log-probability (nats) from which a warning is given"
    )
    max_tokens_per_pack: PositiveInt = 16384
    logprob_chunk_tokens: PositiveInt = 1024
    zero_stage: Literal[1, 2, 3] = 1
    ranks: PositiveInt = Field(
        default=1, description="processes over which DeepSpeed spreads one member; more than 1 needs --cluster"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="of weights and forward; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    gradient_checkpointing: bool = False
    offload_optimizer: bool = False
    lora: LoraConfig | None = None
    threads: PositiveInt = Field(default=1, description="CPU threads of one member's trainer and engine")

    @model_validator(mode="after")
    def _correctable(self) -> UpdateConfig:
        if self.importance_cap is not None and self.old_logprobs == "engine":
            raise ValueError(
                "importance_cap: it corrects the trainer's theta_old for the engine's arithmetic, but old_logprobs: "
                "engine takes the engine's own; set old_logprobs: trainer, or leave importance_cap out"
            )
        return self


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
