"""The tables of a store, the same in SQLite and PostgreSQL; ``migrations`` makes them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

VERSION_TABLE: Final = "portagpu_version"
VERSIONS: Final = ("0001", "0002")
"""Every version of the tables, the oldest first; the last is the one that this code reads."""

METADATA: Final = MetaData()

RUNS: Final = Table(
    "portagpu_runs",
    METADATA,
    Column("key", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("started_s", Double, nullable=False),
    Column("host", Text, nullable=False),
    Column("target", Text),
    Column("backend", Text),
    Column("versions", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("schema", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("measures", Integer, nullable=False),
)
"""``versions`` is JSON, ``schema`` that of the document, ``digest`` the SHA-256 of its canonical
form, ``measures`` how many rows of MEASURES the run has."""

DOCUMENTS: Final = Table(
    "portagpu_documents",
    METADATA,
    Column("run", Integer, ForeignKey("portagpu_runs.key"), primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
"""The file of each run, byte for byte, compressed with zlib."""

NAMES: Final = Table(
    "portagpu_names",
    METADATA,
    Column("key", Integer, primary_key=True),
    Column("suite", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("statistic", Text, nullable=False),
    UniqueConstraint("id", "suite", "device", "unit", "statistic", name="portagpu_names_unique"),
)
"""What was measured. ``device`` and ``statistic`` are "" where a result has none: NULLs would be
unlike each other."""

MEASURES: Final = Table(
    "portagpu_measures",
    METADATA,
    Column("name", Integer, ForeignKey("portagpu_names.key"), primary_key=True),
    Column("run", Integer, ForeignKey("portagpu_runs.key"), primary_key=True),
    Column("value", Double, nullable=False),
    Column("spread", Double),
    Column("n", Integer),
    Column("verdict", Text, nullable=False),
    Index("portagpu_measures_run", "run"),
    sqlite_with_rowid=False,
)
"""Each result with a number, for SQL of one's own. In SQLite the rows lie in the order of the key,
so that the values of one measure are read together; the index finds those of one run."""

PACKED: Final = Table(
    "portagpu_packed",
    METADATA,
    Column("run", Integer, ForeignKey("portagpu_runs.key"), primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
"""The rows of MEASURES of each run in one value, in the form of ``store.NUMBERS``. What is computed
over all runs reads these: a million rows are read in half a second, and their 20 MB in no time."""
