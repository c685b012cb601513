"""The CSV files of rocprofv3: traces, counters, agents and statistics.

Source: ROCm/rocm-systems, projects/rocprofiler-sdk/source/docs (how-to/using-rocprofv3.rst and
data/*.csv). Grids are in work-items. An agent is a node of the machine ("Agent 4"); the agent_info
next to a trace says which GPU it is, and is read with it. A file may hold several tables.
"""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.facts.captures.columns import take_apart
from portagpu.facts.captures.model import Capture, CapturedDevice, Kind
from portagpu.facts.captures.text_tables import (
    batches,
    column,
    kept,
    lines,
    number,
    rows,
    split_blocks,
    times,
    whole_number,
)
from portagpu.facts.readings.model import FormatError
from portagpu_rocm.captures._rocprof import (
    VENDOR,
    Collected,
    agent_number,
    blocks,
    copy_kind,
    direction,
    kind_of_domain,
    operation,
    total_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

KIND: Final = "rocprofv3 CSV"
_TOOL: Final = "rocprofv3"
_SIGNATURES: Final = {
    "counters": {"Counter_Name", "Counter_Value", "Kernel_Name"},
    "kernels": {"Kind", "Kernel_Name", "Start_Timestamp", "End_Timestamp"},
    "copies": {"Kind", "Direction", "Start_Timestamp", "End_Timestamp"},
    "calls": {"Domain", "Function", "Start_Timestamp", "End_Timestamp"},
    "agents": {"Node_Id", "Agent_Type", "Cu_Count"},
    "totals": {"Name", "Calls", "TotalDurationNs", "MinNs", "MaxNs"},
    "left out": {"Kind", "Start_Timestamp", "End_Timestamp"},
}
_STATISTICS: Final[dict[str, Kind]] = {
    "kernel_stats": "kernel",
    "memory_copy_stats": "copy",
    "hip_api_stats": "api",
    "hip_stats": "api",
    "hsa_api_stats": "api",
    "marker_api_stats": "range",
    "rccl_api_stats": "collective",
}
_DOMAIN: Final = re.compile(
    r"(?:KERNEL_DISPATCH|MEMORY_(?:COPY|ALLOCATION)|SCRATCH_MEMORY|PAGE_MIGRATION"
    r"|(?:HIP|HSA|MARKER|RCCL|OMPT|ROCDECODE|ROCJPEG)(?:_[A-Z_]{2,20})?)"
)
"""A line of domain_stats.csv: the sum of all of a domain."""


def _what(header: Sequence[str]) -> str | None:
    """Which table has these columns."""
    names = {each.strip() for each in header}
    return next((what for what, needed in _SIGNATURES.items() if needed <= names), None)


def matches(head: bytes, path: Path) -> bool:
    """Whether one of the first lines is the header of such a table."""
    return any(
        _what(row)
        for line in head.decode("utf-8", "replace").splitlines()[:40]
        for row in _row(line)
    )


def _row(line: str) -> list[list[str]]:
    try:
        return list(csv.reader([line.replace("\0", "")]))
    except csv.Error:
        return []


def read(path: Path) -> Capture:
    """What the file holds, with the agents next to it. Raises FormatError."""
    found = Collected(path)
    numbers = _agents_beside(path, found)
    pid = re.search(r"(?:^|_|/)(\d{1,9})_[a-z]", path.name)
    if pid:
        found.pids.add(int(pid[1]))
    for header, body in _tables(path, found.problems):
        what = _what(header)
        names = [each.strip() for each in header]
        at = {name: number for number, name in enumerate(names)}
        if what == "agents":
            numbers = _read_agents(names, body, found)
            found.known = True
        elif what == "totals":
            _read_totals(path, at, body, found)
        elif what == "left out":
            count = sum(1 for _ in body)
            found.known = True
            found.details["left out: " + excerpt(path.name)] = f"{count:,}"
        else:
            reader = {
                "kernels": _kernels,
                "copies": _copies,
                "calls": _calls,
                "counters": _counters,
            }
            for batch in batches(body):
                reader[str(what)](at, batch, found, numbers)
            found.known = True
    capture = found.capture(KIND, _TOOL)
    return _with_annotations(capture)


def _tables(path: Path, problems: list[str]) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    return split_blocks(rows(lines(path, problems), problems), lambda row: _what(row) is not None)


def _with_annotations(capture: Capture) -> Capture:
    ranges = capture.tables.get("range")
    if ranges is None or not ranges.num_rows:
        return capture
    plain, ours = take_apart(ranges)
    tables = dict(capture.tables) | {"range": plain}
    if ours is not None and "collective" not in tables:
        tables["collective"] = ours
    return replace(capture, tables=tables)


# --- agents


def _agents_beside(path: Path, found: Collected) -> dict[int, int]:
    """Node -> number of the GPU, from the agent_info of the same process in the same folder."""
    prefix = re.match(r"(.*?)_?[a-z]+(?:_[a-z]+)*\.csv$", path.name)
    names = [f"{prefix[1]}_agent_info.csv"] if prefix and prefix[1] else []
    for name in (*names, "agent_info.csv"):
        other = path.with_name(name)
        try:
            if other == path or not other.is_file():
                continue
            for header, body in _tables(other, []):
                if _what(header) == "agents":
                    return _read_agents([each.strip() for each in header], body, found)
        except (OSError, ValueError, FormatError):
            continue
    return {}


def _read_agents(
    names: Sequence[str], body: Iterator[list[str]], found: Collected
) -> dict[int, int]:
    numbers: dict[int, int] = {}
    for row in body:
        facts = dict(zip(names, row, strict=False))
        node = whole_number(facts.get("Node_Id", ""))
        if facts.get("Agent_Type") != "GPU" or node is None or len(numbers) > 4096:
            continue
        index = numbers[node] = len(numbers)
        found.devices[index] = CapturedDevice(
            index,
            vendor=VENDOR,
            name=excerpt(facts.get("Product_Name") or facts.get("Model_Name", "")),
            architecture=excerpt(facts.get("Name", "")),
            units=_small(facts.get("Cu_Count", "")),
            warp_size=_small(facts.get("Wave_Front_Size", "")),
        )
    return numbers


def _small(text: str) -> int | None:
    value = whole_number(text)
    return value if value is not None and 0 <= value < 1 << 31 else None


def _device(text: str, numbers: Mapping[int, int]) -> int | None:
    agent = agent_number(text)
    if agent is None or text.strip().upper().startswith(("GPU", "CPU")):
        return agent if text.strip().upper().startswith("GPU") else None
    return numbers.get(agent) if numbers else agent


# --- events


def _of(batch: list[list[str]], at: Mapping[str, int], name: str) -> list[str]:
    return column(batch, at.get(name))


def _wholes(batch: list[list[str]], at: Mapping[str, int], name: str) -> list[int | None]:
    return [whole_number(each) if each else None for each in _of(batch, at, name)]


def _dispatches(
    at: Mapping[str, int], batch: list[list[str]], numbers: Mapping[int, int]
) -> tuple[dict[str, Sequence[Any]], list[bool]]:
    starts, ends, good = times(batch, at["Start_Timestamp"], at["End_Timestamp"])
    arch, accumulated = _wholes(batch, at, "VGPR_Count"), _wholes(batch, at, "Accum_VGPR_Count")
    columns: dict[str, Sequence[Any]] = {
        "start_ns": starts,
        "end_ns": ends,
        "name": _of(batch, at, "Kernel_Name"),
        "pid": _wholes(batch, at, "Process_Id"),
        "tid": _wholes(batch, at, "Thread_Id"),
        "device": [_device(each, numbers) for each in _of(batch, at, "Agent_Id")],
        "stream": _wholes(batch, at, "Stream_Id"),
        "queue": _wholes(batch, at, "Queue_Id"),
        "correlation": _wholes(batch, at, "Correlation_Id"),
        "registers": [
            None if a is None else a + (b or 0) for a, b in zip(arch, accumulated, strict=True)
        ],
        "scalar_registers": _wholes(batch, at, "SGPR_Count"),
        "shared_bytes": _wholes(
            batch, at, "LDS_Block_Size" if "LDS_Block_Size" in at else "Group_Segment_Size"
        ),
        "scratch_bytes": _wholes(
            batch, at, "Scratch_Size" if "Scratch_Size" in at else "Private_Segment_Size"
        ),
    }
    for axis in "XYZ":
        block = _wholes(batch, at, f"Workgroup_Size_{axis}")
        grid = _wholes(batch, at, f"Grid_Size_{axis}")
        columns[f"block_{axis.lower()}"] = block
        columns[f"grid_{axis.lower()}"] = [blocks(*each) for each in zip(grid, block, strict=True)]
    return columns, good


def _kernels(
    at: Mapping[str, int], batch: list[list[str]], found: Collected, numbers: Mapping[int, int]
) -> None:
    columns, good = _dispatches(at, batch, numbers)
    found.add_good("kernel", columns, good)


def _counters(
    at: Mapping[str, int], batch: list[list[str]], found: Collected, numbers: Mapping[int, int]
) -> None:
    """Counters, and each dispatch once: it has a row for every counter."""
    launches = _wholes(batch, at, "Dispatch_Id")
    values = [number(each) for each in _of(batch, at, "Counter_Value")]
    names = _of(batch, at, "Kernel_Name")
    devices = [_device(each, numbers) for each in _of(batch, at, "Agent_Id")]
    good = [each is not None for each in values]
    found.dropped += len(good) - sum(good)
    metric: dict[str, Sequence[Any]] = {"launch": launches, "name": names, "device": devices}
    metric |= {"metric": _of(batch, at, "Counter_Name"), "value": values}
    if any(good):
        found.metrics.add({name: kept(each, good) for name, each in metric.items()})
    if "Start_Timestamp" not in at or "End_Timestamp" not in at:
        return
    starts, ends = _of(batch, at, "Start_Timestamp"), _of(batch, at, "End_Timestamp")
    whose = zip(_of(batch, at, "Process_Id"), devices, launches, names, strict=True)
    fresh = found.first_rows(whose, zip(starts, ends, strict=True))
    once = [row for row, is_new in zip(batch, fresh, strict=True) if is_new]
    if once:
        columns, fine = _dispatches(at, once, numbers)
        block = _wholes(once, at, "Workgroup_Size")
        columns["block_x"] = block
        grid = _wholes(once, at, "Grid_Size")
        columns["grid_x"] = [blocks(*each) for each in zip(grid, block, strict=True)]
        found.add_good("kernel", columns, fine)


def _copies(
    at: Mapping[str, int], batch: list[list[str]], found: Collected, numbers: Mapping[int, int]
) -> None:
    starts, ends, good = times(batch, at["Start_Timestamp"], at["End_Timestamp"])
    source = [_device(each, numbers) for each in _of(batch, at, "Source_Agent_Id")]
    target = [_device(each, numbers) for each in _of(batch, at, "Destination_Agent_Id")]
    kinds = [direction(each) for each in _of(batch, at, "Direction")]
    columns: dict[str, Sequence[Any]] = {
        "start_ns": starts,
        "end_ns": ends,
        "name": [f"Memcpy {each}" if each else "Memcpy" for each in kinds],
        "device": [
            begin if kind == "DtoH" or end is None else end
            for kind, begin, end in zip(kinds, source, target, strict=True)
        ],
        "stream": _wholes(batch, at, "Stream_Id"),
        "correlation": _wholes(batch, at, "Correlation_Id"),
        "copy_kind": list(map(copy_kind, kinds, source, target)),
    }
    found.add_good("copy", columns, good)


def _calls(
    at: Mapping[str, int], batch: list[list[str]], found: Collected, numbers: Mapping[int, int]
) -> None:
    starts, ends, good = times(batch, at["Start_Timestamp"], at["End_Timestamp"])
    domains, names = _of(batch, at, "Domain"), _of(batch, at, "Function")
    kinds = [kind_of_domain(each) for each in domains]
    collectives = [operation(each) for each in names]
    kinds = [
        "api" if kind == "collective" and not known else kind
        for kind, known in zip(kinds, collectives, strict=True)
    ]
    columns: dict[str, Sequence[Any]] = {
        "start_ns": starts,
        "end_ns": ends,
        "name": names,
        "pid": _wholes(batch, at, "Process_Id"),
        "tid": _wholes(batch, at, "Thread_Id"),
        "correlation": _wholes(batch, at, "Correlation_Id"),
    }
    for kind in ("api", "range", "collective"):
        chosen = [each == kind for each in kinds]
        if not any(chosen):
            continue
        part = {name: kept(values, chosen) for name, values in columns.items()}
        if kind == "collective":
            part["operation"] = kept(collectives, chosen)
        if kind == "range":
            del part["correlation"]
        found.add_good(kind, part, [fine for fine, ours in zip(good, chosen, strict=True) if ours])
    others = sum(each is None for each in kinds)
    if others:
        before = int(found.details.get("left out: other domains", "0").replace(",", ""))
        found.details["left out: other domains"] = f"{before + others:,}"


# --- totals


def _read_totals(
    path: Path, at: Mapping[str, int], body: Iterator[list[str]], found: Collected
) -> None:
    stated = next((kind for name, kind in _STATISTICS.items() if name in path.name), None)
    for row in body:
        if len(row) < len(at):
            found.dropped += 1
            continue
        if stated is None and _DOMAIN.fullmatch(row[at["Name"]]):
            found.add_domain(row[at["Name"]], row[at["Calls"]], row[at["TotalDurationNs"]])
            continue
        cells = {
            name: row[at[heading]]
            for name, heading in (
                ("calls", "Calls"),
                ("total_ns", "TotalDurationNs"),
                ("mean_ns", "AverageNs"),
                ("min_ns", "MinNs"),
                ("max_ns", "MaxNs"),
                ("stddev_ns", "StdDev"),
            )
            if heading in at
        }
        found.add_total(stated, row[at["Name"]], total_values(cells))
