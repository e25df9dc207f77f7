"""Where a run's shards lie, for stores that are no file with a folder beside it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; every recorded run has its shards beside the database file."""
    op.add_column("runs", sa.Column("trajectories", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    """A store is not taken back."""
    raise NotImplementedError("a store is not taken back: restore the backup that the upgrade made")
