"""The sections about members, problems and evaluation."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from population.config.cluster import FailurePolicy
from population.config.section import PositiveFloat, PositiveInt, Section
from population.config.sglang import SglangConfig
from population.data.presets import source_settings
from population.data.templates import template_text
from server.store.best import Rule, Split, selecting
from server.store.records import Role


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
    sglang: SglangConfig | None = Field(default=None, description="overrides keys of rollouts.sglang for this member")

    failure: FailurePolicy | None = Field(default=None, description="overrides cluster.failure for this member")

    @field_serializer("sglang")
    def _given_keys(self, section: SglangConfig | None) -> dict[str, Any] | None:
        # Only what was given: a default that is written out would be read back as an override.
        return None if section is None else section.model_dump(mode="json", exclude_unset=True)

    @model_validator(mode="after")
    def _one_kind(self) -> MemberConfig:
        if self.source is None and not self.model:
            raise ValueError(f"member {self.name!r} needs a model, or a source if it is a recorded one")
        if self.source is not None and (self.learning_rate or self.max_tokens_per_pack or self.sglang):
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
