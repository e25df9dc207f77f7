"""Schema versions of the store, one Alembic script each; `server.store.upgrade` applies them."""
