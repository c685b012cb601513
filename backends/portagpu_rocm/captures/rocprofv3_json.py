"""The JSON of rocprofv3 (``--output-format json``), read in batches.

Source: ROCm/rocm-systems, projects/rocprofiler-sdk/source/docs/rocprofv3-schema.json. Names of
kernels and what operations are called come before or after the records; they are joined at the
end. Grids are in work-items.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.facts.captures.columns import FARTHEST_NS, Rows, joined, take_apart, text_of, whole
from portagpu.facts.captures.json_stream import CHUNK_BYTES, Document, Events
from portagpu.facts.captures.model import (
    EVENT_COLUMNS,
    Capture,
    CapturedDevice,
    Kind,
    Process,
    Source,
    import_library,
    table,
)
from portagpu.facts.readings.model import FormatError
from portagpu_rocm.captures._rocprof import VENDOR, blocks, copy_kind, direction, operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pyarrow as pa

KIND: Final = "rocprofv3 JSON"
_ROOT: Final = ("rocprofiler-sdk-tool", "*")
_HOST: Final[dict[str, Kind]] = {
    "hip_api": "api",
    "hsa_api": "api",
    "marker_api": "range",
    "rccl_api": "collective",
}
_ARRAYS: Final[dict[str, Kind]] = {"kernel_dispatch": "kernel", "memory_copy": "copy", **_HOST}
_OWN_COLUMNS: Final = EVENT_COLUMNS | {"_kernel": "int64", "_agent": "int64", "_other": "int64"}
_OWN_COLUMNS["_kind"] = _OWN_COLUMNS["_operation"] = "int64"


def matches(head: bytes, path: Path) -> bool:
    """Whether it begins as such a document."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and b'"rocprofiler-sdk-tool"' in head


@cache
def _record() -> Any:
    """The type of a record: those of dispatches, copies and calls differ in what they lack."""
    msgspec: Any = import_library("msgspec")
    number = int | float | str | bool | None
    names = ("x", "y", "z")
    axes = msgspec.defstruct("Axes", [(name, number, None) for name in names], gc=False)
    handle = msgspec.defstruct("Handle", [("handle", number, None)], gc=False)
    both = msgspec.defstruct("Correlation", [("internal", number, None)], gc=False)
    dispatch = msgspec.defstruct(
        "Dispatch",
        [
            ("agent_id", handle | None, None),
            ("queue_id", handle | None, None),
            ("kernel_id", number, None),
            ("private_segment_size", number, None),
            ("group_segment_size", number, None),
            ("workgroup_size", axes | None, None),
            ("grid_size", axes | None, None),
        ],
        gc=False,
    )
    fields: list[tuple[str, Any, None]] = [
        (name, number, None)
        for name in ("kind", "operation", "thread_id", "start_timestamp", "end_timestamp", "bytes")
    ]
    handles = ("stream_id", "src_agent_id", "dst_agent_id")
    fields += [(name, handle | None, None) for name in handles]
    fields += [("correlation_id", both | None, None), ("dispatch_info", dispatch | None, None)]
    return msgspec.defstruct("Record", fields, gc=False)


@dataclass(slots=True)
class _Part:
    """One process in the file."""

    rows: dict[str, Rows] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    impossible: int = 0


def read(path: Path, *, chunk: int = CHUNK_BYTES) -> Capture:
    """What rocprofv3 wrote. Raises FormatError where it has nothing of it."""
    parts = [_Part()]

    def take_value(where: tuple[str, ...], value: Any) -> None:
        if where[:2] != _ROOT or len(where) < 3:
            return
        if where[2] in parts[-1].values and where[2] == "metadata":
            parts.append(_Part())
        if len(where) == 3:
            parts[-1].values[where[2]] = value

    def take(name: str) -> Any:
        def taken(batch: list[Any]) -> bool:
            _add(parts[-1], name, batch)
            return True

        return taken

    record = _record()
    arrays: dict[tuple[str, ...], Events] = {
        (*_ROOT, "buffer_records", name): Events(record, take(name)) for name in _ARRAYS
    }
    document = Document(path, arrays, take_value, chunk, repeated=True)
    document.read()
    if not document.seen and not any(part.values for part in parts):
        raise FormatError(f"{path}: has no records of rocprofv3")
    return _capture(document, parts)


def _add(part: _Part, name: str, batch: list[Any]) -> None:
    rows = part.rows.setdefault(name, Rows(_OWN_COLUMNS))
    kept, starts, ends = [], [], []
    for each in batch:
        start, end = whole(each.start_timestamp), whole(each.end_timestamp)
        if start is None or end is None or not 0 <= start <= end < FARTHEST_NS:
            part.impossible += 1
            continue
        kept.append(each)
        starts.append(start)
        ends.append(end)
    if not kept:
        return
    columns: dict[str, Sequence[Any]] = {
        "start_ns": starts,
        "end_ns": ends,
        "tid": [each.thread_id for each in kept],
        "correlation": [each.correlation_id and each.correlation_id.internal for each in kept],
        "_kind": [each.kind for each in kept],
        "_operation": [each.operation for each in kept],
    }
    if name in ("kernel_dispatch", "memory_copy"):
        columns["stream"] = [each.stream_id and each.stream_id.handle for each in kept]
    if name == "memory_copy":
        columns["bytes"] = [each.bytes for each in kept]
        columns["_agent"] = [each.dst_agent_id and each.dst_agent_id.handle for each in kept]
        columns["_other"] = [each.src_agent_id and each.src_agent_id.handle for each in kept]
    if name == "kernel_dispatch":
        infos = [each.dispatch_info for each in kept]
        columns["_agent"] = [
            each.agent_id.handle if each and each.agent_id else None for each in infos
        ]
        columns["queue"] = [
            each.queue_id.handle if each and each.queue_id else None for each in infos
        ]
        columns["_kernel"] = [each and each.kernel_id for each in infos]
        columns["scratch_bytes"] = [each and each.private_segment_size for each in infos]
        columns["shared_bytes"] = [each and each.group_segment_size for each in infos]
        for axis in "xyz":
            groups = [
                whole(getattr(each.workgroup_size, axis), 31)
                if each and each.workgroup_size
                else None
                for each in infos
            ]
            grids = [
                whole(getattr(each.grid_size, axis)) if each and each.grid_size else None
                for each in infos
            ]
            columns[f"block_{axis}"] = groups
            columns[f"grid_{axis}"] = [blocks(*each) for each in zip(grids, groups, strict=True)]
    rows.add(
        {
            column: values
            for column, values in columns.items()
            if column.endswith("_ns") or any(each is not None for each in values)
        }
    )


def _capture(document: Document, parts: list[_Part]) -> Capture:
    tables: dict[Kind, list[pa.Table]] = {}
    devices: dict[int, CapturedDevice] = {}
    processes, spans, details = [], [], {}
    for part in parts:
        numbers = _devices(_list(part.values.get("agents")), devices)
        for name, kind in _ARRAYS.items():
            # an array without records does not say whether such were asked for
            if name in part.rows and (len(part.rows[name]) or kind == "kernel"):
                found = _table(part, name, numbers)
                for its_kind, events in _sorted_out(found, kind):
                    tables.setdefault(its_kind, []).append(events)
        facts = _dict(part.values.get("metadata"))
        pid = whole(facts.get("pid"))
        begin, end = whole(facts.get("init_time")), whole(facts.get("fini_time"))
        if begin is not None and end is not None and 0 <= begin <= end < FARTHEST_NS:
            spans.append((begin, end))
        if pid is not None:
            processes.append(Process(pid))
        node = _dict(facts.get("node"))
        if node.get("release"):
            details["kernel of the host"] = excerpt(str(node["release"]))
    problems, impossible = document.problems, sum(part.impossible for part in parts)
    lost = document.dropped + impossible
    if lost:
        problems.append(
            "records without a time, with a negative duration or that are not JSON: "
            f"{lost:,} are left out"
        )
    return Capture(
        source=Source(str(document.path), KIND, "rocprofv3"),
        tables={kind: joined(found) for kind, found in tables.items()},
        devices=tuple(devices[index] for index in sorted(devices)),
        processes=tuple(processes),
        span_ns=(min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None,
        problems=tuple(problems),
        dropped=lost,
        details=details,
    )


def _devices(agents: Iterable[Any], devices: dict[int, CapturedDevice]) -> dict[int, int]:
    """Handle -> number of the GPU among the GPUs of its node."""
    numbers: dict[int, int] = {}
    for agent in agents:
        agent = _dict(agent)
        handle = whole(_dict(agent.get("id")).get("handle"))
        if agent.get("type") != 2 or handle is None or len(numbers) > 4096:
            continue
        index = whole(agent.get("logical_node_type_id"), 31)
        index = len(numbers) if index is None or index < 0 else index
        numbers[handle] = index
        devices[index] = CapturedDevice(
            index,
            vendor=VENDOR,
            name=_word(agent.get("product_name")),
            architecture=_word(agent.get("name")),
            units=whole(agent.get("cu_count"), 31),
            warp_size=whole(agent.get("wave_front_size"), 31),
        )
    return numbers


def _table(part: _Part, name: str, numbers: dict[int, int]) -> pa.Table:
    """The table of one array with names, devices and registers."""
    rows = part.rows[name]
    if not len(rows):
        return table({"start_ns": [], "end_ns": []})
    found = rows.table()
    columns = {each: found.column(each) for each in found.column_names if not each.startswith("_")}

    def of(column: str) -> list[Any]:
        if column in found.column_names:
            return list(found.column(column).to_pylist())
        return [None] * found.num_rows

    pid = whole(_dict(part.values.get("metadata")).get("pid"))
    columns["pid"] = [pid] * found.num_rows
    strings = _dict(part.values.get("strings"))
    operations = _operations(strings)
    called = [operations.get(each) for each in zip(of("_kind"), of("_operation"), strict=True)]
    if name == "kernel_dispatch":
        columns["device"] = [numbers.get(each) for each in of("_agent")]
        columns |= _kernel_names(of("_kernel"), _list(part.values.get("kernel_symbols")))
    elif name == "memory_copy":
        target = [numbers.get(each) for each in of("_agent")]
        source = [numbers.get(each) for each in of("_other")]
        kinds = [direction(each or "") for each in called]
        columns["device"] = [
            begin if end is None else end for begin, end in zip(source, target, strict=True)
        ]
        columns["copy_kind"] = list(map(copy_kind, kinds, source, target))
        columns["name"] = [f"Memcpy {each}" if each else "Memcpy" for each in kinds]
    else:
        messages = _messages(strings) if name == "marker_api" else {}
        columns["name"] = [
            messages.get(key, text) for key, text in zip(of("correlation"), called, strict=True)
        ]
        if name == "rccl_api":
            columns["operation"] = [operation(each or "") for each in called]
    return table(columns)


def _sorted_out(found: pa.Table, kind: Kind) -> Iterable[tuple[Kind, pa.Table]]:
    """The kinds of events that an array holds."""
    import pyarrow.compute as pc

    if kind == "range" and found.num_rows:
        names = [each for each in found.column_names if each != "correlation"]
        plain, ours = take_apart(found.select(names))
        yield "range", plain
        if ours is not None:
            yield "collective", ours
    elif kind == "collective" and found.num_rows:
        known = pc.is_valid(found.column("operation"))
        yield "collective", found.filter(known)
        others = found.filter(pc.invert(known)).drop_columns("operation")
        if others.num_rows:
            yield "api", others
    else:
        yield kind, found


def _kernel_names(kernels: list[Any], symbols: Iterable[Any]) -> dict[str, list[Any]]:
    facts = {whole(_dict(each).get("kernel_id")): _dict(each) for each in symbols}
    names, shorts, registers, scalars = {}, {}, {}, {}
    for number, symbol in facts.items():
        name = symbol.get("formatted_kernel_name") or symbol.get("kernel_name")
        names[number] = text_of(name) if isinstance(name, str) else None
        short = symbol.get("truncated_kernel_name")
        shorts[number] = (
            (text_of(short) or "").removesuffix(".kd") if isinstance(short, str) else None
        )
        arch = whole(symbol.get("arch_vgpr_count"), 30)
        more = whole(symbol.get("accum_vgpr_count"), 30)
        registers[number] = None if arch is None else arch + (more or 0)
        scalars[number] = whole(symbol.get("sgpr_count"), 31)
    return {
        "name": [names.get(each) or "(kernel without a name)" for each in kernels],
        "short_name": [shorts.get(each) or None for each in kernels],
        "registers": [registers.get(each) for each in kernels],
        "scalar_registers": [scalars.get(each) for each in kernels],
    }


def _operations(strings: dict[str, Any]) -> dict[tuple[int, int], str]:
    """(kind, operation) -> what it is called."""
    return {
        (kind, number): excerpt(text, 1000)
        for kind, each in enumerate(_list(strings.get("buffer_records")))
        for number, text in enumerate(_list(_dict(each).get("operations")))
        if isinstance(text, str)
    }


def _messages(strings: dict[str, Any]) -> dict[int | None, str]:
    """Correlation -> the text of a range or mark."""
    return {
        whole(_dict(each).get("key")): text_of(_dict(each).get("value")) or ""
        for each in _list(strings.get("marker_api"))
        if isinstance(_dict(each).get("value"), str)
    }


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _word(value: object) -> str:
    return excerpt(text_of(value) or "") if isinstance(value, str) else ""
