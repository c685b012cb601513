"""The outputs of rocprof (v1), those of rocprofv2 with the same columns, and rocprofv2's text.

Source: recordings in tests/recordings, and ROCm/rocm-systems, projects/rocprofiler. rocprof writes
results.csv, results.stats.csv, results.hip_stats.csv, results.copy_stats.csv, and results.json in
the form of Chrome's traces, with exact times in ``args``. rocprof-compute keeps the counters in
pmc_perf.csv and timestamps.csv. Grids are in work-items, of all dimensions together. One row is one
launch; with the columns Counter_Name and Counter_Value, as newer ones of rocprof-compute have, one
row is one counter of a launch.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.facts.captures.columns import FARTHEST_NS, text_of, whole
from portagpu.facts.captures.json_stream import CHUNK_BYTES, Document, Events
from portagpu.facts.captures.model import import_library
from portagpu.facts.captures.text_tables import (
    batches,
    column,
    lines,
    number,
    rows,
    split_blocks,
    times,
    whole_number,
)
from portagpu_rocm.captures._rocprof import (
    Collected,
    blocks,
    direction,
    total_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.facts.captures.model import Capture, Kind

KIND: Final = "rocprof"
_NAMES: Final = {
    "name": ("KernelName", "Kernel_Name"),
    "launch": ("Index", "Dispatch_ID"),
    "device": ("gpu-id", "GPU_ID"),
    "queue": ("queue-id", "Queue_ID"),
    "pid": ("pid", "PID"),
    "tid": ("tid", "TID"),
    "grid": ("grd", "Grid_Size"),
    "block": ("wgr", "Workgroup_Size"),
    "shared": ("lds", "LDS_Per_Workgroup"),
    "scratch": ("scr", "Scratch_Per_Workitem"),
    "arch": ("arch_vgpr", "Arch_VGPR"),
    "accumulated": ("accum_vgpr", "Accum_VGPR"),
    "scalar": ("sgpr", "SGPR"),
    "start": ("BeginNs", "Start_Timestamp"),
    "end": ("EndNs", "End_Timestamp"),
}
_NO_COUNTERS: Final = re.compile(
    r"(?:Correlation_I[Dd]|Kernel_ID|Wave_Size|wave_size|sig|obj|queue-index|DispatchNs|CompleteNs|DurationNs"
    r"|XCC_Index)(?:_\d+)?"
)
_TOTALS: Final = ["Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage"]
_TEXT: Final = re.compile(r"\b(\w+)\(((?:[^()]|\([^()]*\))*)\)(?=,|\s*$)")
_TEXT_HEAD: Final = re.compile(rb"^Domain\(\w+\), .*Start_Timestamp\(\d+\)", re.MULTILINE)
_MAX_COUNTERS: Final = 20_000


def _is_header(row: Sequence[str]) -> bool:
    names = {each.strip() for each in row}
    launches = names & {"Index", "Dispatch_ID"} and names & {"KernelName", "Kernel_Name"}
    return bool(launches and names & {"gpu-id", "GPU_ID"}) or [e.strip() for e in row] == _TOTALS


def matches(head: bytes, path: Path) -> bool:
    """Whether it is one of rocprof's tables, its JSON, or rocprofv2's text."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] == b"{":
        return b'"traceEvents"' in head and (b'"BeginNs"' in head or b'"CPU HIP API"' in head)
    if _TEXT_HEAD.search(head):
        return True
    first = start.partition(b"\n")[0].decode("utf-8", "replace").replace("\0", "")
    try:
        return any(map(_is_header, csv.reader([first.rstrip("\r")])))
    except csv.Error:
        return False


def read(path: Path, *, chunk: int = CHUNK_BYTES) -> Capture:
    """What the file holds. Raises FormatError where it has nothing of rocprof."""
    found = Collected(path)
    first = next(lines(path, found.problems), "").lstrip()
    if first[:1] in ("{", "["):
        return _read_json(found, chunk)
    text = csv_text = False
    for line, _ in zip(lines(path, []), range(1000), strict=False):
        text = text or bool(_TEXT_HEAD.match(line.encode("utf-8", "replace")))
        csv_text = csv_text or line.startswith(('"Index"', "Index,", "Dispatch_ID", '"Name"'))
    if text and not csv_text:
        _read_text(found)
        return found.capture(KIND, "rocprofv2")
    source = rows(lines(path, found.problems), found.problems)
    for header, body in split_blocks(source, _is_header):
        names = [each.strip() for each in header]
        if names == _TOTALS:
            _read_totals(body, found)
        else:
            _read_launches(names, body, found)
    return found.capture(KIND, "rocprof")


def _read_totals(body: Iterator[list[str]], found: Collected) -> None:
    found.known = True
    for row in body:
        if len(row) < 4:
            found.dropped += bool(row)
            continue
        values = total_values({"calls": row[1], "total_ns": row[2], "mean_ns": row[3]})
        found.add_total(None, row[0], values)


def _read_launches(names: Sequence[str], body: Iterator[list[str]], found: Collected) -> None:
    """Kernels, and the counters in the columns that are none of a kernel's own."""
    at = {name: place for place, name in reversed(list(enumerate(names)))}
    places = {
        what: next((at[name] for name in spellings if name in at), None)
        for what, spellings in _NAMES.items()
    }
    own = {name for spellings in _NAMES.values() for name in spellings}
    own |= {"GUID", "Counter_Name", "Counter_Value"}
    counters = {
        name: place
        for name, place in list(at.items())[::-1][:_MAX_COUNTERS]
        if name not in own and name and not _NO_COUNTERS.fullmatch(name)
    }
    named, valued = at.get("Counter_Name"), at.get("Counter_Value")
    is_long = named is not None and valued is not None
    timed = places["start"] is not None and places["end"] is not None
    found.known = True
    if timed:
        found.add("kernel", {"start_ns": [], "end_ns": []})
    for batch in batches(body):
        batch = [row for row in batch if row]
        kernels, launches = column(batch, places["name"]), _wholes(batch, places["launch"])
        devices = _wholes(batch, places["device"])
        for row, launch, name, device in zip(batch, launches, kernels, devices, strict=True):
            stated = _stated(row, counters)
            if named is not None and valued is not None:
                stated = _stated(row, {row[named]: valued}) if len(row) > named else {}
                found.dropped += not stated
            if size := len(stated):
                whose = {"launch": [launch] * size, "name": [name] * size}
                values = {"metric": list(stated), "value": list(stated.values())}
                found.metrics.add({**whose, "device": [device] * size, **values})
        if timed and is_long:
            of = [at.get("GUID"), *(places[each] for each in ("pid", "device", "launch", "name"))]
            spans = [places["start"], places["end"]]
            fresh = found.first_rows(_cells(batch, of), _cells(batch, spans))
            batch = [row for row, is_new in zip(batch, fresh, strict=True) if is_new]
        if timed and batch:
            _add_kernels(batch, places, found)


def _wholes(batch: list[list[str]], place: int | None) -> list[int | None]:
    return [whole_number(each) if each else None for each in column(batch, place)]


def _cells(batch: list[list[str]], places: Sequence[int | None]) -> list[tuple[str, ...]]:
    """Those cells of each row."""
    return list(zip(*(column(batch, place) for place in places), strict=True))


def _add_kernels(
    batch: list[list[str]], places: Mapping[str, int | None], found: Collected
) -> None:
    def wholes(what: str) -> list[int | None]:
        return _wholes(batch, places[what])

    starts, ends, good = times(batch, places["start"] or 0, places["end"] or 0)
    blocks_x = wholes("block")
    names = column(batch, places["name"])
    arch, accumulated = wholes("arch"), wholes("accumulated")
    columns: dict[str, Sequence[Any]] = {
        "start_ns": starts,
        "end_ns": ends,
        "name": [each.removesuffix(" [clone .kd]").removesuffix(" (.kd)") for each in names],
        "pid": wholes("pid"),
        "tid": wholes("tid"),
        "device": wholes("device"),
        "queue": wholes("queue"),
        "grid_x": [blocks(*each) for each in zip(wholes("grid"), blocks_x, strict=True)],
        "block_x": blocks_x,
        "registers": [
            None if a is None else a + (b or 0) for a, b in zip(arch, accumulated, strict=True)
        ],
        "scalar_registers": wholes("scalar"),
        "shared_bytes": wholes("shared"),
        "scratch_bytes": wholes("scratch"),
    }
    found.add_good("kernel", columns, good)


def _stated(row: Sequence[str], counters: Mapping[str, int]) -> dict[str, float]:
    """The values of those counters, given by their places, that the row has."""
    values = {name: number(row[place]) for name, place in counters.items() if place < len(row)}
    return {name: value for name, value in values.items() if value is not None}


# --- rocprofv2's text


def _read_text(found: Collected) -> None:
    """Lines of "Key(value), ...": copies and calls of the HSA runtime, and kernels."""
    parts: dict[Kind, list[dict[str, Any]]] = {}
    for line in lines(found.path, found.problems):
        if not line.startswith(("Domain(", "Dispatch_ID(")):
            continue
        facts = dict(_TEXT.findall(line.strip()))
        start, end = (whole_number(facts.get(f"{e}_Timestamp", "")) for e in ("Start", "End"))
        if start is None or end is None or not 0 <= start <= end < FARTHEST_NS:
            found.dropped += 1
            continue
        domain = facts.get("Domain", "")
        name = facts.get("Function") or facts.get("Kernel_Name") or ""
        kind: Kind = "api"
        if domain == "HSA_OPS_DOMAIN" or domain == "HIP_OPS_DOMAIN":
            kind, name = "copy", "Memcpy"
        elif "Kernel_Name" in facts:
            kind = "kernel"
        elif domain == "ROCTX_DOMAIN":
            kind = "range"
        event = {"start_ns": start, "end_ns": end, "name": name}
        event["correlation"] = whole_number(facts.get("Correlation_ID", ""))
        parts.setdefault(kind, []).append(event)
    for kind, events in parts.items():
        found.add(kind, {key: [each[key] for each in events] for key in events[0]})


# --- JSON


@cache
def _event() -> Any:
    msgspec: Any = import_library("msgspec")
    value = int | float | str | bool | None
    keys = {
        "begin": "BeginNs",
        "end": "EndNs",
        "device": "dev-id",
        "queue": "queue-id",
        "stream": "stream-id",
        "pid": "pid",
        "tid": "tid",
        "called": "name",
    }
    args = msgspec.defstruct("Args", [(name, value, None) for name in keys], rename=keys)
    fields: list[tuple[str, Any, None]] = [(name, value, None) for name in ("ph", "name", "pid")]
    return msgspec.defstruct("Event", [*fields, ("args", args | None, None)])


def _read_json(found: Collected, chunk: int) -> Capture:
    lanes: dict[int, str] = {}

    def take(batch: list[Any]) -> bool:
        by_kind: dict[Kind, list[tuple[Any, int, int]]] = {}
        for event in batch:
            pid = whole(event.pid)
            if event.ph == "M" and event.name == "process_name" and event.args:
                lanes[pid or 0] = str(event.args.called)
                continue
            if event.ph != "X":
                continue
            args = event.args
            begin, end = (whole(args.begin), whole(args.end)) if args else (None, None)
            if begin is None or end is None or not 0 <= begin <= end < FARTHEST_NS:
                found.dropped += 1
                continue
            by_kind.setdefault(_lane(lanes.get(pid or 0, "")), []).append((event, begin, end))
        for kind, events in by_kind.items():
            _add_json(found, kind, events)
        return True

    document = Document(
        found.path, {("traceEvents",): Events(_event(), take)}, lambda *_: None, chunk
    )
    document.problems = found.problems
    document.read()
    found.known = found.known or bool(document.seen)
    found.dropped += document.dropped
    if lanes and not found.rows:
        found.details["lanes"] = excerpt(", ".join(lanes.values()))
    return found.capture(KIND, "rocprof")


def _lane(name: str) -> Kind:
    """What the events of a lane of the trace are: "GPU2", "COPY", "CPU HIP API", "Markers"."""
    if name.startswith("GPU"):
        return "kernel"
    if name == "COPY":
        return "copy"
    return "range" if "arker" in name else "api"


def _add_json(found: Collected, kind: Kind, events: list[tuple[Any, int, int]]) -> None:
    names = [text_of(event.name) for event, _, _ in events]
    columns: dict[str, Sequence[Any]] = {
        "start_ns": [begin for _, begin, _ in events],
        "end_ns": [end for _, _, end in events],
        "name": names,
        "pid": [whole(event.args.pid) for event, _, _ in events],
        "tid": [whole(event.args.tid) for event, _, _ in events],
    }
    if kind in ("kernel", "copy"):
        for name in ("device", "queue", "stream"):
            bits = 31 if name == "device" else 63
            columns[name] = [whole(getattr(event.args, name), bits) for event, _, _ in events]
    if kind == "copy":
        kinds = [direction(each or "") for each in names]
        columns["copy_kind"] = kinds
        columns["name"] = [
            f"Memcpy {copied}" if copied else name
            for copied, name in zip(kinds, names, strict=True)
        ]
    found.add_good(kind, columns, [True] * len(events))
