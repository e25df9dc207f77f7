"""Failures side by side: the counts of a pair's failure correlation, filled in for recorded steps from their groups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_KEY = ("run", "step", "receiver", "source")
_BEFORE, _NEW, _AFTER = (
    ("both_attempted_fail", "solved"),
    ("both_graded", "failed_beside", "failed_together"),
    ("routed", "grafted", "held_out", "responses", "admitted", "refused_floor", "refused_other", "n_s"),
)
_SUMS = ("sum_s", "sum_w")


def upgrade() -> None:
    """Copy the pair counts and fill the new ones in from the recorded groups."""
    # SQLite adds a column that may not be missing only by copying the table.
    op.rename_table("pair_counts", "pair_counts_0004")
    op.create_table(
        "pair_counts",
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("receiver", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("source", sa.SmallInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, _BIG, nullable=False) for name in (*_BEFORE, *_NEW, *_AFTER)),
        *(sa.Column(name, sa.Double(), nullable=False) for name in _SUMS),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_pair_counts_run")),
        sa.PrimaryKeyConstraint(*_KEY, name=op.f("pk_pair_counts")),
        sqlite_with_rowid=False,
    )
    kept = (*_KEY, *_BEFORE, *_AFTER, *_SUMS)
    running = ", ".join(
        f"SUM(COALESCE(f.{name}, 0)) OVER (PARTITION BY p.run, p.receiver, p.source ORDER BY p.step)" for name in _NEW
    )
    op.execute(
        # Only groups whose every response was graded; an all-fail group is one without a success.
        "WITH f AS (SELECT a.run, a.step, a.member AS receiver, b.member AS source, COUNT(*) AS both_graded, "
        "SUM(a.successes = 0) AS failed_beside, SUM(a.successes = 0 AND b.successes = 0) AS failed_together "
        "FROM groups AS a JOIN groups AS b ON b.run = a.run AND b.step = a.step AND b.prompt = a.prompt "
        "WHERE a.member <> b.member AND a.errors = 0 AND b.errors = 0 GROUP BY a.run, a.step, a.member, b.member) "
        f"INSERT INTO pair_counts ({', '.join((*kept, *_NEW))}) "
        f"SELECT {', '.join(f'p.{name}' for name in kept)}, {running} FROM pair_counts_0004 AS p LEFT JOIN f "
        "ON f.run = p.run AND f.step = p.step AND f.receiver = p.receiver AND f.source = p.source"
    )
    op.drop_table("pair_counts_0004")


def downgrade() -> None:
    """A store is not taken back."""
    raise NotImplementedError("a store is not taken back: restore the backup that the upgrade made")
