"""What ``ncu --csv`` prints on the pages raw and details: metrics of kernels.

Source: docs.nvidia.com, Nsight Compute CLI, "Page" and "Comma Separated Values". On the page raw
the line after the header has units, and one row is one launch. On the page details one row is one
metric of a launch, or one rule, which has no metric; the columns of rules come last, and rows of
metrics may stop before them. Lines of the tool and of the program may stand before the header.

How long a launch took is one of these metrics; when it began is not there. So the times of kernels
are sums, and there are no events.
"""

from __future__ import annotations

import csv
import itertools
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.columns import Rows
from portagpu.facts.captures.model import (
    METRIC_COLUMNS,
    TOTAL_COLUMNS,
    Capture,
    CapturedDevice,
    Process,
    Source,
)
from portagpu.facts.captures.text_tables import (
    batches,
    decimal_mark,
    lines,
    number,
    rows,
    whole_number,
)
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

KIND: Final = "ncu CSV"
_COMMON: Final = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Kernel Time",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
    "Invocations",
)
_NEEDED: Final = {"ID", "Kernel Name"}
_DURATIONS: Final = (
    "gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max", "Duration",
)  # fmt: skip
_NS: Final = {
    "ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9,
    "second": 1e9,
}  # fmt: skip
_MAX_METRICS: Final = 20_000
_MAX_DEVICES: Final = 4096


def _is_header(row: list[str]) -> bool:
    return set(row) >= _NEEDED and row[0] == "ID" and ("Process ID" in row or "Context" in row)


def matches(head: bytes, path: Path) -> bool:
    """Whether one of its lines is the header of ncu."""
    for line in head.decode("utf-8", "replace").splitlines()[:200]:
        try:
            if _is_header(next(csv.reader([line.replace("\0", "")]), [])):
                return True
        except (csv.Error, IndexError):
            continue
    return False


def read(path: Path) -> Capture:
    """The metrics of all launches. Raises FormatError where there is no table."""
    problems: list[str] = []
    source = rows(_whole_lines(lines(path, problems), problems), problems)
    header = next((each for each in source if each and _is_header(each)), None)
    if header is None:
        raise FormatError(f"{path}: has no table of ncu")
    found = _Table(header)
    for batch in batches(source if found.is_long else found.take_units(source)):
        found.add(batch)
    if found.dropped:
        problems.append(f"lines that are not rows of the table: {found.dropped:,} are left out")
    return Capture(
        source=Source(str(path), KIND, "ncu"),
        metrics=found.metrics.table(),
        totals=found.totals().table() if found.durations else None,
        devices=tuple(CapturedDevice(index, vendor="nvidia") for index in sorted(found.devices)),
        processes=tuple(Process(pid) for pid in sorted(found.pids)),
        problems=tuple(problems),
        dropped=found.dropped,
    )


def _whole_lines(texts: Iterator[str], problems: list[str]) -> Iterator[str]:
    """The lines without a last one that ends within a cell: half a value is another one."""
    last = None
    for text in texts:
        if last is not None:
            yield last
        last = text
    if last is not None and '"' in last and not last.endswith(("\n", '"')):
        problems.append("the file breaks off in its last line, which is left out")
    elif last is not None:
        yield last


class _Table:
    """A table of metrics, and what was read of it so far."""

    def __init__(self, header: Sequence[str]) -> None:
        self._at = {name: place for place, name in enumerate(header)}
        self._widths = range(self._at.get("Rule Name", len(header)), len(header) + 1)
        """How many cells a row has."""
        self._mark: str | None = None
        self.is_long = {"Metric Name", "Metric Value"} <= self._at.keys()
        """Whether each metric has a row (page details), not a column (page raw)."""
        self._wide = [
            (name, "", place)
            for name, place in itertools.islice(self._at.items(), _MAX_METRICS)
            if name not in _COMMON
        ]
        """Name, unit and place of each metric that has a column."""
        self.metrics = Rows(METRIC_COLUMNS)
        self.durations: dict[tuple[int | None, int | None], tuple[str, int | None, float]] = {}
        """Of each (process, launch): the kernel, its device and its time in ns."""
        self.pids: set[int] = set()
        self.devices: set[int] = set()
        self.dropped = 0

    def take_units(self, source: Iterator[list[str]]) -> Iterator[list[str]]:
        """The rows of the page raw after the one with the units, which may be missing."""
        first = next(source, None)
        if first and whole_number(first[0]) is None:
            units = dict(enumerate(first))
            self._wide = [(name, units.get(at, ""), at) for name, _, at in self._wide]
        elif first:
            source = itertools.chain([first], source)
        return source

    def add(self, batch: list[list[str]]) -> None:
        """Read some rows."""
        whole = [
            each
            for each in batch
            if len(each) in self._widths and whole_number(each[self._at["ID"]]) is not None
        ]
        # the tool writes a line of its own after the table
        rows = sum(bool(each) and not each[0].startswith("==") for each in batch)
        self.dropped += rows - len(whole)
        if self._mark is None:
            self._mark = decimal_mark(
                cell
                for row in whole[:100]
                for cell in (
                    [row[self._at["Metric Value"]]] if self.is_long else row[len(_COMMON) - 2 :]
                )
            )
        columns: dict[str, list[Any]] = {name: [] for name in METRIC_COLUMNS}
        for row in whole:
            device = self._number(row, "Device")
            if device is not None and 0 <= device < _MAX_DEVICES:
                self.devices.add(device)
            if (pid := self._number(row, "Process ID")) is not None:
                self.pids.add(pid)
            for metric, unit, text in self._metrics_of(row):
                value = number(text, self._mark)
                if value is None or not metric:
                    continue
                if metric in _DURATIONS and unit in _NS:
                    key = (self._number(row, "Process ID"), self._number(row, "ID"))
                    name = row[self._at["Kernel Name"]]
                    self.durations.setdefault(key, (name, device, value * _NS[unit]))
                columns["launch"].append(self._number(row, "ID"))
                columns["name"].append(row[self._at["Kernel Name"]])
                columns["device"].append(device)
                columns["metric"].append(metric)
                columns["unit"].append(unit or None)
                columns["value"].append(value)
        self.metrics.add(columns)

    def totals(self) -> Rows:
        """The time of each kernel: a launch counts once, however often it was measured."""
        times: dict[tuple[str, int | None], list[float]] = {}
        for name, device, ns in self.durations.values():
            times.setdefault((name, device), []).append(ns)
        found = Rows(TOTAL_COLUMNS)
        columns: dict[str, list[Any]] = {name: [] for name in TOTAL_COLUMNS}
        for (name, device), each in times.items():
            row = {
                "kind": "kernel",
                "name": name,
                "device": device,
                "calls": len(each),
                "total_ns": round(sum(each)),
                "mean_ns": sum(each) / len(each),
                "median_ns": float(median(each)),
                "min_ns": round(min(each)),
                "max_ns": round(max(each)),
            }
            for column, values in columns.items():
                values.append(row.get(column))
        found.add(columns)
        return found

    def _number(self, row: Sequence[str], name: str) -> int | None:
        return whole_number(row[self._at[name]]) if name in self._at else None

    def _metrics_of(self, row: Sequence[str]) -> list[tuple[str, str, str]]:
        """Name, unit and value of each metric of a row."""
        if not self.is_long:
            return [(name, unit, row[place]) for name, unit, place in self._wide]
        unit = row[self._at["Metric Unit"]] if "Metric Unit" in self._at else ""
        return [(row[self._at["Metric Name"]], unit, row[self._at["Metric Value"]])]
