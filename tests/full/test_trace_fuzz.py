"""A small share of tests/support/fuzz_traces.py: damaged traces for every reader, with a seed."""

from __future__ import annotations

import tracemalloc

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("msgspec")
pytest.importorskip("perfetto")
pytest.importorskip("adbc_driver_sqlite")


from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "text", [b'{"traceEvents": [' + b" " * 9_000_000, b"[" + b'"a' * 4_000_000]
)
def test_memory_does_not_grow_with_what_is_not_an_event(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    from portagpu.facts.readings import FormatError
    from portagpu.traces.analysis import kineto

    del text
    tracemalloc.start()
    try:
        kineto.read(path, chunk=65_536)
    except FormatError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 40_000_000
