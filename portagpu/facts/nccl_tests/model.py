"""The model of what nccl-tests and rccl-tests print, and bandwidth as they define it.

Source: https://github.com/NVIDIA/nccl-tests, ``doc/PERFORMANCE.md`` and the functions ``*GetBw``
and ``*GetCollByteCount`` of ``src/*.cu`` at a0b82b2 (2.19.6); rccl-tests has the same ones, and
the names are theirs. 1 GB is 1e9 bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.base.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


OPERATIONS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "sendrecv",
)
"""The operations that have a bus bandwidth. In ``sendrecv`` every rank sends to the next one and
receives from the one before it, as a ring."""

TUNED: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_reduce_many")
"""What ``collectives tune`` tunes; ``all_reduce_many`` reduces a list of tensors, whose bytes count
together."""

SHARED_OUT: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Operations whose count is of one rank's share: their buffers hold a share for every rank."""


def total_bytes(operation: str, count: int, itemsize: int, ranks: int) -> int:
    """The bytes S that count for ``operation``, from the ``count`` elements of nccl-tests' tables.

    S is the buffer of one rank for ``all_reduce``, ``broadcast``, ``reduce`` and ``sendrecv``:
    ``count * itemsize``. For the others ``count`` is one rank's share, and S is
    ``count * itemsize * ranks``: what one rank holds before ``reduce_scatter`` and after
    ``all_gather``, sends to all, itself included, in ``all_to_all``, and what the root holds in
    ``gather`` and ``scatter``. Raises ValueError for another operation.
    """
    _check_ranks(operation, ranks)
    return count * itemsize * (ranks if operation in SHARED_OUT else 1)


def bus_factor(operation: str, ranks: int) -> float | None:
    """``busbw / algbw``; None, which is "not applicable", for a single rank.

    ``2 * (n - 1) / n`` for ``all_reduce``; ``(n - 1) / n`` for ``all_gather``, ``reduce_scatter``,
    ``all_to_all``, ``gather`` and ``scatter``; 1 for ``broadcast``, ``reduce`` and ``sendrecv``, as
    in PERFORMANCE.md of nccl-tests. One rank moves nothing between ranks, so there its bus
    bandwidth is not applicable, and not 0.

    :param operation: the name of a collective.
    :param ranks: how many ranks there are, at least 1.
    :raises ValueError: for an operation without a factor, or no rank.
    """
    _check_ranks(operation, ranks)
    if ranks == 1:
        return None
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in SHARED_OUT else 1.0


def algbw_gbs(size_bytes: int, seconds: float) -> float:
    """The algorithm bandwidth in GB/s: ``S / t / 1e9``, with S of :func:`total_bytes`.

    Raises ValueError if the time is not above 0.
    """
    if not seconds > 0:
        raise ValueError(f"a bandwidth needs a time above 0 s, not {seconds}")
    return size_bytes / seconds / 1e9


def busbw_gbs(operation: str, size_bytes: int, seconds: float, ranks: int) -> float | None:
    """The bus bandwidth in GB/s, ``algbw * bus_factor``; None where it is not applicable.

    Raises ValueError as :func:`algbw_gbs` and :func:`bus_factor` do.
    """
    factor = bus_factor(operation, ranks)
    algbw = algbw_gbs(size_bytes, seconds)
    return None if factor is None else algbw * factor


def _check_ranks(operation: str, ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"a collective has at least one rank, not {ranks}")
    if operation not in OPERATIONS:
        raise ValueError(f"{operation!r} has no bus bandwidth factor")


PLACES: Final = ("out_of_place", "in_place")
"""The two halves of a row, by their names in :class:`Row` and in the JSON."""

TYPE_NAMES: Final[Mapping[str, str]] = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
"""torch's name of a dtype -> its name in the tables."""
_OLDER_NAMES: Final = {
    "char": "int8",
    "int": "int32",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
_DTYPES: Final = {**{name: dtype for dtype, name in TYPE_NAMES.items()}, **_OLDER_NAMES}
_ITEM_BYTES: Final = dict(zip(TYPE_NAMES, (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One half of a row. Bandwidths are in GB/s, 1e9 bytes a second.

    ``wrong`` is the number of wrong elements, None if nothing was checked or the layout does not
    count them. ``deviation`` is the largest one, of the layouts that have it; ``beyond`` says that
    the program marked it as out of bounds. ``rounding`` has half of the last printed place of time,
    algbw and busbw: each value was at most that far from the number here.
    """

    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: int | None = None
    deviation: float | None = None
    beyond: bool = False
    rounding: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def has_factor(self, factor: float) -> bool:
        """Whether busbw is algbw times ``factor``, within what was rounded away from both."""
        lost = self.rounding[2] + factor * self.rounding[1]
        return abs(self.busbw_gbs - factor * self.algbw_gbs) <= lost + 1e-9 * self.busbw_gbs


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size. ``size_bytes`` is S of :mod:`portagpu.facts.nccl_tests.model`.

    ``count`` has elements as ``total_bytes`` takes them. ``type_name``, ``redop`` ("sum") and
    ``root`` are as printed, None for a column that is missing; a root of -1 is None too. ``line``
    is the number of its line in the text, from 1; 0 in JSON.
    """

    size_bytes: int
    count: int | None = None
    type_name: str | None = None
    redop: str | None = None
    root: int | None = None
    out_of_place: Timing | None = None
    in_place: Timing | None = None
    line: int = 0

    @property
    def dtype(self) -> str | None:
        """torch's name of the dtype ("float32"); None where the name is missing or unknown."""
        return _DTYPES.get(self.type_name or "")

    @property
    def timings(self) -> tuple[tuple[str, Timing], ...]:
        """The halves that are there, with their names: those of ``PLACES``."""
        halves = ((place, getattr(self, place)) for place in PLACES)
        return tuple((place, half) for place, half in halves if half is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDevice:
    """The device of a rank. ``name`` is as printed; ``bus`` is a PCI address or its part."""

    rank: int
    name: str
    index: int = 0
    host: str = ""
    bus: str = ""
    group: int = 0
    process: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfTable:
    """One run of one test program, or what is left of its output.

    ``program`` is "all_reduce_perf". ``operation`` is one of ``bandwidth.OPERATIONS``, None if no
    line names the program or it has no bus bandwidth there. ``ranks`` is how many took part, None
    if nothing says so. ``settings`` has the numbers of the line "nThread ..." under the keys of the
    JSON's ``config``. ``versions`` has those of "tests", "headers" and "library". ``out_of_bounds``
    and ``average_busbw_gbs`` are of the last lines, None without them. ``ended`` says whether they
    are there: a table that was cut is without. ``problems`` are sentences about what was not read.
    ``are_more_ranks_possible`` says that ``ranks`` comes from the listed lines alone, of which some
    may be missing. ``ranks_problem`` says why the number of ranks is not known. ``failure`` is what
    the program said where it ended with an error.
    """

    rows: tuple[Row, ...]
    program: str | None = None
    operation: str | None = None
    ranks: int | None = None
    devices: tuple[RankDevice, ...] = ()
    settings: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    out_of_bounds: int | None = None
    average_busbw_gbs: float | None = None
    ended: bool = True
    problems: tuple[str, ...] = ()
    are_more_ranks_possible: bool = field(default=False, compare=False)
    ranks_problem: str = ""
    failure: str = ""


def item_bytes(dtype: str) -> int | None:
    """Bytes of one element of torch's dtype of that name; None for a dtype without a table name."""
    return _ITEM_BYTES.get(dtype)


def operation_of(program: str | None) -> str | None:
    """The operation that the program of that name tests; None where it has no bus factor."""
    name = (program or "").removesuffix("_perf")
    name = {"alltoall": "all_to_all"}.get(name, name)
    return name if name in OPERATIONS else None


def fitting_operations(table: PerfTable) -> tuple[str, ...]:
    """The operations whose columns, bytes and bus factor fit every row of ``table``.

    Older layouts do not name the program. Empty if the number of ranks is not known or is 1, and if
    no row has a bandwidth that distinguishes factors.
    """
    ranks = table.ranks
    if ranks is None or ranks == 1:
        return ()
    halves = [half for row in table.rows for _, half in row.timings]
    if not any(half.busbw_gbs > 20 * half.rounding[2] for half in halves):
        return ()
    return tuple(
        operation
        for operation in OPERATIONS
        if all(half.has_factor(bus_factor(operation, ranks) or 0.0) for half in halves)
        and all(_row_fits(row, operation, ranks) for row in table.rows)
    )


def fitting_ranks(table: PerfTable, operation: str) -> int | None:
    """How many ranks the bandwidths of every row fit; None if no one number does.

    From ``busbw / algbw``, which is ``2 * (n - 1) / n`` or ``(n - 1) / n``.

    :param table: a table with rows.
    :param operation: one of ``OPERATIONS``.
    """
    halves = [half for row in table.rows for _, half in row.timings if half.algbw_gbs > 0]
    if not halves or bus_factor(operation, 2) == bus_factor(operation, 3):
        return None
    best = max(halves, key=lambda half: half.busbw_gbs)
    factor = best.busbw_gbs / best.algbw_gbs / (2 if operation == "all_reduce" else 1)
    if not 0 < factor < 1:
        return None
    ranks = round(1 / (1 - factor))
    fits = all(half.has_factor(bus_factor(operation, max(ranks, 2)) or 0.0) for half in halves)
    return ranks if ranks > 1 and fits else None


def has_columns_of(row: Row, operation: str) -> bool:
    """Whether a row's columns are those of an operation: older layouts have what it has."""
    reduces, rooted = operation in REDUCTIONS, operation in ROOTED
    if row.root is not None and not rooted:
        return False
    if row.redop is not None and (row.redop == "none") == reduces:
        return False
    has_none = row.redop is None and row.type_name is not None and row.root is None
    return not (has_none and (reduces or rooted))


def _row_fits(row: Row, operation: str, ranks: int) -> bool:
    if not has_columns_of(row, operation):
        return False
    if row.dtype is None or row.count is None:
        return True
    return row.size_bytes == total_bytes(operation, row.count, _ITEM_BYTES[row.dtype], ranks)


REDUCTIONS: Final = frozenset({"all_reduce", "reduce_scatter", "reduce"})
ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter"})


_WHOLE: Final = re.compile(r"\d{1,3}(?:[_,]?\d{1,3}){0,6}|\d{1,20}")
_NAME: Final = re.compile(r"[A-Za-z_][\w]{0,20}")
_MAX_PROBLEMS: Final = 20


def read_whole(text: str) -> int:
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{excerpt(text, 30)!r} is not a whole number")
    return int(text.replace("_", "").replace(",", ""))


def read_name(text: str | None) -> str | None:
    if text is None or _NAME.fullmatch(text):
        return text
    raise ValueError(f"{excerpt(text, 30)!r} is not a name")


def read_root(text: str | None) -> int | None:
    if text is None or text == "-1":
        return None
    return read_whole(text)


def few_problems(problems: Sequence[str]) -> tuple[str, ...]:
    if len(problems) <= _MAX_PROBLEMS:
        return tuple(problems)
    left = len(problems) - _MAX_PROBLEMS
    return (*problems[:_MAX_PROBLEMS], f"{left} more problems are like these")
