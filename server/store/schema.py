"""The tables. SQL holds the index and cumulative counts; what was said lies in the trajectory shards.

Every key starts with the run, so one run's rows lie together, and ends with what is read in order. Ids are computed by
the writer and fit in 53 bits, since browsers round larger ones. Types exist on SQLite and PostgreSQL alike.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

from server.store.counts import MEMBER_COUNTS, PAIR_COUNTS, PAIR_SUMS

VERSION_TABLE = "graft_alembic_version"
# Every schema version this program knows, oldest first; the last is the one it reads and writes.
VERSIONS = ("0001", "0002", "0003", "0004", "0005", "0006")

RUN_BITS, STEP_BITS, ORDINAL_BITS = 13, 22, 18
# A member-less metric belongs to the whole run.
WHOLE_RUN = -1
# Solved members of a prompt are one bit mask, which must stay a 53-bit number too.
MAX_MEMBERS = 52

# SQLite gives an automatic id only to a column whose type is exactly INTEGER.
Big = BigInteger().with_variant(Integer(), "sqlite")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def group_id(run: int, step: int, ordinal: int) -> int:
    """The id of a step's group: run, step and place in the step side by side in 53 bits."""
    return (run << (STEP_BITS + ORDINAL_BITS)) | (step << ORDINAL_BITS) | ordinal


def _run() -> Column[int]:
    return Column("run", Integer, ForeignKey("runs.id"), primary_key=True, autoincrement=False)


def _key(name: str, kind: type[Integer] | type[SmallInteger] | BigInteger = Integer) -> Column[int]:
    return Column(name, kind, primary_key=True, autoincrement=False)


runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("heartbeat", Double),
    Column("total_steps", Integer, nullable=False),
    Column("seed", Big, nullable=False),
    Column("config", Text, nullable=False),
    Column("first_step", Integer),
    Column("last_step", Integer),
    Column("revision", Big, nullable=False),
    Column("writer", Text, nullable=False),
    Column("lease_epoch", Integer, nullable=False),
    Column("lease_until", Double, nullable=False),
    # Where the run's shards lie; empty: beside the database file.
    Column("trajectories", Text, nullable=False, server_default=""),
)

members = Table(
    "members",
    metadata,
    _run(),
    _key("slot", SmallInteger),
    Column("name", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("family", Text, nullable=False),
    Column("tokenizer_sha", Text, nullable=False),
    Column("parameters", Big, nullable=False),
    UniqueConstraint("run", "name"),
)

prompts = Table(
    "prompts",
    metadata,
    _key("key", Big),
    Column("text", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("subject", Text),
    Column("level", Integer),
)

steps = Table(
    "steps",
    metadata,
    _run(),
    _key("step"),
    Column("digest", LargeBinary(32), nullable=False),
    Column("lease_epoch", Integer, nullable=False),
    Column("committed", Double, nullable=False),
    sqlite_with_rowid=False,
)

shards = Table(
    "shards",
    metadata,
    _run(),
    _key("step"),
    _key("member", SmallInteger),
    Column("path", Text, nullable=False, unique=True),
    Column("sha256", LargeBinary(32), nullable=False),
    Column("bytes", Big, nullable=False),
    Column("groups", Integer, nullable=False),
    Column("responses", Integer, nullable=False),
    Column("format", SmallInteger, nullable=False),
)

groups = Table(
    "groups",
    metadata,
    _key("id", Big),
    Column("run", Integer, ForeignKey("runs.id"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("prompt", Big, nullable=False),
    Column("member", SmallInteger, nullable=False),
    Column("n", SmallInteger, nullable=False),
    Column("successes", SmallInteger, nullable=False),
    Column("errors", SmallInteger, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("truncated", SmallInteger, nullable=False),
    # The record batch of the member's shard of this step.
    Column("shard_row", Integer, nullable=False),
    UniqueConstraint("run", "step", "prompt", "member"),
    # Newest group of a member on a prompt, for replay.
    Index(None, "run", "member", "prompt", "step"),
)

responses = Table(
    "responses",
    metadata,
    _key("group_id", Big),
    _key("index", SmallInteger),
    Column("reward", Double),
    Column("advantage", Double),
    Column("tokens", Integer, nullable=False),
    Column("verdict", SmallInteger, nullable=False),
    Column("finish", Text, nullable=False),
    Column("weight_version", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# Who attempted, failed wholly and solved a prompt: one bit per member slot.
outcomes = Table(
    "outcomes",
    metadata,
    _run(),
    _key("step"),
    _key("prompt", Big),
    Column("attempted", Big, nullable=False),
    Column("all_fail", Big, nullable=False),
    Column("solved", Big, nullable=False),
    sqlite_with_rowid=False,
)

# How many prompts of a step each set of members solved.
patterns = Table(
    "patterns",
    metadata,
    _run(),
    _key("step"),
    _key("solved", Big),
    Column("prompts", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# A receiver may get the groups of several sources on one prompt.
transfers = Table(
    "transfers",
    metadata,
    _run(),
    _key("step"),
    _key("receiver", SmallInteger),
    _key("prompt", Big),
    _key("source", SmallInteger),
    Column("value", Double),
    Column("tie", Boolean, nullable=False),
    Column("held_out", Boolean, nullable=False),
    Column("responses", SmallInteger, nullable=False),
    Column("admitted", SmallInteger, nullable=False),
    Column("refused_floor", SmallInteger, nullable=False),
    Column("refused_other", SmallInteger, nullable=False),
    Column("n_s", SmallInteger, nullable=False),
    Column("sum_s", Double, nullable=False),
    Column("sum_w", Double, nullable=False),
    sqlite_with_rowid=False,
)

grafted = Table(
    "grafted",
    metadata,
    _run(),
    _key("step"),
    _key("receiver", SmallInteger),
    _key("prompt", Big),
    _key("source", SmallInteger),
    _key("index", SmallInteger),
    Column("s", Double),
    Column("weight", Double),
    Column("refusal", Text),
    Column("receiver_tokens", Integer, nullable=False),
    Column("receiver_logprob", Double),
    Column("source_tokens", Integer, nullable=False),
    Column("source_logprob", Double),
    sqlite_with_rowid=False,
)

# Cumulative over the run up to and including the step.
member_counts = Table(
    "member_counts",
    metadata,
    _run(),
    _key("step"),
    _key("member", SmallInteger),
    *(Column(name, Big, nullable=False) for name in MEMBER_COUNTS),
    sqlite_with_rowid=False,
)

# Cumulative over the run up to and including the step.
pair_counts = Table(
    "pair_counts",
    metadata,
    _run(),
    _key("step"),
    _key("receiver", SmallInteger),
    _key("source", SmallInteger),
    *(Column(name, Big, nullable=False) for name in PAIR_COUNTS),
    *(Column(name, Double, nullable=False) for name in PAIR_SUMS),
    sqlite_with_rowid=False,
)

metric_names = Table(
    "metric_names",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
)

# The step's own value, and sums over the finite values of the run so far. A numerator's sum is kept in two doubles
# (value and rounding error), so that a window after a spike of 1e20 is still right.
metrics = Table(
    "metrics",
    metadata,
    _run(),
    _key("name"),
    _key("member", SmallInteger),
    _key("step"),
    Column("numerator", Double),
    Column("denominator", Double),
    Column("finite", Boolean, nullable=False),
    Column("sum_numerator", Double, nullable=False),
    Column("sum_numerator_low", Double, nullable=False),
    Column("sum_denominator", Double, nullable=False),
    Column("count_finite", Integer, nullable=False),
    Column("count_not_finite", Integer, nullable=False),
    sqlite_with_rowid=False,
)

evaluations = Table(
    "evaluations",
    metadata,
    _run(),
    _key("step"),
    Column("benchmark", Text, primary_key=True),
    _key("member", SmallInteger),
    # 0: in the course of training; 1 and more: the best checkpoint, evaluated again.
    _key("repeat", SmallInteger),
    Column("mean", Double),
    Column("low", Double),
    Column("high", Double),
    Column("problems", Integer, nullable=False),
    Column("responses", Integer, nullable=False),
    Column("temperature", Double, nullable=False),
    Column("seeds", Integer, nullable=False),
    Column("role", Text, nullable=False),
    sqlite_with_rowid=False,
)

evaluation_problems = Table(
    "evaluation_problems",
    metadata,
    _run(),
    _key("step"),
    Column("benchmark", Text, primary_key=True),
    _key("member", SmallInteger),
    _key("repeat", SmallInteger),
    _key("seed", Big),
    _key("prompt", Big),
    Column("correct", Integer, nullable=False),
    Column("responses", Integer, nullable=False),
    # How many responses gave each wrong answer, as "3 1 1"; NULL where answers were not told apart.
    Column("votes", Text),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    Column("id", Big, primary_key=True),
    Column("run", Integer, ForeignKey("runs.id"), nullable=False),
    Column("created", Double, nullable=False),
    Column("level", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("member", Text),
    Column("step", Integer),
    Index(None, "run", "id"),
)

# What a recorded run would have exchanged under other settings: JSON of what was asked and of what was found.
replays = Table(
    "replays",
    metadata,
    Column("id", Big, primary_key=True),
    Column("run", Integer, ForeignKey("runs.id"), nullable=False),
    Column("created", Double, nullable=False),
    Column("first_step", Integer, nullable=False),
    # The last step it read: a run resumed from before it loses the replay too.
    Column("step", Integer, nullable=False),
    Column("settings", Text, nullable=False),
    Column("result", Text, nullable=False),
    Index(None, "run", "id"),
)

# Everything a step leaves behind, keyed by (run, step); responses hang on groups.
STEP_TABLES = (
    groups, shards, outcomes, patterns, transfers, grafted, member_counts, pair_counts, metrics, evaluations,
    evaluation_problems, events, replays, steps,
)  # fmt: skip
