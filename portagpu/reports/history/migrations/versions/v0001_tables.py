"""The tables of runs, their documents, and their measures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables in an empty database, or next to other tables."""
    op.create_table(
        "portagpu_runs",
        sa.Column("key", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("started_s", sa.Double, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("target", sa.Text),
        sa.Column("backend", sa.Text),
        sa.Column("versions", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("schema", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("measures", sa.Integer, nullable=False),
    )
    op.create_table(
        "portagpu_documents",
        sa.Column("run", sa.Integer, sa.ForeignKey("portagpu_runs.key"), primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "portagpu_names",
        sa.Column("key", sa.Integer, primary_key=True),
        sa.Column("suite", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("statistic", sa.Text, nullable=False),
        sa.UniqueConstraint(
            "id", "suite", "device", "unit", "statistic", name="portagpu_names_unique"
        ),
    )
    op.create_table(
        "portagpu_measures",
        sa.Column("name", sa.Integer, sa.ForeignKey("portagpu_names.key"), primary_key=True),
        sa.Column("run", sa.Integer, sa.ForeignKey("portagpu_runs.key"), primary_key=True),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("spread", sa.Double),
        sa.Column("n", sa.Integer),
        sa.Column("verdict", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "portagpu_packed",
        sa.Column("run", sa.Integer, sa.ForeignKey("portagpu_runs.key"), primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
