"""The tally that THAPI's ``iprof`` prints: tables with bars, between other lines.

The form is that of argonne-lcf/THAPI (README.md; xprof/tally.rb). A title names what a table is of:
calls of backends, operators of torch, marks of the program, or work on devices. One row is the sum
of one name; the row "Total" is of the whole table, and says what rows are missing. Tables of bytes
("Explicit memory traffic") are not read.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from portagpu.facts.captures.columns import FARTHEST_NS, Rows
from portagpu.facts.captures.model import TOTAL_COLUMNS, Capture, Kind, Source
from portagpu.facts.captures.text_tables import lines, time_scale
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from pathlib import Path

KIND: Final = "iprof tally"
_TITLE: Final = re.compile(r"[ \t]*([A-Z][\w ,]{2,120}?)[ \t]*\|[ \t]*\d{1,9} Hostnames?[ \t]*\|")
_HEADING: Final = re.compile(
    r"[ \t]*Name[ \t]*\|[ \t]*Time[ \t]*\|[ \t]*Time\(%\)[ \t]*\|[ \t]*Calls[ \t]*\|"
)
_HEADING_BYTES: Final = re.compile(_HEADING.pattern.encode())
_TIME: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ns|us|ms|s|min|h)")
_LONG: Final = {"min": 60 * 10**9, "h": 3600 * 10**9}
_COPY: Final = re.compile(r"(?i)memory_?copy|memcpy|EnqueueRead|EnqueueWrite|EnqueueCopy")
_SET: Final = re.compile(r"(?i)memory_?fill|memset|EnqueueFill")
_CUT: Final = re.compile(r"[ \t]*\[?\.\.\.\]?[ \t]*$")
_TIMES: Final = ("total_ns", "mean_ns", "min_ns", "max_ns")
_PLACES: Final = (1, 4, 5, 6)
"""Cells of a row: name, time, share, calls, mean, minimum, maximum, and perhaps failed calls."""
_NEAR: Final = 0.01


def matches(head: bytes, path: Path) -> bool:
    """Whether a line of it is the heading of such a table."""
    return _HEADING_BYTES.search(head) is not None


def read(path: Path) -> Capture:
    """The sums of all tables of times. Raises FormatError without a row."""
    problems: list[str] = []
    found, dropped = Rows(TOTAL_COLUMNS), 0
    kind: Kind = "api"
    title, on_device, whole = "", 0, 0
    in_rows = False
    for line in lines(path, problems):
        text = line.rstrip()
        if (named := _TITLE.match(text)) is not None:
            title, in_rows = named[1], False
            kind = _kind_of(title)
            continue
        if _HEADING.match(text):
            in_rows = True
            continue
        cells = [each.strip() for each in text.split("|")]
        if not in_rows or len(cells) < 2 or not cells[0]:
            # a blank line ends a table, or stands between the title and its heading
            in_rows = in_rows and (bool(text.strip()) and bool(_CUT.match(text)))
            continue
        values = [_nanoseconds(cells[at]) if at < len(cells) else None for at in _PLACES]
        is_device = kind == "kernel"
        if cells[0] == "Total":
            whole += round(values[0] or 0) if is_device else 0
            in_rows = False
        elif values[0] is None or len(cells) < 4 or not cells[3].isdecimal() or len(cells[3]) > 18:
            dropped += 1
        else:
            on_device += round(values[0]) if is_device else 0
            row = {"kind": [_on_device(cells[0]) if is_device else kind], "name": [cells[0]]}
            times = {
                name: [None if value is None else round(value)]
                for name, value in zip(_TIMES, values, strict=True)
            }
            found.add({**row, "calls": [int(cells[3])], **times})
    if not len(found):
        raise FormatError(f"{path}: iprof's tally has no whole row: give its output")
    if dropped:
        problems.append(f"lines that cannot be read: {dropped:,} are left out")
    if whole and abs(on_device - whole) > whole * _NEAR:
        problems.append(
            f"rows of devices have {on_device / whole:.1%} of the total that iprof states: the "
            "others are not in the table"
        )
    return Capture(
        source=Source(str(path), KIND, "iprof"),
        totals=found.table(),
        problems=tuple(problems),
        dropped=dropped,
    )


def _kind_of(title: str) -> Kind:
    if title.startswith("Device"):
        return "kernel"
    kinds: dict[str, Kind] = {"BACKEND_PYTORCH": "operator", "BACKEND_ITT": "range"}
    return kinds.get(title, "api")


def _on_device(name: str) -> Kind:
    if _SET.search(name):
        return "set"
    return "copy" if _COPY.search(name) else "kernel"


def _nanoseconds(text: str) -> Decimal | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    value = Decimal(found[1]) * (_LONG.get(found[2]) or time_scale(f"({found[2]})") or 1)
    return value if value < FARTHEST_NS else None
