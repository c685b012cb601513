"""SQLite files of profilers, read as untrusted: only stored columns of real tables, to Arrow.

A view, a virtual table, a trigger and a generated column are SQL of whoever wrote the file; none of
them is run. A value of another type than its column should have is as good as none. What a damaged
page holds is counted as lost, and the rest is read.

ADBC gives a column the type of its first 32,768 values, and fails or changes the type where later
ones differ. So a column of numbers is read as it is, and once more with a check of every value
where that went wrong.
"""

from __future__ import annotations

import gzip
import itertools
import shutil
import sqlite3
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from portagpu.base.files import Scratch
from portagpu.base.text import one_line, printable
from portagpu.facts.captures.columns import FARTHEST_NS, decoded
from portagpu.facts.captures.model import arrow, check_unpacked, import_library, most_unpacked
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from portagpu.facts.captures.columns import Columns

HEADER: Final = b"SQLite format 3\0"
BATCH_ROWS: Final = 32_768
MAX_TEXT: Final = 65_536
"""Characters of one text that are read."""
MAX_ROWS: Final = 1_000_000
"""Of a table that is read row by row."""
STATEMENT_S: Final = 60.0
_TWO_READERS_ROWS: Final = 200_000
"""From how many rows on two connections share a table; SQLite reads without Python's lock."""
_HALVINGS: Final = 10
_MAX_GAPS: Final = 64
"""After this many damaged parts of a table the rest is not divided any further."""
_COPIED_BATCHES: Final = 8

_ERRORS: Final = (sqlite3.Error, OverflowError, UnicodeDecodeError)
"""What reading raises: SQLite's messages quote a damaged schema, and Python decodes them."""

Type = Literal["whole", "text", "real"]


def is_sqlite(head: bytes) -> bool:
    """Whether a file that begins so is SQLite's."""
    return head.startswith(HEADER)


@dataclass(slots=True, eq=False)
class SqliteFile:
    """An open file: its real tables, and what was wrong in them so far."""

    path: Path
    """As the user named it; messages name it so."""
    file: Path
    """The unpacked file."""
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Table -> its stored columns."""
    problems: list[str] = field(default_factory=list)
    dropped: int = 0
    _connection: sqlite3.Connection | None = None
    _until: float = 0.0

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there with these columns."""
        return table in self.tables and set(columns) <= set(self.tables[table])

    def rows(
        self, table: str, *columns: str, where: str = "", most: int = MAX_ROWS
    ) -> list[tuple[Any, ...]]:
        """The rows of a small table, or those ``where`` an expression over its columns holds.

        A column that the file lacks gives None.
        """
        if table not in self.tables:
            return []
        parts = [
            (
                f"CASE WHEN typeof({_name(each)}) = 'text'"
                f" THEN substr({_name(each)}, 1, {MAX_TEXT})"
                f" WHEN typeof({_name(each)}) <> 'blob' THEN {_name(each)} END"
            )
            if each in self.tables[table]
            else "NULL"
            for each in columns
        ]
        found: list[tuple[Any, ...]] = []
        chosen = f"WHERE {where}" if where else ""
        sql = f"SELECT {', '.join(parts)} FROM {_name(table)} {chosen} LIMIT {most + 1}"  # noqa: S608
        try:
            for row in self.execute(sql):
                found.append(row)  # noqa: PERF402 - what was read before an error is kept
        except _ERRORS as error:
            self.problems.append(f"{table}: only {len(found):,} rows could be read: {_line(error)}")
        if len(found) > MAX_ROWS:
            self.problems.append(f"{table}: more than {MAX_ROWS:,} rows; only these were read")
        return found[:most]

    def texts(self, table: str, number: str, text: str) -> dict[int, str]:
        """Number -> text, of a table of texts."""
        found: dict[int, str] = {}
        if not self.has(table, number, text):
            return found
        for batch in self.batches(table, {number: "whole", text: "text"}):
            keys = batch[number].to_pylist()
            for key, value in zip(keys, batch[text].to_pylist(), strict=True):
                if key is not None:
                    found[key] = decoded(value)
        return found

    def batches(
        self,
        table: str,
        columns: Mapping[str, Type],
        convert: Callable[[Columns], Columns] = dict,
        between: tuple[int, int] | None = None,
    ) -> list[Columns]:
        """Batches of rows after ``convert``, in the order of the file.

        ``convert`` runs in two threads at once. A column that the file lacks is left out.
        ``between`` are the first and the last row number.
        """
        stored = {name: kind for name, kind in columns.items() if self.has(table, name)}
        if not stored:
            return []
        return _Reading(self, table, stored, convert).run(between)

    def first_row(self, table: str, column: str, value: int) -> int | None:
        """The first row number from which on ``column`` has at least ``value``.

        For a column whose values rise from row to row; where they do not, the number is any. None
        where the table cannot be read.
        """
        if not self.has(table, column):
            return None
        try:
            low, high = (
                next(iter(self.execute(f"SELECT {each}(rowid) FROM {_name(table)}")))[0]  # noqa: S608
                for each in ("min", "max")
            )
            sql = f"SELECT rowid, {_name(column)} FROM {_name(table)} WHERE rowid >= ? LIMIT 1"  # noqa: S608
            while isinstance(low, int) and isinstance(high, int) and low < high:
                middle = low + (high - low) // 2
                row, found = next(iter(self.execute(sql, middle)))
                if isinstance(found, int) and found < value:
                    low = row + 1
                else:
                    high = middle
        except (*_ERRORS, StopIteration):
            return None
        return low if isinstance(low, int) else None

    def highest(self, table: str, column: str) -> int | None:
        """The highest whole number in a column; None where there is none."""
        if not self.has(table, column):
            return None
        try:
            sql = f"SELECT max({_name(column)}) FROM {_name(table)}"  # noqa: S608
            return first_number(row[0] for row in self.execute(sql))
        except _ERRORS:
            return None

    def events(
        self,
        table: str,
        columns: Mapping[str, Type],
        convert: Callable[[Columns], Columns],
        *,
        start: str = "start",
        end: str = "end",
        open_ended: bool = False,
    ) -> list[Columns]:
        """Like :meth:`batches`, of rows that have times; all others are dropped and counted.

        ``open_ended``: the end may be null.
        """
        if not self.has(table, start, end):
            if table in self.tables:
                self.problems.append(f"{table} is left out: it has no columns {start} and {end}")
            return []
        counts = {"that end before they start": 0, "without usable times": 0}

        def checked(batch: Columns) -> Columns:
            kept, backwards, unusable = _timed(batch, start, end, open_ended)
            counts["that end before they start"] += backwards
            counts["without usable times"] += unusable
            return convert(kept)

        found = self.batches(table, {start: "whole", end: "whole", **columns}, checked)
        for words, count in counts.items():
            if count:
                self.dropped += count
                self.problems.append(f"{table}: left out {count:,} events {words}")
        return found

    def connect(self) -> sqlite3.Connection:
        """Open the file for :meth:`execute`; whoever calls it closes the connection."""
        self._connection = sqlite3.connect(self.uri, uri=True)
        self._connection.text_factory = decoded
        self._connection.set_progress_handler(lambda: time.monotonic() > self._until, 100_000)
        return self._connection

    def execute(self, sql: str, *values: int) -> Iterator[tuple[Any, ...]]:
        """The rows of our own statement; one that takes longer than STATEMENT_S ends with an error.

        Raises sqlite3.Error, OverflowError or UnicodeDecodeError.
        """
        assert self._connection is not None  # noqa: S101 - connect() sets it
        self._until = time.monotonic() + STATEMENT_S
        with closing(self._connection.execute(sql, values)) as cursor:
            yield from cursor

    @property
    def uri(self) -> str:
        """What SQLite opens: the file as it is now, without locks, and never written."""
        return f"file:{quote(str(self.file.absolute()))}?mode=ro&immutable=1"


@contextmanager
def opened(path: Path) -> Iterator[SqliteFile]:
    """The file, unpacked where it is gzip. Raises FormatError, with one line that says why."""
    with ExitStack() as stack:
        file = path
        try:
            with path.open("rb") as stream:
                packed = stream.read(2) == b"\x1f\x8b"
            if packed:
                file = _unpacked(path, stack.enter_context(Scratch("trace")))
            _check_whole(path, file)
            found = SqliteFile(path, file)
            if not packed and (wal := Path(f"{path}-wal")).exists() and wal.stat().st_size:
                found.problems.append(
                    f"{printable(wal.name)} has changes that are not read: open and close"
                    " the file with sqlite3 first"
                )
            stack.enter_context(closing(found.connect()))
            _read_schema(found)
        except (OSError, EOFError) as error:
            raise FormatError(f"{path}: cannot be read: {_line(error)}") from error
        except _ERRORS as error:
            raise FormatError(f"{path}: SQLite cannot read this file: {_line(error)}") from error
        yield found


class _Damaged(Exception):
    """SQLite could not go on in this part of a table."""


class _OtherTypes(Exception):
    """A column has values of several types."""


class _Reading:
    """One table, read once."""

    def __init__(
        self,
        file: SqliteFile,
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
            sql = f"SELECT {which}({number}) FROM {_name(self._table)}"  # noqa: S608
            try:
                ends.append(next(iter(self._file.execute(sql)))[0])
            except _ERRORS as error:
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
        sql = f"SELECT {parts} FROM {_name(self._table)}"  # noqa: S608
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
        return _Damaged(_line(error))

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
    column = _name(name)
    if kind == "text":
        text = f"CASE WHEN typeof({column}) = 'text' THEN substr({column}, 1, {MAX_TEXT})"
        return f"CAST({text} ELSE '' END AS BLOB)"
    if kind == "real":
        return f"CASE WHEN typeof({column}) IN ('real', 'integer') THEN {column} * 1.0 END"
    return f"CASE WHEN typeof({column}) = 'integer' THEN {column} END" if checked else column


def _timed(batch: Columns, start: str, end: str, open_ended: bool) -> tuple[Columns, int, int]:
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


def _unpacked(path: Path, folder: Path) -> Path:
    """The file that a gzip holds, up to a limit: a small file can hold terabytes."""
    most = min(most_unpacked(path), shutil.disk_usage(folder).free * 9 // 10)
    file = folder / "capture.sqlite"
    size = 0
    try:
        with gzip.open(path) as packed, file.open("wb") as out:
            while chunk := packed.read(1 << 20):
                size += len(chunk)
                check_unpacked(path, size, most)
                out.write(chunk)
    except (EOFError, zlib.error) as error:
        raise FormatError(f"{path}: the gzip breaks off: copy it again") from error
    return file


def _check_whole(path: Path, file: Path) -> None:
    """Raise FormatError for a file that is not SQLite, or shorter than its header says."""
    with file.open("rb") as stream:
        head = stream.read(100)
    if not is_sqlite(head):
        raise FormatError(f"{path}: not an SQLite file")
    size = file.stat().st_size
    page = int.from_bytes(head[16:18], "big")
    stated = (65_536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    # the number of pages counts where both change counters agree (sqlite.org/fileformat2.html)
    if len(head) < 100 or (head[24:28] == head[92:96] and size < stated):
        raise FormatError(
            f"{path}: breaks off after {size:,} of {stated:,} bytes: copy or export it again"
        )


def _read_schema(found: SqliteFile) -> None:
    for pragma in ("trusted_schema = OFF", "query_only = ON"):
        list(found.execute(f"PRAGMA {pragma}"))
    encoding = [row[0] for row in found.execute("PRAGMA encoding")]
    if encoding != ["UTF-8"]:
        raise FormatError(f"{found.path}: its texts are in {encoding[0]}, which no profiler writes")
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
    names = [row[0] for row in itertools.islice(found.execute(sql), 10_000)]
    for name in names:
        if isinstance(name, str) and not name.startswith("sqlite_"):
            columns = [row[1] for row in found.execute(f"PRAGMA table_info({_name(name)})")]
            found.tables[name] = tuple(columns)


def _name(name: str) -> str:
    """A name between quotes."""
    return '"' + name.replace('"', '""') + '"'


def _line(error: BaseException) -> str:
    """What SQLite or ADBC says, on one line."""
    text = str(error).partition("\nquery:")[0]
    return one_line(text)[:300] or type(error).__name__


def all_whole(*values: object) -> bool:
    """Whether all are whole numbers."""
    return all(isinstance(each, int) for each in values)


def first_number(values: Iterable[object]) -> int | None:
    """The first whole number among ``values``."""
    return next((each for each in values if isinstance(each, int)), None)


def wholes(*names: str) -> dict[str, Type]:
    """Columns of whole numbers, for :meth:`SqliteFile.batches`."""
    return dict.fromkeys(names, "whole")
