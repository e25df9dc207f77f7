"""Alembic's entry: run the scripts inside the transaction `server.store.upgrade` has opened."""

from __future__ import annotations

from alembic import context

from server.store.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # Another tool that keeps its own Alembic version in the same database must not be taken for ours.
    version_table=VERSION_TABLE,
    # SQLite changes a column only by copying its table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
