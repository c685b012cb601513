"""An index that finds the measures of one run among those of all."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index."""
    op.create_index("portagpu_measures_run", "portagpu_measures", ["run"])
