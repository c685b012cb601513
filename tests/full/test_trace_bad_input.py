"""Files that no profiler wrote so: each verb says one clear line, or what is missing."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from typing import TYPE_CHECKING

from portagpu.traces.analysis.reading import read
from tests.vendor_texts.test_trace_bad_input import KERNELS

if TYPE_CHECKING:
    from pathlib import Path


def test_text_in_wide_characters_is_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "kernel_trace.csv"
    # above what was once read of such text at a time
    row = KERNELS.splitlines()[1] + "\n"
    count = (9 << 20) // len(row)
    file.write_text(KERNELS + row * count, encoding="utf-16")
    assert read(file).count("kernel") == count + 1
