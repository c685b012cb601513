"""The tables of condensed runs, which the report of a fleet reads; older runs are in none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "portagpu_forms",
        sa.Column("key", sa.Integer, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "portagpu_condensed",
        sa.Column("run", sa.Integer, sa.ForeignKey("portagpu_runs.key"), primary_key=True),
        sa.Column("form", sa.Integer, sa.ForeignKey("portagpu_forms.key"), nullable=False),
        sa.Column("mark", sa.Text, nullable=False),
        sa.Column("own", sa.LargeBinary, nullable=False),
        sa.Column("numbers", sa.LargeBinary, nullable=False),
    )
