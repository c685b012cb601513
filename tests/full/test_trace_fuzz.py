"""A small share of tests/support/fuzz_traces.py: damaged traces for every reader, with a seed."""

from __future__ import annotations

import tracemalloc

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("msgspec")
pytest.importorskip("perfetto")
pytest.importorskip("adbc_driver_sqlite")


from typing import TYPE_CHECKING

from tests.support import fuzz_traces
from tests.vendor_texts.test_trace_fuzz import files as files

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


def test_check_notices_what_is_wrong(
    files: dict[str, list[tuple[str, bytes]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portagpu.facts.captures.model import Capture, Source, table
    from portagpu.traces.analysis import reading

    path = tmp_path / "x"
    backwards = {"kernel": table({"start_ns": [5], "end_ns": [4]})}
    captures = {
        "an event ends before it starts": Capture(Source("x", "y"), backwards),  # type: ignore[arg-type]
        "no sentence says so": Capture(Source("x", "y"), dropped=3),
    }
    for words, capture in captures.items():
        monkeypatch.setattr(reading, "read", lambda _, capture=capture: capture)
        assert words in str(fuzz_traces.check(path))
    monkeypatch.setattr(reading, "read", lambda _: next(iter(())))
    assert "StopIteration" in str(fuzz_traces.check(path))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_inputs_give_one_line_or_a_part(
    files: dict[str, list[tuple[str, bytes]]], tmp_path: Path, seed: int
) -> None:
    wrong = []
    for number, (kind, name, data) in enumerate(fuzz_traces.inputs(files, 100, seed)):
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(data)
        if found := fuzz_traces.check(path):
            wrong.append(f"{kind} {name} {number}: {found}")
    assert not wrong, "\n".join(wrong)
