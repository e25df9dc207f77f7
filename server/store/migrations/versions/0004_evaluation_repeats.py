"""Repeats of the best checkpoint, the role of a benchmark and the votes of a problem's answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Copy both tables under their new keys."""
    # SQLite changes a key only by copying the table.
    _copy_evaluations()
    _copy_problems()


def _place() -> list[sa.Column[int] | sa.Column[str]]:
    return [
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("benchmark", sa.Text(), nullable=False),
        sa.Column("member", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("repeat", sa.SmallInteger(), autoincrement=False, nullable=False),
    ]


def _copy_evaluations() -> None:
    op.rename_table("evaluations", "evaluations_0003")
    op.create_table(
        "evaluations",
        *_place(),
        sa.Column("mean", sa.Double(), nullable=True),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("problems", sa.Integer(), nullable=False),
        sa.Column("responses", sa.Integer(), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("seeds", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_evaluations_run")),
        sa.PrimaryKeyConstraint("run", "step", "benchmark", "member", "repeat", name=op.f("pk_evaluations")),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO evaluations (run, step, benchmark, member, repeat, mean, low, high, problems, responses, "
        "temperature, seeds, role) "
        "SELECT run, step, benchmark, member, 0, mean, low, high, problems, responses, temperature, seeds, 'test' "
        "FROM evaluations_0003"
    )
    op.drop_table("evaluations_0003")


def _copy_problems() -> None:
    op.rename_table("evaluation_problems", "evaluation_problems_0003")
    op.create_table(
        "evaluation_problems",
        *_place(),
        sa.Column("seed", _BIG, autoincrement=False, nullable=False),
        sa.Column("prompt", _BIG, autoincrement=False, nullable=False),
        sa.Column("correct", sa.Integer(), nullable=False),
        sa.Column("responses", sa.Integer(), nullable=False),
        sa.Column("votes", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_evaluation_problems_run")),
        sa.PrimaryKeyConstraint(
            "run", "step", "benchmark", "member", "repeat", "seed", "prompt", name=op.f("pk_evaluation_problems")
        ),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO evaluation_problems (run, step, benchmark, member, repeat, seed, prompt, correct, responses) "
        "SELECT run, step, benchmark, member, 0, seed, prompt, correct, responses FROM evaluation_problems_0003"
    )
    op.drop_table("evaluation_problems_0003")


def downgrade() -> None:
    """A store is not taken back."""
    raise NotImplementedError("a store is not taken back: restore the backup that the upgrade made")
