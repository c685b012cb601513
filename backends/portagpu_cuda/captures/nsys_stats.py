"""What ``nsys stats`` prints: CSV or text, several reports in one file, other lines around them.

Source: docs.nvidia.com, Nsight Systems User Guide, "Post-Collection Analysis", statistical reports
cuda_gpu_kern_sum, cuda_gpu_mem_time_sum, cuda_gpu_mem_size_sum, cuda_api_sum, nvtx_sum and
cuda_gpu_trace. Units stand in the headings. Numbers are read in the notation of any locale. One row
is the sum of one name, of cuda_gpu_trace one event; each begins with a number. Other lines are the
tool's progress, and no rows.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.facts.captures.columns import FARTHEST_NS, Rows
from portagpu.facts.captures.model import (
    TOTAL_COLUMNS,
    Capture,
    CapturedDevice,
    Kind,
    Source,
    table,
)
from portagpu.facts.captures.text_tables import (
    decimal_mark,
    delimiter_of,
    lines,
    number,
    size_scale,
    time_scale,
    whole_number,
)
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

KIND: Final = "nsys stats"
_REPORT: Final = re.compile(r"/reports/(\w+)\.py|\((\w+_(?:sum|trace)\w*)\):\s*$")
_FIRST: Final = re.compile(
    rb'^[ \t]*+"?(?:Time \(%\)|Start \(\w+\)|Total \(\w+\))"?\s*[,;\t ]', re.MULTILINE
)
_KINDS: Final[tuple[tuple[str, Kind], ...]] = (
    ("cuda_gpu_kern", "kernel"),
    ("gpukernsum", "kernel"),
    ("cuda_gpu_mem_time", "copy"),
    ("gpumemtimesum", "copy"),
    ("cuda_gpu_mem_size", "copy"),
    ("gpumemsizesum", "copy"),
    ("cuda_api", "api"),
    ("cudaapisum", "api"),
    ("nvtx", "range"),
)
_CATEGORIES: Final[dict[str, Kind]] = {
    "CUDA_KERNEL": "kernel",
    "MEMORY_OPER": "copy",
    "CUDA_API": "api",
}
"""Of cuda_gpu_sum and cuda_api_gpu_sum, which have what other reports have, in one table."""
_SHAPES: Final = re.compile(r"((?:\d+\s+){3})((?:\d+\s+){3})(\S.*)")
_DIRECTIONS: Final = {
    "HOST-TO-DEVICE": "HtoD",
    "DEVICE-TO-HOST": "DtoH",
    "DEVICE-TO-DEVICE": "DtoD",
    "PEER-TO-PEER": "PtoP",
    "HOST-TO-HOST": "HtoH",
    "HTOD": "HtoD",
    "DTOH": "DtoH",
    "DTOD": "DtoD",
    "PTOP": "PtoP",
}
_CALL: Final = re.compile(r"cuda[A-Z]|cu[A-Z]")
_ROW: Final = re.compile(r'[\s"]*[-+]?[\d.,]')
_BATCH: Final = 4096


def matches(head: bytes, path: Path) -> bool:
    """Whether a line of it is the header of a report of ``nsys stats``."""
    return bool(_FIRST.search(head)) and (
        b"Name" in head or b"Operation" in head or b"Range" in head
    )


@dataclass(frozen=True, slots=True)
class _Report:
    """One table: its columns and rows as texts."""

    name: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    mark: str | None = None


def read(path: Path) -> Capture:
    """The totals of all reports, and the events of cuda_gpu_trace. Raises FormatError."""
    state = _State()
    for report in _reports(path, state.problems):
        state.add(report)
    if not state.known:
        raise FormatError(f"{path}: has no report of nsys stats that is known here")
    if state.dropped:
        state.problems.append(f"lines that cannot be read: {state.dropped:,} are left out")
    empty: dict[str, list[int]] = {"start_ns": [], "end_ns": []}
    return Capture(
        source=Source(str(path), KIND, "nsys"),
        tables={k: r.table() if len(r) else table(empty) for k, r in state.events.items()},
        devices=tuple(
            CapturedDevice(index, vendor="nvidia", name=name)
            for index, name in sorted(state.devices.items())
        ),
        totals=state.totals.table() if len(state.totals) else None,
        problems=tuple(state.problems),
        dropped=state.dropped,
        details=state.details,
    )


def _reports(path: Path, problems: list[str]) -> Iterator[_Report]:
    """The reports of a file, in pieces of up to _BATCH rows."""
    name, report, delimiter, dashes = "", None, "", False
    for line in lines(path, problems):
        text = line.strip("\r\n")
        said = _REPORT.search(text)
        if said:
            if report and report.rows:
                yield report
            name, report = said[1] or said[2], None
            continue
        if _FIRST.match(text.encode("utf-8", "replace")):
            if report and report.rows:
                yield report
            best = delimiter_of(text)
            delimiter = best if text.count(best) >= 2 else ""
            report, dashes = _Report(name, _cells(text, delimiter, 0)), False
            continue
        if report is None or not text.strip():
            continue
        if set(text.strip()) <= {"-", " "} and not dashes:
            dashes = True
            continue
        if not _ROW.match(text):
            continue
        shapes = "" if delimiter or "GridXYZ" not in report.header else "GridXYZ"
        cells = _cells(
            text, delimiter, report.header.index(shapes) + 1 if shapes else len(report.header)
        )
        if shapes and (found := _SHAPES.fullmatch(cells[-1])) is not None:
            # the three numbers of a grid stand apart like columns
            cells = [
                *cells[:-1],
                *(" ".join(each.split()) for each in found.groups()[:2]),
                found[3],
            ]
        report.rows.append(cells)
        if len(report.rows) == _BATCH:
            yield report
            report = _Report(name, report.header)
    if report and report.rows:
        yield report


def _cells(text: str, delimiter: str, count: int) -> list[str]:
    if delimiter:
        try:
            return [each.strip() for each in next(csv.reader([text], delimiter=delimiter), [])]
        except csv.Error:
            return []
    return re.split(r"\s{2,}", text.strip(), maxsplit=max(count - 1, 0))


@dataclass(slots=True)
class _State:
    totals: Rows = field(default_factory=lambda: Rows(TOTAL_COLUMNS))
    events: dict[Kind, Rows] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    known: bool = False
    owners: dict[Kind, str] = field(default_factory=dict)
    """Kind -> the report that its times are of."""

    def _is_again(self, kind: Kind, report: str) -> bool:
        """Whether another report has given the times of this kind, which counts once."""
        kind = "copy" if kind == "set" else kind
        return bool(report) and self.owners.setdefault(kind, report) != report

    def add(self, report: _Report) -> None:
        """Read one table."""
        at = {_key(heading): place for place, heading in enumerate(report.header)}
        whole = [row for row in report.rows if len(row) == len(report.header)]
        self.dropped += len(report.rows) - len(whole)
        numbers = (cell for row in whole[:200] for cell in row[:-1])
        mark = report.mark or decimal_mark(numbers)
        if "start" in at and "duration" in at and "corrid" in at and "device" in at:
            self._trace(report.header, at, whole, mark)
        elif "name" in at or "operation" in at or "range" in at:
            self._sums(report, at, whole, mark)
        else:
            self.details[f"left out: {excerpt(report.name or 'a report')}"] = str(len(whole))

    def _sums(self, report: _Report, at: dict[str, int], rows: list[list[str]], mark: str) -> None:
        kind = _kind(report.name, at)
        named = at.get("operation", at.get("range", at.get("name", 0)))
        calls = next((at[each] for each in ("instances", "num calls", "count") if each in at), None)
        sizes = "total" in at and "total time" not in at
        columns = {
            "total_ns": at.get("total time"),
            "mean_ns": at.get("avg"),
            "median_ns": at.get("med"),
            "min_ns": at.get("min"),
            "max_ns": at.get("max"),
            "stddev_ns": at.get("stddev"),
        }
        if sizes:
            columns = {"bytes": at.get("total")}
        if calls is None or columns.get("total_ns", columns.get("bytes")) is None:
            self.details[f"left out: {excerpt(report.name or 'a report')}"] = str(len(rows))
            return
        for row in rows:
            name = row[named]
            its_kind = _CATEGORIES.get(row[at["category"]]) if "category" in at else kind
            its_kind = its_kind or ("api" if _CALL.match(name) else None)
            if its_kind is None:
                before = int(self.details.get("left out: other calls", "0"))
                self.details["left out: other calls"] = str(before + 1)
                self.known = True
                continue
            if not sizes and its_kind != "range" and self._is_again(its_kind, report.name):
                again = f"left out: {excerpt(report.name)}, the same in another order"
                self.details[again] = str(int(self.details.get(again, "0")) + 1)
                continue
            if its_kind == "copy":
                its_kind, name = operation(name)
            found: dict[str, Any] = {"calls": whole_number(row[calls], mark)}
            for column, place in columns.items():
                if place is None:
                    continue
                heading = report.header[place]
                scale = (size_scale(heading) if sizes else time_scale(heading)) or 1
                if TOTAL_COLUMNS[column] == "int64":
                    found[column] = whole_number(row[place], mark, scale)
                else:
                    value = number(row[place], mark)
                    found[column] = None if value is None else value * scale
            total = found.get("bytes" if sizes else "total_ns")
            if found["calls"] is None or total is None or total < 0:
                self.dropped += 1
                continue
            self.totals.add(
                {"kind": [its_kind], "name": [name], **{k: [v] for k, v in found.items()}}
            )
            self.known = True

    def _trace(
        self, header: Sequence[str], at: dict[str, int], rows: list[list[str]], mark: str
    ) -> None:
        """Events of cuda_gpu_trace: kernels have a grid, copies and sets have bytes."""
        parts: dict[Kind, list[dict[str, Any]]] = {"kernel": [], "copy": [], "set": []}
        scale = {key: time_scale(header[at[key]]) or 1 for key in ("start", "duration")}
        size = size_scale(header[at["bytes"]]) or 1 if "bytes" in at else 1
        for row in rows:

            def cell(key: str, row: list[str] = row) -> str:
                return row[at[key]] if key in at else ""

            start = whole_number(cell("start"), mark, scale["start"])
            lasting = whole_number(cell("duration"), mark, scale["duration"])
            if (
                start is None
                or lasting is None
                or lasting < 0
                or abs(start) + lasting > FARTHEST_NS
            ):
                self.dropped += 1
                continue
            name = cell("name")
            kind: Kind = "kernel"
            event: dict[str, Any] = {"start_ns": start, "end_ns": start + lasting}
            if name.startswith("[CUDA mem"):
                kind, name = operation(name)
                event["bytes"] = whole_number(cell("bytes"), mark, size)
                event["copy_kind"] = name.partition(" ")[2] or None if kind == "copy" else None
            else:
                for axis in "xyz":
                    event[f"grid_{axis}"] = whole_number(cell(f"grd{axis}"), mark)
                    event[f"block_{axis}"] = whole_number(cell(f"blk{axis}"), mark)
                event["registers"] = whole_number(cell("reg/trd"), mark)
                shared = [
                    whole_number(cell(key), mark, size_scale(header[at[key]]) or 1)
                    for key in ("stcsmem", "dymsmem")
                    if key in at
                ]
                known = [each for each in shared if each is not None]
                event["shared_bytes"] = sum(known) if known else None
            device = re.search(r"\((\d{1,4})\)\s*$", cell("device"))
            index = int(device[1]) if device else whole_number(cell("device"), mark)
            event |= {"name": name, "device": index}
            event["stream"] = whole_number(cell("strm"), mark)
            event["correlation"] = whole_number(cell("corrid"), mark)
            if index is not None and 0 <= index < 4096:
                self.devices.setdefault(index, excerpt(re.sub(r"\(\d+\)\s*$", "", cell("device"))))
            parts[kind].append(event)
        self.known = True
        for kind, events in parts.items():
            collected = self.events.setdefault(kind, Rows())
            if events:
                collected.add({key: [each.get(key) for each in events] for key in events[0]})


def _key(heading: str) -> str:
    """ "Total Time (ns)" as "total time"; "Avg" as "avg"."""
    return re.split(r"[(\[]", heading, maxsplit=1)[0].strip().lower().removesuffix(":")


def _kind(report: str, at: dict[str, int]) -> Kind | None:
    """What a table of sums is of; None where the names of its lines say it."""
    for start, kind in _KINDS:
        if report.startswith(start):
            return kind
    if report:
        return None
    if "operation" in at:
        return "copy"
    if "range" in at or "style" in at:
        return "range"
    return "kernel" if "instances" in at else None


def operation(name: str) -> tuple[Kind, str]:
    """ "[CUDA memcpy Host-to-Device]" as a copy "Memcpy HtoD"; memsets are sets."""
    if "memset" in name.lower():
        return "set", "Memset"
    found = next((kind for words, kind in _DIRECTIONS.items() if words in name.upper()), "")
    return "copy", f"Memcpy {found}".strip()
