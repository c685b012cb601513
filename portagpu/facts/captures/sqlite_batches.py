"""Tables of profilers' SQLite files in batches of Arrow columns, past damaged pages.

ADBC gives a column the type of its first 32,768 values, and fails or changes the type where later
ones differ. So a column of numbers is read as it is, and once more with a check of every value
where that went wrong.
"""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from portagpu.base.text import one_line
from portagpu.facts.captures.columns import FARTHEST_NS
from portagpu.facts.captures.model import arrow, import_library
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from portagpu.facts.captures.columns import Columns

BATCH_ROWS: Final = 32_768
MAX_TEXT: Final = 65_536
"""Characters of one text that are read."""
_TWO_READERS_ROWS: Final = 200_000
"""From how many rows on two connections share a table; SQLite reads without Python's lock."""
_HALVINGS: Final = 10
_MAX_GAPS: Final = 64
"""After this many damaged parts of a table the rest is not divided any further."""
_COPIED_BATCHES: Final = 8

ERRORS: Final = (sqlite3.Error, OverflowError, UnicodeDecodeError)
"""What reading raises: SQLite's messages quote a damaged schema, and Python decodes them."""

Type = Literal["whole", "text", "real"]


class _Damaged(Exception):
    """SQLite could not go on in this part of a table."""


class _OtherTypes(Exception):
    """A column has values of several types."""


class Tables(Protocol):
    """What a reading needs of an open file: :class:`portagpu.facts.captures.sqlite.SqliteFile`."""

    path: Path
    """As the user named it."""
    file: Path
    tables: dict[str, tuple[str, ...]]
    """Table -> its stored columns."""
    problems: list[str]
    dropped: int

    @property
    def uri(self) -> str:
        """What SQLite opens."""

    def execute(self, sql: str, *values: int) -> Iterator[tuple[Any, ...]]:
        """The rows of our own statement."""


class Reading:
    """One table, read once."""

    def __init__(
        self,
        file: Tables,
        table: str,
        columns: Mapping[str, Type],
        convert: Callable[[Columns], Columns],
    ) -> None:
        self._file, self._table, self._columns, self._convert = file, table, columns, convert
        stored = len(file.tables[table])
        # a row has its length, its number and a byte for most columns (a row may lack the last)
        self._left = file.file.stat().st_size // (5 + stored // 2) + 16
        self._lost: list[tuple[int, str]] = []
        self._lock = threading.Lock()

    def run(self, between: tuple[int, int] | None = None) -> list[Columns]:
        number, first, last = self._numbers()
        if between:
            first, last = max(first, between[0]), min(last, between[1])
        if number is None:
            try:
                batches = self._part(None, 0, 0)
            except _Damaged as error:
                self._file.problems.append(f"{self._table} cannot be read: {error}")
                return []
            return batches
        middle = first + (last - first) // 2
        if last - first < _TWO_READERS_ROWS:
            batches = self._halved(number, first, last)
        else:
            with ThreadPoolExecutor(2) as pool:
                halves = [
                    pool.submit(self._halved, number, *bounds)
                    for bounds in ((first, middle), (middle + 1, last))
                ]
                batches = [batch for half in halves for batch in half.result()]
        if self._lost:
            lost = sum(count for count, _ in self._lost)
            self._file.dropped += lost
            self._file.problems.append(
                f"{self._table}: up to {lost:,} rows are lost in damaged pages: {self._lost[0][1]}"
            )
        return batches

    def _numbers(self) -> tuple[str | None, int, int]:
        """The column of row numbers, the first and the last; None where there is no such column."""
        taken = {name.lower() for name in self._file.tables[self._table]}
        number = next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), None)
        if number is None:
            return None, 0, 0
        ends = []
        for which in ("min", "max"):
            sql = f"SELECT {which}({number}) FROM {quoted(self._table)}"  # noqa: S608
            try:
                ends.append(next(iter(self._file.execute(sql)))[0])
            except ERRORS as error:
                if "no such column" in str(error):
                    return None, 0, 0
                ends.append(None)
        if ends == [None, None]:
            return None, 0, 0
        first, last = (end if isinstance(end, int) else None for end in ends)
        # one end may be damaged
        return number, 0 if first is None else first, (1 << 40) if last is None else last

    def _halved(self, number: str, first: int, last: int, depth: int = 0) -> list[Columns]:
        """The rows from one number to another; of a damaged part what its halves still have."""
        try:
            return self._part(number, first, last)
        except _Damaged as error:
            if depth == _HALVINGS or first >= last or len(self._lost) >= _MAX_GAPS:
                with self._lock:
                    self._lost.append((last - first + 1, str(error)))
                return []
        middle = first + (last - first) // 2
        halves = ((first, middle), (middle + 1, last))
        return [batch for half in halves for batch in self._halved(number, *half, depth + 1)]

    def _part(self, number: str | None, first: int, last: int) -> list[Columns]:
        try:
            return self._stream(number, first, last, checked=False)
        except _OtherTypes:
            return self._stream(number, first, last, checked=True)

    def _stream(self, number: str | None, first: int, last: int, checked: bool) -> list[Columns]:
        pa: Any = arrow()
        driver: Any = import_library("adbc_driver_sqlite.dbapi")
        manager: Any = import_library("adbc_driver_manager")
        parts = ", ".join(_value(name, kind, checked) for name, kind in self._columns.items())
        sql = f"SELECT {parts} FROM {quoted(self._table)}"  # noqa: S608
        if number is not None:
            sql += f" WHERE {number} BETWEEN {first} AND {last}"
        found: list[Columns] = []
        recent: list[Columns] = []
        left = self._left
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(driver.connect(self._file.uri))
                cursor = stack.enter_context(connection.cursor())
                options = {"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)}
                cursor.adbc_statement.set_options(**options)
                cursor.execute(sql)
                reader = stack.enter_context(cursor.fetch_record_batch())
            except (manager.Error, pa.ArrowException, OSError) as error:
                raise self._failure(error, checked) from None
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return [*found, *_copied(recent)]
                except (manager.Error, pa.ArrowException, OSError) as error:
                    raise self._failure(error, checked) from None
                left -= batch.num_rows
                if left < 0:
                    raise FormatError(
                        f"{self._file.path}: {self._table} has more rows than the file can hold:"
                        " its pages are linked in circles"
                    )
                if batch.num_rows:
                    recent.append(self._convert(self._typed(batch, checked)))
                if len(recent) == _COPIED_BATCHES:
                    found += _copied(recent)
                    recent = []

    @staticmethod
    def _failure(error: Exception, checked: bool) -> Exception:
        if "Type mismatch" in str(error) and not checked:
            return _OtherTypes()
        return _Damaged(line_of(error))

    def _typed(self, batch: pa.RecordBatch, checked: bool) -> Columns:
        pa: Any = arrow()
        types = {"whole": pa.int64(), "real": pa.float64(), "text": pa.binary()}
        found: Columns = {}
        for index, (name, kind) in enumerate(self._columns.items()):
            values = batch.column(index)
            if values.type != types[kind]:
                if not checked and kind == "whole":
                    raise _OtherTypes
                values = values.cast(types[kind])
            found[name] = values
        return found


def _copied(batches: list[Columns]) -> list[Columns]:
    """The batches as one, in memory of its own: a column of ADBC keeps all of its batch.

    The system's allocator, which ADBC uses too, takes the place that they leave.
    """
    pa: Any = arrow()
    pool = pa.system_memory_pool()
    return [
        {name: pa.concat_arrays([each[name] for each in batches], pool) for name in batches[0]}
        for _ in batches[:1]
    ]


def _value(name: str, kind: Type, checked: bool) -> str:
    column = quoted(name)
    if kind == "text":
        text = f"CASE WHEN typeof({column}) = 'text' THEN substr({column}, 1, {MAX_TEXT})"
        return f"CAST({text} ELSE '' END AS BLOB)"
    if kind == "real":
        return f"CASE WHEN typeof({column}) IN ('real', 'integer') THEN {column} * 1.0 END"
    return f"CASE WHEN typeof({column}) = 'integer' THEN {column} END" if checked else column


def timed(batch: Columns, start: str, end: str, open_ended: bool) -> tuple[Columns, int, int]:
    """The rows with usable times, how many end before they start, and how many have no times.

    Start and end are 0 where a device's times could not be collected (cupti_activity.h).
    """
    import pyarrow.compute as pc

    starts, ends = batch[start], batch[end]
    if starts.null_count == ends.null_count == 0:
        bounds = pc.min_max(starts).as_py(), pc.min_max(ends).as_py()
        near = all(-FARTHEST_NS < each[key] < FARTHEST_NS for each in bounds for key in each)
        none_at_0 = not bounds[0]["min"] <= 0 <= bounds[0]["max"]
        if near and none_at_0 and not pc.any(pc.less(ends, starts)).as_py():
            return batch, 0, 0

    def inside(values: pa.Array) -> pa.Array:
        near = pc.and_(pc.less(values, FARTHEST_NS), pc.greater(values, -FARTHEST_NS))
        return near.fill_null(False)

    usable = pc.and_(
        inside(starts), pc.or_(inside(ends), ends.is_null()) if open_ended else inside(ends)
    )
    untimed = pc.and_(pc.equal(starts, 0), pc.equal(ends, 0)).fill_null(False)
    usable = pc.and_not(usable, untimed)
    forwards = pc.greater_equal(ends, starts).fill_null(True)
    kept = pc.and_(usable, forwards)
    backwards = pc.sum(pc.and_not(usable, forwards)).as_py() or 0
    count = len(starts) - (pc.sum(usable).as_py() or 0)
    return {name: values.filter(kept) for name, values in batch.items()}, backwards, count


def quoted(name: str) -> str:
    """A name between quotes."""
    return '"' + name.replace('"', '""') + '"'


def line_of(error: BaseException) -> str:
    """What SQLite or ADBC says, on one line."""
    text = str(error).partition("\nquery:")[0]
    return one_line(text)[:300] or type(error).__name__
