"""The tables that ``rocprofv3 --summary`` and ``rocpd summary`` print: totals, no events.

Source: ROCm/rocm-systems, projects/rocprofiler-sdk/source/docs/data/summary.txt, and
amd/HPCTrainingExamples, Rocprofv3/rocpd/README.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.facts.captures.text_tables import decimal_mark, lines, time_scale
from portagpu_rocm.captures._rocprof import (
    Collected,
    kind_of_domain,
    total_values,
)

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.facts.captures.model import Capture, Kind

KIND: Final = "rocprofv3 summary"
_TITLE: Final = re.compile(r"(?:ROCPROFV3 )?([A-Z_ ]*)SUMMARY:")
_TITLE_BYTES: Final = re.compile(rb"^[ \t]*+(?:ROCPROFV3 )?[A-Z_ ]*SUMMARY:\s*$", re.MULTILINE)
_KINDS: Final[dict[str, Kind]] = {
    "KERNELS": "kernel",
    "MEMORY_COPIES": "copy",
    "HIP": "api",
    "HSA": "api",
    "MARKERS": "range",
}
_COLUMNS: Final = {
    "CALLS": "calls",
    "DURATION": "total_ns",
    "AVERAGE": "mean_ns",
    "MIN": "min_ns",
    "MAX": "max_ns",
    "STDDEV": "stddev_ns",
    "STD_DEV": "stddev_ns",
}


def matches(head: bytes, path: Path) -> bool:
    """Whether it has the title of such a table and the column of durations."""
    return bool(_TITLE_BYTES.search(head)) and b"DURATION (" in head


def read(path: Path) -> Capture:
    """The totals of each domain; the table of all of them together is not read a second time."""
    found = Collected(path)
    kind: Kind | None = None
    columns: dict[int, str] = {}
    scale, skipped, in_table = 1, 0, False
    for line in lines(path, found.problems):
        title = _TITLE.fullmatch(line.strip())
        if title:
            domain = title[1].strip(" _").replace(" ", "_")
            kind = _KINDS.get(domain) or kind_of_domain(domain)
            in_table, columns = kind is not None, {}
            found.known = found.known or in_table
            skipped += kind is None and domain not in ("", "ROCPROFV3")
            continue
        if not in_table or not line.strip() or set(line.strip()) <= set("|-+ "):
            continue
        cells = _cells(line, len(columns) and max(columns) + 1)
        if not columns:
            headings = [each.upper() for each in cells]
            columns = {
                number: _COLUMNS[first]
                for number, each in enumerate(headings)
                if (first := each.partition(" ")[0]) in _COLUMNS
            }
            unit = next((each for each in headings if each.startswith("DURATION")), "")
            scale = time_scale(unit) or 1
            continue
        if len(cells) <= max(columns):
            found.dropped += 1
            continue
        texts = {name: cells[number] for number, name in columns.items()}
        values = total_values(texts, scale, decimal_mark(texts.values()))
        found.add_total(kind, cells[0], values)
    if skipped:
        found.details["left out: other tables"] = str(skipped)
    return found.capture(KIND, "rocprofv3")


def _cells(line: str, count: int) -> list[str]:
    """The cells between bars; without bars the name and what follows it, by runs of blanks."""
    if line.lstrip().startswith("|"):
        return [each.strip() for each in line.strip().strip("|").split("|")]
    if not count:
        return re.split(r"\s{2,}", line.strip())
    return [each.strip() for each in line.strip().rsplit(maxsplit=count - 1)]
