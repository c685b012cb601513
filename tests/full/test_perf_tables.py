"""Outputs of nccl-tests and rccl-tests, read and written; perf_tables/README.md has the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.facts.nccl_tests.tables import read_tables
from portagpu.facts.readings.model import FormatError
from tests.vendor_texts.test_perf_tables import TEXTS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", TEXTS, ids=[path.stem for path in TEXTS])
def test_a_text_that_is_cut_gives_no_other_number(path: Path) -> None:
    """At every place: what is read is a beginning of the whole, or one clear error."""
    text = path.read_text("utf-8")
    (whole,) = read_tables(text)
    step = max(1, len(text) // 400)
    for end in [*range(0, len(text), step), *range(max(0, len(text) - 120), len(text))]:
        try:
            (table,) = read_tables(text[:end])
        except FormatError as error:
            assert "\n" not in str(error), repr(text[:end][-40:])
            continue
        assert table.rows == whole.rows[: len(table.rows)], repr(text[:end][-40:])
        assert table.out_of_bounds in (None, whole.out_of_bounds)
        assert table.average_busbw_gbs in (None, whole.average_busbw_gbs)
        assert table.ended or table.problems
