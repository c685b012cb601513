"""Tables in the text of profilers: CSV with other text around, columns of blanks or bars, numbers.

A file is untrusted: lines without an end, quotes that never close, bytes that are not UTF-8 and
numbers in any notation are read as far as they go.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import math
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from portagpu.base.packed import ZSTD, zstd_file
from portagpu.base.text import one_line
from portagpu.facts.captures.columns import FARTHEST_NS
from portagpu.facts.captures.model import check_unpacked, most_unpacked
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import IO

MAX_LINE: Final = 1 << 18
_MIN_LINE: Final = 64
"""What a line of a gzip counts at least: blank ones take no bytes, but time."""
BATCH_ROWS: Final = 65_536
_BATCH_CELLS: Final = 1 << 22
_NUMBER: Final = re.compile(r"[+-]?[\d.,' \u00a0\u202f]*\d[\d.,]*(?:[eE][+-]?\d+)?%?")
_UNITS: Final = {
    "ns": 1,
    "nsec": 1,
    "nsecond": 1,
    "us": 10**3,
    "usec": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "msec": 10**6,
    "s": 10**9,
    "sec": 10**9,
}
_SIZES: Final = {
    "b": 1,
    "bytes": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, unpacked where it is gzip or zstd. Raises FormatError where it cannot be opened."""
    try:
        file = path.open("rb")
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from error
    with file:
        if file.peek(2)[:2] == b"\x1f\x8b":
            with gzip.open(file) as unpacked:
                yield unpacked  # type: ignore[misc]
        elif file.peek(4)[:4] == ZSTD:
            with zstd_file(file) as unpacked_zstd:
                yield unpacked_zstd
        else:
            yield file


def lines(path: Path, problems: list[str]) -> Iterator[str]:
    """The lines of a file; what follows an unreadable place is left out, with a problem."""
    with opened(path) as file:
        most = None if isinstance(getattr(file, "raw", None), io.FileIO) else most_unpacked(path)
        size = 0
        try:
            is_wide = file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # type: ignore[attr-defined]
            encoding = "utf-16" if is_wide else "utf-8-sig"
            text = io.TextIOWrapper(file, encoding, "replace", newline="\n")
            while line := text.readline(MAX_LINE):
                yield line.replace("\0", "\ufffd")
                if most is not None:
                    size += max(len(line), _MIN_LINE)
                    check_unpacked(path, size, most)
        except FormatError:
            raise
        except (OSError, EOFError, ValueError) as error:
            problems.append(f"{path} cannot be read to its end: {one_line(str(error))}")


def rows(texts: Iterable[str], problems: list[str], delimiter: str = ",") -> Iterator[list[str]]:
    """The rows of CSV; a row that cannot be taken apart is left out, with a problem."""
    reader, wrong = csv.reader(texts, delimiter=delimiter), 0
    while True:
        try:
            yield next(reader)
        except StopIteration:
            break
        except csv.Error:
            wrong += 1
    if wrong:
        problems.append(f"rows that are not CSV: {wrong:,} are left out")


def delimiter_of(text: str) -> str:
    """What separates the columns of a header: a comma, a semicolon or a tab."""
    return max(",;\t", key=text.count)


def batches(found: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Rows in lists of up to BATCH_ROWS, fewer where they have thousands of cells."""
    batch: list[list[str]] = []
    cells = 0
    for each in found:
        batch.append(each)
        cells += len(each)
        if len(batch) == BATCH_ROWS or cells > _BATCH_CELLS:
            yield batch
            batch, cells = [], 0
    if batch:
        yield batch


def column(batch: Sequence[Sequence[str]], at: int | None) -> list[str]:
    """One column of a batch; empty where a row is too short or the header lacks it."""
    if at is None:
        return [""] * len(batch)
    return [each[at] if at < len(each) else "" for each in batch]


def decimal_mark(cells: Iterable[str]) -> str:
    """Which of "." and "," is before the decimals in these numbers."""
    likely = "."
    for cell in cells:
        text = cell.strip().rstrip("%").strip()
        if not _is_number(text):
            continue
        last = max(text.rfind("."), text.rfind(","))
        if last < 0:
            continue
        mark, other = text[last], "," if text[last] == "." else "."
        if other in text:
            return mark
        if text.count(mark) > 1:
            return other
        digits = re.match(r"\d*", text[last + 1 :])
        if digits and len(digits[0]) != 3:
            likely = mark
    return likely


def _is_number(text: str) -> bool:
    # a longer one is on no clock, and would keep the pattern busy
    return len(text) < 100 and bool(_NUMBER.fullmatch(text))


def number(text: str, mark: str = ".") -> float | None:
    """A number in the notation whose decimals follow ``mark``; None for anything else."""
    text = text.strip().rstrip("%").strip()
    if not _is_number(text):
        return None
    other = "," if mark == "." else "."
    plain = re.sub(rf"[{re.escape(other)}' \u00a0\u202f]", "", text).replace(mark, ".")
    try:
        found = float(plain)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def whole_number(text: str, mark: str = ".", scale: int = 1) -> int | None:
    """A number times ``scale``, rounded; exact where it has no decimals. None if it is none."""
    text = text.strip()
    if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20:
        found = int(text) * scale
        return found if -FARTHEST_NS * 2 <= found < FARTHEST_NS * 2 else None
    if text[:2].lower() == "0x":
        try:
            return int(text[:18], 16)
        except ValueError:
            return None
    value = number(text, mark)
    if value is None or abs(value * scale) >= FARTHEST_NS * 2:
        return None
    return round(value * scale)


def times(
    batch: Sequence[Sequence[str]], start: int, end: int
) -> tuple[list[int], list[int], list[bool]]:
    """Starts and ends of a batch, and which rows have possible ones; an impossible pair is 0."""
    # a time with an exponent was rounded by a spreadsheet, and says nothing any more
    starts = [whole_number(each) if each.isdecimal() else None for each in column(batch, start)]
    ends = [whole_number(each) if each.isdecimal() else None for each in column(batch, end)]
    good = [
        first is not None and last is not None and -FARTHEST_NS < first <= last < FARTHEST_NS
        for first, last in zip(starts, ends, strict=True)
    ]
    return (
        [each or 0 if fine else 0 for each, fine in zip(starts, good, strict=True)],
        [each or 0 if fine else 0 for each, fine in zip(ends, good, strict=True)],
        good,
    )


def time_scale(heading: str) -> int | None:
    """Nanoseconds in the unit that a heading names: "Total Time (ns)"; None if it names none."""
    return _UNITS.get(_unit(heading))


def size_scale(heading: str) -> int | None:
    """Bytes in the unit that a heading names: "Bytes (MB)"; None if it names none."""
    return _SIZES.get(_unit(heading))


def _unit(heading: str) -> str:
    """What stands in the brackets at its end, in lower case."""
    found = re.search(r"[(\[]\s*([^()\[\]\s]+)\s*[)\]]\s*$", heading)
    return found[1].lower() if found else ""


def kept(values: Sequence[object], good: Sequence[bool]) -> list[object]:
    """The values of the rows that are good."""
    return [value for value, fine in zip(values, good, strict=True) if fine]


def split_blocks(
    found: Iterable[list[str]], is_header: Callable[[list[str]], bool]
) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Tables one after another in one CSV: each header with the rows after it."""
    source = iter(found)
    pending: list[list[str]] = []

    def body() -> Iterator[list[str]]:
        for row in source:
            if is_header(row):
                pending.append(row)
                return
            yield row

    for row in source:
        if not is_header(row):
            continue
        pending.append(row)
        while pending:
            header = pending.pop()
            table = body()
            yield header, table
            for _ in table:
                pass
