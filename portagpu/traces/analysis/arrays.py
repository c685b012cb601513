"""Columns of captures as numpy arrays, exact statistics of groups of rows, and sets of time as
sorted pieces: union, intersection, subtraction and gaps, exact and vectorised.

A piece is half open: [start, end). Times are int64 nanoseconds between -LIMIT and LIMIT, so that
differences and the packed forms here never overflow. All costs are those of sorting; input that is
sorted, or nearly so, takes linear time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from portagpu.facts.captures.model import import_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
    if str(column.type) in _WHOLE:
        parts = [_whole(each) for each in column.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    column = column.cast("int64")
    return _array(column.fill_null(NULL) if column.null_count else column)


_WHOLE: Final = ("int64", "int32", "int16", "int8", "uint32", "uint16", "uint8")


def _whole(chunk: Any) -> npt.NDArray[Any]:
    """Whole numbers as int64. pyarrow's own functions cost 0.08 CPU s to load."""
    valid, data = chunk.buffers()
    stored = np.frombuffer(data, str(chunk.type), len(chunk), chunk.offset * chunk.type.byte_width)
    if not chunk.null_count:
        whole: npt.NDArray[Any] = stored.astype(np.int64, copy=False)
        return whole
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
    return np.where(bits[chunk.offset : chunk.offset + len(chunk)], stored, np.int64(NULL))


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


_Of = TypeVar("_Of")
_Found = TypeVar("_Found")

LIMIT: Final = 1 << 61
"""Nanoseconds, 73 years: no sound clock of a capture is further from 0, nor will be until 2043."""


class Pieces(NamedTuple):
    """A set of time: sorted pieces that neither overlap nor touch, none of them empty."""

    starts: npt.NDArray[Any]
    ends: npt.NDArray[Any]

    @property
    def total(self) -> int:
        """How long it is, in ns."""
        return int((self.ends - self.starts).sum())


def union(starts: npt.NDArray[Any], ends: npt.NDArray[Any]) -> Pieces:
    """The time that at least one interval [start, end) covers; ``ends`` >= ``starts``."""
    if not len(starts):
        return Pieces(starts, ends)
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    tops = np.maximum.accumulate(ends)
    breaks = np.flatnonzero(starts[1:] > tops[:-1])
    firsts, lasts = starts[_shifted(breaks)], tops[np.append(breaks, len(tops) - 1)]
    if (firsts == lasts).any():
        some = firsts < lasts
        firsts, lasts = firsts[some], lasts[some]
    return Pieces(firsts, lasts)


def _shifted(breaks: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The places where runs start, from those where all but the last end."""
    starts = np.zeros(len(breaks) + 1, np.int64)
    np.add(breaks, 1, out=starts[1:])
    return starts


def at_least(sets: Sequence[Pieces], count: int) -> Pieces:
    """The time that at least ``count`` of the sets have."""
    sets = [each for each in sets if len(each.starts)]
    if len(sets) < count:
        empty = np.zeros(0, np.int64)
        return Pieces(empty, empty)
    if count == 1 and len(sets) == 1:
        return sets[0]
    # time * 2, plus 1 for a start: at one time, ends come first. Each part is sorted, and the
    # stable sort merges sorted parts.
    marks = np.concatenate(
        [part for each in sets for part in ((each.starts << 1) | 1, each.ends << 1)]
    )
    marks.sort(kind="stable")
    open_now = np.cumsum(((marks & 1) << 1).astype(np.int8) - 1, dtype=np.int32)
    marks >>= 1
    enough = open_now >= count
    rises = enough.copy()
    rises[1:] &= ~enough[:-1]
    falls = ~enough
    falls[0] = False
    falls[1:] &= enough[:-1]
    return union(marks[rises], marks[falls])


def intersection(one: Pieces, other: Pieces) -> Pieces:
    """The time that both have."""
    return at_least((one, other), 2)


def subtraction(one: Pieces, other: Pieces) -> Pieces:
    """The time of ``one`` that ``other`` lacks: exposed, where ``other`` could hide it."""
    if not (len(one.starts) and len(other.starts)):
        return one
    low = min(one.starts[0], other.starts[0]) - 1
    high = max(one.ends[-1], other.ends[-1]) + 1
    rest = Pieces(np.append(low, other.ends), np.append(other.starts, high))
    return intersection(one, rest)


def gaps(pieces: Pieces) -> npt.NDArray[Any]:
    """How long each stretch between two pieces is, in ns."""
    return pieces.starts[1:] - pieces.ends[:-1]


def covered_before(pieces: Pieces, times: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """For each of ``times``: how much of ``pieces`` lies before it, in ns."""
    if not len(pieces.starts):
        return np.zeros(len(times), np.int64)
    sums = np.zeros(len(pieces.starts) + 1, np.int64)
    np.cumsum(pieces.ends - pieces.starts, out=sums[1:])
    place = np.searchsorted(pieces.starts, times, side="right")
    before = sums[place]
    # the last piece that started may go on after the time
    rest = pieces.ends[np.maximum(place - 1, 0)] - times
    np.maximum(rest, 0, out=rest)
    rest[place == 0] = 0
    before -= rest
    return before


def union_by(
    codes: npt.NDArray[Any], starts: npt.NDArray[Any], ends: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], Pieces]:
    """The union of each group: the code of each piece, and the pieces, sorted by code and start.

    ``codes`` are small integers from 0; the intervals are sorted by start.
    """
    if not len(codes):
        return codes, Pieces(starts, ends)
    order = by_code(codes)
    codes, starts, ends = codes[order], starts[order], ends[order]
    low = int(starts.min())
    span = int(ends.max()) - low + 2
    batch = max(1, LIMIT // span)
    found: list[tuple[Any, Any, Any]] = []
    for first in range(0, int(codes[-1]) + 1, batch):
        here = slice(*np.searchsorted(codes, (first, first + batch)))
        # each group on a stretch of the line of its own: one union does them all
        shift = (codes[here].astype(np.int64) - first) * span
        shift -= low
        part = union(starts[here] + shift, ends[here] + shift)
        code = part.starts // span
        back = code * span - low
        found.append((code + first, part.starts - back, part.ends - back))
    whole = [
        column[0] if len(column) == 1 else np.concatenate(column)
        for column in zip(*found, strict=True)
    ]
    return whole[0], Pieces(whole[1], whole[2])


_BLOCK: Final = 1 << 15
"""Rows at a time: what is computed of them stays in a processor's cache."""


def blocks(
    codes: npt.NDArray[Any], starts: npt.NDArray[Any], ends: npt.NDArray[Any]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
    """The intervals, sorted by start, cut into stretches of time that follow one another.

    Each stretch has (codes, starts, ends) of what is in it, cut at its borders. Of several
    intervals of one code that go on from an earlier stretch it has the longest. So the measure of
    any union, for each code or for all, is the sum of those of the stretches.
    """
    open_codes, open_ends = codes[:0], ends[:0]
    for first in range(0, len(starts), _BLOCK):
        rows = slice(first, first + _BLOCK)
        here, begins, stops = codes[rows], starts[rows], ends[rows]
        if len(open_codes):
            here = np.concatenate((open_codes, here))
            begins = np.concatenate((np.full(len(open_codes), begins[0]), begins))
            stops = np.concatenate((open_ends, stops))
        border = starts[first + _BLOCK] if first + _BLOCK < len(starts) else None
        open_codes, open_ends = codes[:0], ends[:0]
        if border is not None and len(later := np.flatnonzero(stops > border)):
            later = later[np.lexsort((stops[later], here[later]))]
            last = np.append(here[later[1:]] != here[later[:-1]], True)
            open_codes, open_ends = here[later[last]], stops[later[last]]
            stops = np.minimum(stops, border)
        yield here, begins, stops


def union_ns_by(
    codes: npt.NDArray[Any], starts: npt.NDArray[Any], ends: npt.NDArray[Any], count: int
) -> npt.NDArray[Any]:
    """How long the union of each code is, in ns; the intervals are sorted by start."""
    found = np.zeros(count, np.int64)
    for block in blocks(codes, starts, ends):
        of, pieces = union_by(*block)
        np.add.at(found, of, pieces.ends - pieces.starts)
    return found


def by_code(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The stable order of ``codes``: small integers from 0."""
    # a stable sort of 16 bits is a radix sort: linear
    small = np.uint16 if len(codes) and int(codes.max()) < 1 << 16 else codes.dtype
    return np.argsort(codes.astype(small, copy=False), kind="stable")


def order_of(starts: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """The stable order of ``starts``; None where they are in order."""
    if (starts[1:] >= starts[:-1]).all():
        return None
    low, bits = int(starts.min()), len(starts).bit_length()
    if (int(starts.max()) - low).bit_length() + bits > 62:
        return np.argsort(starts, kind="stable")
    # a time and its row in one integer sort in half the time that their order takes
    packed = starts - low
    packed <<= bits
    packed |= np.arange(len(starts))
    if len(packed) > _LARGE:
        in_two_threads(lambda half: half.sort(kind="stable"), np.array_split(packed, 2))
    # the stable sort merges what is in order
    packed.sort(kind="stable")
    packed &= (1 << bits) - 1
    return packed


_LARGE: Final = 1 << 20


def in_two_threads(function: Callable[[_Of], _Found], values: Iterable[_Of]) -> list[_Found]:
    """What ``function`` gives of each value; numpy works without Python's lock."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(function, values))
