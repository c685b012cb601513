"""A small share of tests/support/fuzz_traces.py: damaged traces for every reader, with a seed."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("msgspec")
pytest.importorskip("perfetto")
pytest.importorskip("adbc_driver_sqlite")

from typing import TYPE_CHECKING

from tests.support import fuzz_traces

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, bytes]]]:
    return fuzz_traces.seeds(tmp_path_factory.mktemp("seeds"))


def test_every_reader_has_inputs(files: dict[str, list[tuple[str, bytes]]]) -> None:
    from portagpu.traces.analysis import reading

    modules = {reader.__name__.rpartition(".")[2] for reader in reading.readers()}
    assert len(files) >= len(modules), f"inputs for {sorted(files)}, readers {sorted(modules)}"


def test_undamaged_inputs_are_read(
    files: dict[str, list[tuple[str, bytes]]], tmp_path: Path
) -> None:
    from portagpu.traces.analysis import reading

    for kind, each in files.items():
        for name, data in each:
            path = tmp_path / name
            path.write_bytes(data)
            capture = reading.read(path)
            assert capture.tables or capture.totals or capture.metrics, (kind, name)
