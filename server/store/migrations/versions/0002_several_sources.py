"""Several sources for one (receiver, prompt): the source becomes part of the key of transfers and grafted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Copy both tables under their new keys."""
    # SQLite changes a key only by copying the table. Grafted goes first: it learns its source from the transfers.
    _copy_grafted()
    _copy_transfers()


def _place() -> list[sa.Column[int]]:
    return [
        sa.Column("run", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("receiver", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("prompt", _BIG, autoincrement=False, nullable=False),
        sa.Column("source", sa.SmallInteger(), autoincrement=False, nullable=False),
    ]


def _copy_grafted() -> None:
    op.rename_table("grafted", "grafted_0001")
    op.create_table(
        "grafted",
        *_place(),
        sa.Column("index", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("s", sa.Double(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("receiver_tokens", sa.Integer(), nullable=False),
        sa.Column("receiver_logprob", sa.Double(), nullable=True),
        sa.Column("source_tokens", sa.Integer(), nullable=False),
        sa.Column("source_logprob", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_grafted_run")),
        sa.PrimaryKeyConstraint("run", "step", "receiver", "prompt", "source", "index", name=op.f("pk_grafted")),
        sqlite_with_rowid=False,
    )
    op.execute(
        'INSERT INTO grafted (run, step, receiver, prompt, source, "index", s, weight, refusal, receiver_tokens, '
        "receiver_logprob, source_tokens, source_logprob) "
        'SELECT g.run, g.step, g.receiver, g.prompt, t.source, g."index", g.s, g.weight, g.refusal, '
        "g.receiver_tokens, g.receiver_logprob, g.source_tokens, g.source_logprob FROM grafted_0001 AS g "
        # An outer join: a response whose transfer is missing stops the upgrade instead of getting lost.
        "LEFT JOIN transfers AS t "
        "ON t.run = g.run AND t.step = g.step AND t.receiver = g.receiver AND t.prompt = g.prompt"
    )
    op.drop_table("grafted_0001")


def _copy_transfers() -> None:
    op.rename_table("transfers", "transfers_0001")
    op.create_table(
        "transfers",
        *_place(),
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
        sa.PrimaryKeyConstraint("run", "step", "receiver", "prompt", "source", name=op.f("pk_transfers")),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO transfers (run, step, receiver, prompt, source, value, tie, held_out, responses, admitted, "
        "refused_floor, refused_other, n_s, sum_s, sum_w) "
        "SELECT run, step, receiver, prompt, source, value, tie, held_out, responses, admitted, refused_floor, "
        "refused_other, n_s, sum_s, sum_w FROM transfers_0001"
    )
    op.drop_table("transfers_0001")


def downgrade() -> None:
    """A store is not taken back."""
    raise NotImplementedError("a store is not taken back: restore the backup that the upgrade made")
