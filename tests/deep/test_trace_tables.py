"""The readers of tables and JSON of both vendors' profilers: recordings, and authored texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("msgspec")
from portagpu.facts.captures.text_tables import number
from portagpu.traces.analysis import reading
from tests.support.regex_growth import grows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", [reader.KIND for reader in reading.readers()])
def test_no_beginning_of_a_file_keeps_a_reader_busy(tmp_path: Path, kind: str) -> None:
    (reader,) = (each for each in reading.readers() if kind == each.KIND)
    _, slow = grows(lambda text: reader.matches(text.encode(), tmp_path / "a"), "", 1000)
    assert not slow


def test_no_line_keeps_a_reader_busy(tmp_path: Path) -> None:
    title = "ROCPROFV3 KERNELS SUMMARY:\n| NAME | CALLS | DURATION (nsec) |\n"
    path = tmp_path / "summary.txt"

    def work(line: str) -> None:
        number(line)
        path.write_text(f"{title}{line}\n", "utf-8")
        reading.read(path)

    _, slow = grows(work, "", 1000, step=3)
    assert not slow
