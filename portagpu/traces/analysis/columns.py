"""Columns of captures as numpy arrays, and exact statistics of groups of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.model import import_library

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

np: Any = import_library("numpy")

NULL: Final = -(1 << 63)
"""In an array of integers: the source has no value."""
BLOCK: Final = 1 << 18
"""Rows at a time, where arrays of all rows would take as much memory as the rows."""
DIGITS: Final = 3
"""Decimals of all that a summary computes: below, the order of a sum shows."""


def integers(table: pa.Table, name: str) -> npt.NDArray[Any] | None:
    """The column as int64, NULL where it has no value; None where it has none at all."""
    if name not in table.column_names or not table.num_rows:
        return None
    column: Any = table.column(name)
    if column.null_count == len(column):
        return None
    if str(column.type) != "int64":
        column = column.cast("int64")
    if column.null_count:
        column = column.fill_null(NULL)
    return _array(column)


def _array(column: Any) -> npt.NDArray[Any]:
    """A column without nulls; of one chunk, it is not copied."""
    array: npt.NDArray[Any] = (
        column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy()
    )
    return array


def words(table: pa.Table, name: str) -> tuple[npt.NDArray[Any], list[str | None]] | None:
    """Codes of a column's values, -1 where it has none, and what the codes mean.

    None where it has no value at all. A meaning may stand twice, or be None, or have no row.
    """
    if name not in table.column_names or not table.num_rows:
        return None
    column: Any = table.column(name)
    if column.null_count == len(column):
        return None
    chunks = column.unify_dictionaries().chunks
    parts = [
        (each.indices.fill_null(-1) if each.indices.null_count else each.indices).to_numpy()
        for each in chunks
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts), chunks[0].dictionary.to_pylist()


def percentiles(
    values: npt.NDArray[Any], starts: npt.NDArray[Any], calls: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The median and the 95th percentile of each stretch of ``values``, which are reordered.

    A stretch is what follows its start; none is empty, and they follow one another. A percentile
    lies between two values where its place does, as numpy's default does.
    """
    small = np.flatnonzero(calls < _FEW)
    if len(small):
        _sort_stretches(values, starts[small], calls[small])
    places = [np.divmod(percent * (calls - 1), 100) for percent in (50, 95)]
    lows = [starts + place for place, _ in places]
    highs = [starts + np.minimum(place + 1, calls - 1) for place, _ in places]
    for at in np.flatnonzero(calls >= _FEW).tolist():
        first = int(starts[at])
        wanted = sorted({int(each[at]) - first for each in (*lows, *highs)})
        values[first : first + int(calls[at])].partition(wanted)
    low, high = (
        (values[one] + (values[other] - values[one]) * (part / 100)).round(DIGITS)
        for one, other, (_, part) in zip(lows, highs, places, strict=True)
    )
    return low, high


_FEW: Final = 1000
"""Smaller groups are sorted together: there may be as many as rows."""


def _sort_stretches(
    values: npt.NDArray[Any], starts: npt.NDArray[Any], calls: npt.NDArray[Any]
) -> None:
    rows = np.arange(int(calls.sum())) + np.repeat(starts - (np.cumsum(calls) - calls), calls)
    codes = np.repeat(np.arange(len(calls)), calls)
    own = values[rows]
    values[rows] = own[np.lexsort((own, codes))]


def squares_by(
    values: npt.NDArray[Any],
    starts: npt.NDArray[Any],
    calls: npt.NDArray[Any],
    mean: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """The sum of squared distances from the mean of each stretch of ``values``."""
    squares = np.zeros(len(calls))
    # some stretches at a time: floats of all rows would take as much memory as the rows
    firsts = np.unique(np.searchsorted(starts, np.arange(0, int(starts[-1]) + 1, BLOCK)))
    for first, last in zip(firsts, [*firsts[1:], len(calls)], strict=True):
        here = slice(starts[first], starts[last - 1] + calls[last - 1])
        away = values[here] - np.repeat(mean[first:last], calls[first:last])
        away *= away
        squares[first:last] = np.add.reduceat(away, starts[first:last] - starts[first])
    return squares


def median(values: npt.NDArray[Any]) -> float | None:
    """The median, rounded; None of nothing."""
    return round(float(np.median(values)), DIGITS) if len(values) else None


def sums_by(codes: npt.NDArray[Any], values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """The exact sum of int64 ``values`` for each code from 0 to ``count`` - 1."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, codes, values)
    return sums
