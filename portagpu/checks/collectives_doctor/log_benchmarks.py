"""The tables of nccl-tests and rccl-tests in a log: wrong values, and a table without a row."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.base.units import count
from portagpu.facts.nccl_tests.tables import read_tables
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.facts.nccl_tests.model import PerfTable

_HEAD: Final = "(GB/s)"
"""What the last line of such a table's head ends with."""
_AFTER_HEAD: Final = re.compile(
    r"\d{1,18} {2,20}\d{1,18} {2,20}[a-z]\w{2,15} |Avg bus bandwidth|Out of bounds"
)
"""A row, or what follows the table."""
_END: Final = re.compile(r"\bOut of bounds values {0,6}: {0,4}(?P<count>\d{1,18})\b")
_MAX_LENGTH: Final = 16 << 20
"""Characters: a longer log has its table's last lines read alone."""


def is_open(text: str) -> bool:
    """Whether the last table of a benchmark has a head, no row and no end."""
    start = text.rfind(_HEAD)
    return start >= 0 and _AFTER_HEAD.search(text, start) is None


def wrong_values(text: str) -> tuple[int, tuple[str, ...]]:
    """How many tables a log has, and what each says that got wrong values."""
    if "busbw" not in text and "Out of bounds values" not in text:
        return 0, ()
    ends = [int(found["count"]) for found in _END.finditer(text)]
    try:
        tables = read_tables(text) if "busbw" in text and len(text) <= _MAX_LENGTH else ()
    except FormatError:
        tables = ()
    said = [words for table in tables if (words := _wrong(table))]
    if not said:
        said = [f"its last line counts {count(each, 'wrong value')}" for each in ends if each]
    return max(len(tables), len(ends)), tuple(said)


def _wrong(table: PerfTable) -> str:
    places = list(_wrong_places(table))
    if not places:
        return ""
    more = f", and {count(len(places) - 1, 'more place')}" if len(places) > 1 else ""
    total = f"; its last line counts {table.out_of_bounds}" if table.out_of_bounds else ""
    return f"{places[0]}{more}{total}"


def _wrong_places(table: PerfTable) -> Iterator[str]:
    for row in table.rows:
        for place, half in (("out of place", row.out_of_place), ("in place", row.in_place)):
            if half is not None and (half.wrong or half.beyond):
                many = (
                    count(half.wrong, "wrong value") if half.wrong else "a deviation out of bounds"
                )
                yield f"{many} {place} at {row.size_bytes} bytes"
