"""One made-up timeline, written in three formats, reads in the same way from all three."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("adbc_driver_sqlite")

from typing import TYPE_CHECKING, Any

from portagpu.traces.analysis import reading
from tests.support.trace_samples import WRITERS, Timeline, timeline
from tests.vendor_texts.test_trace_samples import SHARED

if TYPE_CHECKING:
    from pathlib import Path


def rows(made: Timeline, path: Path, writer: Any, kind: Any) -> list[dict[str, Any]]:
    table = reading.read(writer(made, path)).tables[kind]
    events = ("api", "range")
    names = [name for name in SHARED if name in table.column_names]
    if kind not in events:
        names = [name for name in names if name not in ("pid", "tid")]
    found: list[dict[str, Any]] = table.select(names).to_pylist()
    return sorted(found, key=lambda row: (row["start_ns"], row["end_ns"], row["name"]))


@pytest.mark.parametrize("kind", ["kernel", "copy", "api", "range"])
@pytest.mark.parametrize("count", [1, 64, 700])
def test_all_three_read_the_same(tmp_path: Path, kind: str, count: int) -> None:
    # collectives are written as each format has them; a timeline without is the same in all
    made = timeline(count, devices=2, shuffled=True, collective_kernel=None)
    assert made.collectives["start"].size == 0
    found = {name: rows(made, tmp_path / name, WRITERS[name], kind) for name in WRITERS}
    assert len(found["nsys"]) > 0
    assert found["nsys"] == found["rocpd"]
    assert found["nsys"] == found["kineto"]
