"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make every table of the first schema."""
    _runs()
    _steps()
    _outcomes()
    _counts()
    _metrics()


def _runs() -> None:
    """Runs, their members and events, and the prompts they share."""
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("heartbeat", sa.Double(), nullable=True),
        sa.Column("total_steps", sa.Integer(), nullable=False),
        sa.Column("seed", _BIG, nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("first_step", sa.Integer(), nullable=True),
        sa.Column("last_step", sa.Integer(), nullable=True),
        sa.Column("revision", _BIG, nullable=False),
        sa.Column("writer", sa.Text(), nullable=False),
        sa.Column("lease_epoch", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("uid", name=op.f("uq_runs_uid")),
    )
    op.create_table(
        "members",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("slot", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("tokenizer_sha", sa.Text(), nullable=False),
        sa.Column("parameters", _BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_members_run")),
        sa.PrimaryKeyConstraint("run", "slot", name=op.f("pk_members")),
        sa.UniqueConstraint("run", "name", name=op.f("uq_members_run_name")),
    )
    op.create_table(
        "events",
        sa.Column("id", _BIG, nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("member", sa.Text(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_events_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_run_id"), "events", ["run", "id"], unique=False)
    op.create_table(
        "prompts",
        sa.Column("key", _BIG, autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("dataset", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=True),
        sa.Column("level", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_prompts")),
    )


def _steps() -> None:
    """What a step leaves behind."""
    op.create_table(
        "steps",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("lease_epoch", sa.Integer(), nullable=False),
        sa.Column("committed", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_steps_run")),
        sa.PrimaryKeyConstraint("run", "step", name=op.f("pk_steps")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "shards",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("member", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("bytes", _BIG, nullable=False),
        sa.Column("groups", sa.Integer(), nullable=False),
        sa.Column("responses", sa.Integer(), nullable=False),
        sa.Column("format", sa.SmallInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_shards_run")),
        sa.PrimaryKeyConstraint("run", "step", "member", name=op.f("pk_shards")),
        sa.UniqueConstraint("path", name=op.f("uq_shards_path")),
    )
    op.create_table(
        "groups",
        sa.Column("id", _BIG, autoincrement=False, nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("prompt", _BIG, nullable=False),
        sa.Column("member", sa.SmallInteger(), nullable=False),
        sa.Column("n", sa.SmallInteger(), nullable=False),
        sa.Column("successes", sa.SmallInteger(), nullable=False),
        sa.Column("errors", sa.SmallInteger(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("truncated", sa.SmallInteger(), nullable=False),
        sa.Column("shard_row", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_groups_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
        sa.UniqueConstraint("run", "step", "prompt", "member", name=op.f("uq_groups_run_step_prompt_member")),
    )
    op.create_index(
        op.f("ix_groups_run_member_prompt_step"), "groups", ["run", "member", "prompt", "step"], unique=False
    )
    op.create_table(
        "responses",
        sa.Column("group_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("index", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("advantage", sa.Double(), nullable=True),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.SmallInteger(), nullable=False),
        sa.Column("finish", sa.Text(), nullable=False),
        sa.Column("weight_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("group_id", "index", name=op.f("pk_responses")),
        sqlite_with_rowid=False,
    )


def _outcomes() -> None:
    """Who solved what, and what moved."""
    op.create_table(
        "outcomes",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("prompt", _BIG, autoincrement=False, nullable=False),
        sa.Column("attempted", _BIG, nullable=False),
        sa.Column("all_fail", _BIG, nullable=False),
        sa.Column("solved", _BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_outcomes_run")),
        sa.PrimaryKeyConstraint("run", "step", "prompt", name=op.f("pk_outcomes")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "patterns",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("solved", _BIG, autoincrement=False, nullable=False),
        sa.Column("prompts", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_patterns_run")),
        sa.PrimaryKeyConstraint("run", "step", "solved", name=op.f("pk_patterns")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "transfers",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("receiver", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("prompt", _BIG, autoincrement=False, nullable=False),
        sa.Column("source", sa.SmallInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("tie", sa.Boolean(), nullable=False),
        sa.Column("held_out", sa.Boolean(), nullable=False),
        sa.Column("responses", sa.SmallInteger(), nullable=False),
        sa.Column("admitted", sa.SmallInteger(), nullable=False),
        sa.Column("refused_floor", sa.SmallInteger(), nullable=False),
        sa.Column("refused_other", sa.SmallInteger(), nullable=False),
        sa.Column("n_s", sa.SmallInteger(), nullable=False),
        sa.Column("sum_s", sa.Double(), nullable=False),
        sa.Column("sum_w", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_transfers_run")),
        sa.PrimaryKeyConstraint("run", "step", "receiver", "prompt", name=op.f("pk_transfers")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "grafted",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("receiver", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("prompt", _BIG, autoincrement=False, nullable=False),
        sa.Column("index", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("s", sa.Double(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("receiver_tokens", sa.Integer(), nullable=False),
        sa.Column("receiver_logprob", sa.Double(), nullable=True),
        sa.Column("source_tokens", sa.Integer(), nullable=False),
        sa.Column("source_logprob", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_grafted_run")),
        sa.PrimaryKeyConstraint("run", "step", "receiver", "prompt", "index", name=op.f("pk_grafted")),
        sqlite_with_rowid=False,
    )


def _counts() -> None:
    """Cumulative counts."""
    op.create_table(
        "member_counts",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("member", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("groups", _BIG, nullable=False),
        sa.Column("all_fail", _BIG, nullable=False),
        sa.Column("mixed", _BIG, nullable=False),
        sa.Column("all_solved", _BIG, nullable=False),
        sa.Column("errors", _BIG, nullable=False),
        sa.Column("rollouts", _BIG, nullable=False),
        sa.Column("successes", _BIG, nullable=False),
        sa.Column("response_tokens", _BIG, nullable=False),
        sa.Column("truncated", _BIG, nullable=False),
        sa.Column("received", _BIG, nullable=False),
        sa.Column("held_out", _BIG, nullable=False),
        sa.Column("rescuable", _BIG, nullable=False),
        sa.Column("any_peer", _BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_member_counts_run")),
        sa.PrimaryKeyConstraint("run", "step", "member", name=op.f("pk_member_counts")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "pair_counts",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("receiver", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("source", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("both_attempted_fail", _BIG, nullable=False),
        sa.Column("solved", _BIG, nullable=False),
        sa.Column("routed", _BIG, nullable=False),
        sa.Column("grafted", _BIG, nullable=False),
        sa.Column("held_out", _BIG, nullable=False),
        sa.Column("responses", _BIG, nullable=False),
        sa.Column("admitted", _BIG, nullable=False),
        sa.Column("refused_floor", _BIG, nullable=False),
        sa.Column("refused_other", _BIG, nullable=False),
        sa.Column("n_s", _BIG, nullable=False),
        sa.Column("sum_s", sa.Double(), nullable=False),
        sa.Column("sum_w", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_pair_counts_run")),
        sa.PrimaryKeyConstraint("run", "step", "receiver", "source", name=op.f("pk_pair_counts")),
        sqlite_with_rowid=False,
    )


def _metrics() -> None:
    """Metrics and evaluations."""
    op.create_table(
        "metric_names",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric_names")),
        sa.UniqueConstraint("name", name=op.f("uq_metric_names_name")),
    )
    op.create_table(
        "metrics",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("member", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("numerator", sa.Double(), nullable=True),
        sa.Column("denominator", sa.Double(), nullable=True),
        sa.Column("finite", sa.Boolean(), nullable=False),
        sa.Column("sum_numerator", sa.Double(), nullable=False),
        sa.Column("sum_numerator_low", sa.Double(), nullable=False),
        sa.Column("sum_denominator", sa.Double(), nullable=False),
        sa.Column("count_finite", sa.Integer(), nullable=False),
        sa.Column("count_not_finite", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_metrics_run")),
        sa.PrimaryKeyConstraint("run", "name", "member", "step", name=op.f("pk_metrics")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "evaluations",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("benchmark", sa.Text(), nullable=False),
        sa.Column("member", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("mean", sa.Double(), nullable=True),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("problems", sa.Integer(), nullable=False),
        sa.Column("responses", sa.Integer(), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("seeds", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_evaluations_run")),
        sa.PrimaryKeyConstraint("run", "step", "benchmark", "member", name=op.f("pk_evaluations")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "evaluation_problems",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("benchmark", sa.Text(), nullable=False),
        sa.Column("member", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("seed", _BIG, autoincrement=False, nullable=False),
        sa.Column("prompt", _BIG, autoincrement=False, nullable=False),
        sa.Column("correct", sa.Integer(), nullable=False),
        sa.Column("responses", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_evaluation_problems_run")),
        sa.PrimaryKeyConstraint(
            "run", "step", "benchmark", "member", "seed", "prompt", name=op.f("pk_evaluation_problems")
        ),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """A store is not taken back."""
    raise NotImplementedError("a store is not taken back: restore the backup that the upgrade made")
