"""What alembic runs for each migration: on the connection of the store, within its transaction."""

from __future__ import annotations

from alembic import context

from portagpu.reports.history.database import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    # SQLite's tables are made within a transaction too: a store is never half-migrated
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
