"""Columns of whole numbers as arrays, next to what Arrow's own cast gives."""

from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow")

from portagpu.traces.analysis.arrays import NULL, integers

VALUES = [3, None, 0, 5, None, 7, 1, 2, 9, 4, None]


@pytest.mark.parametrize("kind", ["int64", "int32", "uint16", "int8", "float64"])
@pytest.mark.parametrize("first", [0, 1, 5])
def test_slices_and_nulls_are_kept(kind: str, first: int) -> None:
    column = pa.chunked_array([pa.array(VALUES, kind).slice(first), pa.array([6], kind)])
    found = integers(pa.table({"x": column}), "x")
    assert found is not None
    assert found.dtype == "int64"
    wanted = [NULL if each is None else each for each in [*VALUES[first:], 6]]
    assert found.tolist() == wanted
