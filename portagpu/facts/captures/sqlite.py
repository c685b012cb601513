"""SQLite files of profilers, read as untrusted: only stored columns of real tables, to Arrow.

A view, a virtual table, a trigger and a generated column are SQL of whoever wrote the file; none of
them is run. A value of another type than its column should have is as good as none. What a damaged
page holds is counted as lost, and the rest is read.
"""

from __future__ import annotations

import gzip
import itertools
import shutil
import sqlite3
import time
import zlib
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from portagpu.base.files import Scratch
from portagpu.base.packed import ZSTD, zstd_file
from portagpu.base.text import printable
from portagpu.facts.captures.columns import decoded
from portagpu.facts.captures.model import check_unpacked, most_unpacked
from portagpu.facts.captures.sqlite_batches import (
    ERRORS,
    MAX_TEXT,
    Reading,
    Type,
    line_of,
    quoted,
    timed,
)
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from portagpu.facts.captures.columns import Columns

HEADER: Final = b"SQLite format 3\0"
MAX_ROWS: Final = 1_000_000
"""Of a table that is read row by row."""
STATEMENT_S: Final = 60.0


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
                f"CASE WHEN typeof({quoted(each)}) = 'text'"
                f" THEN substr({quoted(each)}, 1, {MAX_TEXT})"
                f" WHEN typeof({quoted(each)}) <> 'blob' THEN {quoted(each)} END"
            )
            if each in self.tables[table]
            else "NULL"
            for each in columns
        ]
        found: list[tuple[Any, ...]] = []
        chosen = f"WHERE {where}" if where else ""
        sql = f"SELECT {', '.join(parts)} FROM {quoted(table)} {chosen} LIMIT {most + 1}"  # noqa: S608
        try:
            for row in self.execute(sql):
                found.append(row)  # noqa: PERF402 - what was read before an error is kept
        except ERRORS as error:
            self.problems.append(
                f"{table}: only {len(found):,} rows could be read: {line_of(error)}"
            )
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
        return Reading(self, table, stored, convert).run(between)

    def first_row(self, table: str, column: str, value: int) -> int | None:
        """The first row number from which on ``column`` has at least ``value``.

        For a column whose values rise from row to row; where they do not, the number is any. None
        where the table cannot be read.
        """
        if not self.has(table, column):
            return None
        try:
            low, high = (
                next(iter(self.execute(f"SELECT {each}(rowid) FROM {quoted(table)}")))[0]  # noqa: S608
                for each in ("min", "max")
            )
            sql = f"SELECT rowid, {quoted(column)} FROM {quoted(table)} WHERE rowid >= ? LIMIT 1"  # noqa: S608
            while isinstance(low, int) and isinstance(high, int) and low < high:
                middle = low + (high - low) // 2
                row, found = next(iter(self.execute(sql, middle)))
                if isinstance(found, int) and found < value:
                    low = row + 1
                else:
                    high = middle
        except (*ERRORS, StopIteration):
            return None
        return low if isinstance(low, int) else None

    def highest(self, table: str, column: str) -> int | None:
        """The highest whole number in a column; None where there is none."""
        if not self.has(table, column):
            return None
        try:
            sql = f"SELECT max({quoted(column)}) FROM {quoted(table)}"  # noqa: S608
            return first_number(row[0] for row in self.execute(sql))
        except ERRORS:
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
            kept, backwards, unusable = timed(batch, start, end, open_ended)
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
    """The file, unpacked where it is gzip or zstd. Raises FormatError, saying why in a line."""
    with ExitStack() as stack:
        file = path
        try:
            with path.open("rb") as stream:
                head = stream.read(4)
            packed = head[:2] == b"\x1f\x8b" or head == ZSTD
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
            raise FormatError(f"{path}: cannot be read: {line_of(error)}") from error
        except ERRORS as error:
            raise FormatError(f"{path}: SQLite cannot read this file: {line_of(error)}") from error
        yield found


def _unpacked(path: Path, folder: Path) -> Path:
    """The file that a gzip or zstd holds, up to a limit: a small file can hold terabytes."""
    most = min(most_unpacked(path), shutil.disk_usage(folder).free * 9 // 10)
    file = folder / "capture.sqlite"
    size = 0
    try:
        with path.open("rb") as plain, file.open("wb") as out:
            is_zstd = plain.peek(4)[:4] == ZSTD
            with zstd_file(plain) if is_zstd else gzip.GzipFile(fileobj=plain) as packed:
                while chunk := packed.read(1 << 20):
                    size += len(chunk)
                    check_unpacked(path, size, most)
                    out.write(chunk)
    except (EOFError, zlib.error) as error:
        raise FormatError(f"{path}: the gzip breaks off: copy it again") from error
    except OSError as error:
        if "zstd" not in str(error):
            raise
        raise FormatError(f"{path}: {error}: copy it again") from error
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
            columns = [row[1] for row in found.execute(f"PRAGMA table_info({quoted(name)})")]
            found.tables[name] = tuple(columns)


def all_whole(*values: object) -> bool:
    """Whether all are whole numbers."""
    return all(isinstance(each, int) for each in values)


def first_number(values: Iterable[object]) -> int | None:
    """The first whole number among ``values``."""
    return next((each for each in values if isinstance(each, int)), None)


def wholes(*names: str) -> dict[str, Type]:
    """Columns of whole numbers, for :meth:`SqliteFile.batches`."""
    return dict.fromkeys(names, "whole")
