"""The summary that ``nvprof`` prints, as text and as CSV (``--csv``), between other lines.

Source: docs.nvidia.com, Profiler User's Guide of CUDA 12, "nvprof", summary mode. One row is the
sum of one name. Text has a unit at each time; CSV has a row of units below its heading. Versions
before CUDA 9 have no column "Type", and put the calls of the API below a heading of their own.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.columns import Rows
from portagpu.facts.captures.model import TOTAL_COLUMNS, Capture, Source
from portagpu.facts.captures.text_tables import lines, rows, time_scale
from portagpu.facts.readings.model import FormatError
from portagpu_cuda.captures.nsys_stats import operation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIND: Final = "nvprof summary"
_TITLES: Final = ("Time(%)", "Time", "Calls", "Avg", "Min", "Max", "Name")
_TEXT: Final = re.compile(r"[ \t]*(?:Type[ \t]+)?" + r"[ \t]+".join(map(re.escape, _TITLES)))
_CSV: Final = re.compile('"?(?:Type"?,"?)?' + '"?,"?'.join(map(re.escape, _TITLES)))
_HEADING: Final = re.compile(
    rb"^(?:" + _TEXT.pattern.encode() + rb"|" + _CSV.pattern.encode() + rb")", re.MULTILINE
)
_TIME: Final = r"(\d{1,15}(?:\.\d{1,9})?)(ns|us|ms|s)"
_ROW: Final = re.compile(
    r"[ \t]*(?:(?P<type>[A-Z][\w ()]{2,40}):)?[ \t]+[\d.]{1,8}%[ \t]+"
    rf"(?P<total>{_TIME})[ \t]+(?P<calls>\d{{1,18}})[ \t]+"
    rf"(?P<mean>{_TIME})[ \t]+(?P<min>{_TIME})[ \t]+(?P<max>{_TIME})[ \t]+(?P<name>\S.*)"
)
_BEGUN: Final = re.compile(r"[ \t]*(?:[A-Z][\w ()]{2,40}:)?[ \t]+[\d.]{1,8}%?(?:[ \t]|$)")
_COLUMNS: Final = {"total": "total_ns", "mean": "mean_ns", "min": "min_ns", "max": "max_ns"}


def matches(head: bytes, path: Path) -> bool:
    """Whether a line of it is the heading of nvprof's summary."""
    return _HEADING.search(head) is not None


def read(path: Path) -> Capture:
    """The totals of all summaries in the file. Raises FormatError without a row."""
    problems: list[str] = []
    totals, dropped = Rows(TOTAL_COLUMNS), 0
    for kind, said in _summary(path, problems):
        if said is None:
            dropped += 1
            continue
        of_device = "api" if kind.startswith("API") else "kernel"
        name: str = said["name"]
        if kind and not kind.startswith(("API", "GPU")):
            # sums of OpenACC and OpenMP have those of the device in them
            continue
        if name.startswith("[CUDA mem"):
            of_device, name = operation(name)
        times = {column: _nanoseconds(said[each]) for each, column in _COLUMNS.items()}
        whole = {c: float(v) if c == "mean_ns" else round(v) for c, v in times.items()}
        totals.add(
            {"kind": [of_device], "name": [name], "calls": [int(said["calls"])]}
            | {column: [value] for column, value in whole.items()}
        )
    if not len(totals):
        raise FormatError(f"{path}: nvprof's summary has no row: give its whole output")
    if dropped:
        problems.append(f"lines that cannot be read: {dropped:,} are left out")
    return Capture(
        source=Source(str(path), KIND, "nvprof"),
        totals=totals.table(),
        problems=tuple(problems),
        dropped=dropped,
    )


def _summary(path: Path, problems: list[str]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The type of each row and what it says; None for one that cannot be read."""
    kind, form, heading = "", "", ""
    units: list[str] = []
    for line in lines(path, problems):
        text = line.rstrip("\r\n")
        if _TEXT.match(text):
            kind, form = heading, "text"
        elif _CSV.match(text):
            kind, form, units = heading, "csv", []
        elif text.startswith("=="):
            # the calls of the API stand below "==PID== API calls:" in old versions
            heading, form = "API calls" if "API calls" in text else "", ""
        elif form == "text" and (found := _ROW.match(text)) is not None:
            kind = found["type"] or kind
            yield kind, found.groupdict()
        elif form == "text" and _BEGUN.match(text):
            yield kind, None
        elif form == "csv" and text.strip():
            cells = next(rows([text], problems), [])
            if not units:
                units = cells[-7:]
            elif len(cells) in (7, 8):
                yield (cells[0] if len(cells) == 8 else kind), _of_csv(cells[-7:], units)
            else:
                yield kind, None


def _of_csv(cells: list[str], units: list[str]) -> dict[str, Any] | None:
    found = {"calls": cells[2], "name": cells[6]}
    for each, place in (("total", 1), ("mean", 3), ("min", 4), ("max", 5)):
        found[each] = cells[place] + (units[place] if place < len(units) else "")
        if re.fullmatch(_TIME, found[each]) is None:
            return None
    return found if found["calls"].isdecimal() and found["name"] else None


def _nanoseconds(text: str) -> Decimal:
    found = re.fullmatch(_TIME, text)
    scale = None if found is None else time_scale(f"({found[2]})")
    return Decimal(0) if found is None or scale is None else Decimal(found[1]) * scale
