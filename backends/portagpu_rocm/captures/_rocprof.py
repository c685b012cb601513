"""What the outputs of rocprof, rocprofv2 and rocprofv3 have in common."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.columns import Rows, whole
from portagpu.facts.captures.model import (
    METRIC_COLUMNS,
    TOTAL_COLUMNS,
    Capture,
    CapturedDevice,
    Kind,
    Process,
    Source,
    table,
)
from portagpu.facts.captures.text_tables import kept, number, whole_number
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

VENDOR: Final = "amd"
_MAX_PIDS: Final = 4096
_MAX_DOMAINS: Final = 64
DIRECTIONS: Final = {
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
    "HOST_TO_HOST": "HtoH",
    "HostToDevice": "HtoD",
    "DeviceToHost": "DtoH",
    "DeviceToDevice": "DtoD",
}
OPERATIONS: Final = {
    "AllGather": "all_gather",
    "AllReduce": "all_reduce",
    "AllToAll": "all_to_all",
    "AllToAllv": "all_to_all",
    "Broadcast": "broadcast",
    "Bcast": "broadcast",
    "Gather": "gather",
    "Reduce": "reduce",
    "ReduceScatter": "reduce_scatter",
    "Scatter": "scatter",
    "Send": "send",
    "Recv": "recv",
}


def operation(function: str) -> str | None:
    """The collective that a call of RCCL is; None for any other call."""
    return OPERATIONS.get(function.removeprefix("nccl")) if function.startswith("nccl") else None


def direction(name: str) -> str | None:
    """One of COPY_KINDS, from "MEMORY_COPY_HOST_TO_DEVICE" or "CopyHostToDevice"."""
    return next((kind for words, kind in DIRECTIONS.items() if name.endswith(words)), None)


def copy_kind(stated: str | None, source: int | None, target: int | None) -> str | None:
    """One of COPY_KINDS, from what :func:`direction` gives and the devices of both ends."""
    return "PtoP" if stated == "DtoD" and source != target else stated


def blocks(grid: int | None, block: int | None) -> int | None:
    """Workgroups of a grid that is stated in work-items; the last one may be of fewer."""
    if grid is None or block is None or block <= 0 or grid < 0:
        return None
    return -(-grid // block)


def kind_of_domain(domain: str) -> Kind | None:
    """What the events of a domain of rocprofv3 are; None for what captures have no place for."""
    if domain.startswith("KERNEL_DISPATCH"):
        return "kernel"
    if domain.startswith("MEMORY_COPY"):
        return "copy"
    if domain.startswith("MARKER"):
        return "range"
    if domain.startswith("RCCL"):
        return "collective"
    if domain.startswith(("HIP", "HSA", "ROCDECODE", "ROCJPEG")):
        return "api"
    return None


def kind_of_name(name: str) -> Kind:
    """What a line of a table of totals is of, where no heading says it."""
    if name.startswith(("MEMORY_COPY_", "Copy")):
        return "copy"
    if re.match(r"_*hip[A-Z]|hsa_", name):
        return "api"
    if name.startswith("nccl") and operation(name):
        return "collective"
    return "kernel"


@dataclass(slots=True)
class Collected:
    """What a file of these tools has, while it is read."""

    path: Path
    rows: dict[Kind, Rows] = field(default_factory=dict)
    totals: Rows = field(default_factory=lambda: Rows(TOTAL_COLUMNS))
    metrics: Rows = field(default_factory=lambda: Rows(METRIC_COLUMNS))
    devices: dict[int, CapturedDevice] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    dropped: int = 0
    details: dict[str, str] = field(default_factory=dict)
    launches: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    """Dispatches of counters that are among the kernels already -> their start and end."""
    repeated: set[tuple[Any, ...]] = field(default_factory=set)
    """Starts and ends at which these dispatches were measured again, for other counters."""
    known: bool = False
    """Whether anything of the format was there."""

    def add(self, kind: Kind, columns: Mapping[str, Sequence[Any]]) -> None:
        """Add events; columns without any value are left out."""
        rows = self.rows.setdefault(kind, Rows())
        if len(next(iter(columns.values()))):
            rows.add(
                {
                    name: values
                    for name, values in columns.items()
                    if name in ("start_ns", "end_ns") or any(each is not None for each in values)
                }
            )
        self.known = True

    def add_good(
        self, kind: Kind, columns: Mapping[str, Sequence[Any]], good: Sequence[bool]
    ) -> None:
        """Add the events that are good; the others are dropped and counted."""
        self.dropped += len(good) - sum(good)
        self.add(kind, {name: kept(values, good) for name, values in columns.items()})
        new = set(columns.get("pid", ())) - {None} - self.pids
        self.pids.update(itertools.islice(new, max(0, _MAX_PIDS - len(self.pids))))

    def first_rows(
        self, dispatches: Iterable[tuple[Any, ...]], times: Iterable[tuple[Any, ...]]
    ) -> list[bool]:
        """Whether a row is the first of its dispatch, in tables that have a row for each counter.

        A dispatch that has another start or end later was measured again: that is another pass.

        :param dispatches: what identifies the dispatch of each row: process, device, number, name.
        :param times: the start and end of each row.
        """
        found = []
        for dispatch, at in zip(dispatches, times, strict=True):
            first = self.launches.get(dispatch)
            found.append(first is None)
            if first is None:
                self.launches[dispatch] = at
            elif first != at:
                self.repeated.add((dispatch, at))
        return found

    def add_domain(self, name: str, calls: str, total_ns: str) -> None:
        """Keep the sum of a whole domain, which is none of its kernels or calls."""
        count, total = whole_number(calls), whole_number(total_ns)
        if count is None or total is None or len(self.details) > _MAX_DOMAINS:
            self.dropped += 1
            return
        self.details[f"all of {name}"] = f"{count:,} calls, {total:,} ns"
        self.known = True

    def add_total(self, kind: Kind | None, name: str, values: Mapping[str, Any]) -> None:
        """Add one line of a table of totals, of what its name says where there is no ``kind``.

        A line without calls, or without a possible time, is dropped and counted.
        """
        total = values.get("total_ns")
        if values.get("calls") is None or total is None or total < 0:
            self.dropped += 1
            return
        kind = kind or kind_of_name(name)
        if kind == "copy" and (copied := direction(name)):
            name = f"Memcpy {copied}"
        self.totals.add({"kind": [kind], "name": [name], **{k: [v] for k, v in values.items()}})
        self.known = True

    def capture(self, form: str, tool: str, version: str = "") -> Capture:
        """All of it. Raises FormatError where nothing of the format was found."""
        if not self.known:
            raise FormatError(f"{self.path}: has none of the tables of {tool}")
        if self.dropped:
            self.problems.append(
                "rows without a time, with a negative duration or that cannot be read: "
                f"{self.dropped:,} are left out"
            )
        if self.repeated:
            self.details["measured again"] = f"{len(self.repeated):,}"
            self.problems.append(
                f"{len(self.repeated):,} dispatches were measured again for other counters: the "
                "times are those of the first pass"
            )
        empty: dict[str, list[int]] = {"start_ns": [], "end_ns": []}
        for rows in self.rows.values():
            self.devices |= {
                index: CapturedDevice(index, vendor=VENDOR)
                for index in rows.different("device")
                if index not in self.devices
            }
        return Capture(
            source=Source(str(self.path), form, tool, version),
            tables={
                kind: rows.table() if len(rows) else table(empty)
                for kind, rows in self.rows.items()
            },
            devices=tuple(self.devices[index] for index in sorted(self.devices)),
            processes=tuple(Process(pid) for pid in sorted(self.pids)),
            totals=self.totals.table() if len(self.totals) else None,
            metrics=self.metrics.table() if len(self.metrics) else None,
            problems=tuple(self.problems),
            dropped=self.dropped,
            details=self.details,
        )


def total_values(cells: Mapping[str, str], scale: int = 1, mark: str = ".") -> dict[str, Any]:
    """The columns of TOTAL_COLUMNS of one line: column -> text, times in ``scale`` nanoseconds."""
    found: dict[str, Any] = {}
    for name, text in cells.items():
        if name == "calls":
            found[name] = whole_number(text, mark)
        elif TOTAL_COLUMNS[name] == "int64":
            found[name] = whole_number(text, mark, scale)
        else:
            value = number(text, mark)
            found[name] = None if value is None else value * scale
    return found


def agent_number(text: str) -> int | None:
    """4 of "Agent 4", of "GPU 4" and of "4"."""
    found = re.fullmatch(r"(?:[A-Za-z]+\s*)?(\d{1,9})", text.strip())
    return whole(found[1], 31) if found else None
