"""The configuration of a run: strict, typed, one unit per name.

Importing it needs neither torch nor a model library.
"""

from population.config.cluster import ClusterConfig, FailurePolicy
from population.config.data import (
    BenchmarkConfig,
    BestConfig,
    DataConfig,
    EvaluationConfig,
    MemberConfig,
    RecordedSource,
    TrainDataConfig,
)
from population.config.run import (
    RunConfig,
    as_dict,
    as_recorded,
    course,
    differences,
    digest,
    load,
    parse,
    with_trackers,
)
from population.config.section import Section
from population.config.sglang import SglangConfig
from population.config.trackers import TrackerConfig
from population.config.training import (
    CheckpointConfig,
    DeadlineConfig,
    ExchangeConfig,
    LoraConfig,
    RewardConfig,
    RolloutConfig,
    UpdateConfig,
)
from population.errors import ConfigError

__all__ = [
    "BenchmarkConfig",
    "BestConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "ConfigError",
    "DataConfig",
    "DeadlineConfig",
    "EvaluationConfig",
    "ExchangeConfig",
    "FailurePolicy",
    "LoraConfig",
    "MemberConfig",
    "RecordedSource",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "Section",
    "SglangConfig",
    "TrackerConfig",
    "TrainDataConfig",
    "UpdateConfig",
    "as_dict",
    "as_recorded",
    "course",
    "differences",
    "digest",
    "load",
    "parse",
    "with_trackers",
]
