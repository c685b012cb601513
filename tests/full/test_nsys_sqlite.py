"""The SQLite files of nsys: recordings, and files made to be wrong.

The oracle is plain SQL through Python's sqlite3, and values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("adbc_driver_sqlite")

from typing import TYPE_CHECKING

from portagpu_cuda.captures import nsys_sqlite
from tests.support.trace_samples import timeline, write_nsys

if TYPE_CHECKING:
    from pathlib import Path


def test_two_connections_read_what_one_reads(tmp_path: Path, monkeypatch: Any) -> None:
    file = write_nsys(timeline(50_000, shuffled=True), tmp_path / "a.sqlite")
    one = nsys_sqlite.read(file)
    monkeypatch.setattr("portagpu.facts.captures.sqlite_batches._TWO_READERS_ROWS", 1000)
    monkeypatch.setattr("portagpu.facts.captures.sqlite_batches.BATCH_ROWS", 512)
    two = nsys_sqlite.read(file)
    for kind, table in one.tables.items():
        assert table.to_pylist() == two.tables[kind].to_pylist(), kind
