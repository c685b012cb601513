"""RPD: the SQLite files of rocmProfileData's rpd_tracer, schemas 2 and 3.

The tables are those of ROCm/rocmProfileData, rocpd_python/rocpd/schema_data/tableSchema.cmd. Times
are nanoseconds. One row of ``rocpd_op`` is one kernel, copy or fill on a device, and its type says
which; a "Task" is a kernel that a graph launched. One row of ``rocpd_api`` is one call, or a range
of ROCTx under the name "UserMarker". ``rocpd_api_ops`` joins a call with what it started. Grids are
not read: whether they count blocks or work-items depends on the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.columns import (
    Numbered,
    Words,
    narrow,
    take_apart,
    to_table,
    translated,
)
from portagpu.facts.captures.model import Capture, Kind, Process, Source, arrow
from portagpu.facts.captures.sqlite import SqliteFile, all_whole, is_sqlite, opened, wholes
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from portagpu.facts.captures.columns import Columns

KIND: Final = "RPD"
_OPS: Final = "rocpd_op"
_CALLS: Final = "rocpd_api"
_OF_OPS: Final = ("id", "gpuId", "queueId", "description_id", "opType_id")
_OF_CALLS: Final = ("id", "pid", "tid", "apiName_id", "args_id")
_RANGE: Final = "UserMarker"
_TYPES: Final[dict[str, Kind]] = {
    "KernelExecution": "kernel",
    "Task": "kernel",
    "CopyHostToDevice": "copy",
    "CopyDeviceToHost": "copy",
    "CopyDeviceToDevice": "copy",
    "FillBuffer": "set",
}
_DIRECTIONS: Final = {
    "CopyHostToDevice": "HtoD",
    "CopyDeviceToHost": "DtoH",
    "CopyDeviceToDevice": "DtoD",
}


def matches(head: bytes, path: Path) -> bool:
    """Whether the file is of this format."""
    if not is_sqlite(head):
        return False
    try:
        with opened(path) as file:
            return file.has(_OPS, "gpuId", "opType_id") and _CALLS in file.tables
    except FormatError:
        return False


def read(path: Path) -> Capture:
    """What the file holds. Raises FormatError, with one line that says what is wrong."""
    with opened(path) as file:
        if not file.has(_OPS, *_OF_OPS) or not file.has(_CALLS, *_OF_CALLS):
            raise FormatError(f"{path}: not a file of rpd_tracer: its tables lack columns")
        strings = file.texts("rocpd_string", "id", "string")
        tables: dict[Kind, pa.Table] = {}
        details = _operations(file, strings, tables)
        pids = _host(file, strings, tables)
        rows = file.rows("rocpd_metadata", "tag", "value")
        schema = next((str(value) for tag, value in rows if tag == "schema_version"), "")
        return Capture(
            source=Source(str(path), KIND, "rpd_tracer", schema=schema),
            tables=tables,
            processes=tuple(Process(pid) for pid in sorted(pids)),
            problems=tuple(file.problems),
            dropped=file.dropped,
            details=details,
        )


def _numbers(file: SqliteFile, table: str, key: str, value: str) -> dict[int, int]:
    """Key -> value of a table of whole numbers."""
    found: dict[int, int] = {}
    for batch in file.batches(table, wholes(key, value)):
        if key in batch and value in batch:
            keys, values = batch[key].to_pylist(), batch[value].to_pylist()
            found |= {k: v for k, v in zip(keys, values, strict=True) if all_whole(k, v)}
    return found


def _operations(
    file: SqliteFile, strings: dict[int, str], tables: dict[Kind, pa.Table]
) -> dict[str, str]:
    """Add kernels, copies and fills; returns how many operations are none of them, by type."""
    import pyarrow.compute as pc

    pa: Any = arrow()
    calls = _numbers(file, "rocpd_api_ops", "op_id", "api_id")
    sizes = _numbers(file, "rocpd_copyapi", "api_ptr_id", "size")
    names, kinds = Words(), Words()
    of_names = Numbered(
        {key: text or "(kernel without a name)" for key, text in strings.items()}, names
    )
    collected: dict[Kind, list[Columns]] = {"kernel": [], "copy": [], "set": []}
    others: dict[str, int] = {}

    def convert(batch: Columns) -> Columns:
        found = {"start_ns": batch["start"], "end_ns": batch["end"], "queue": batch["queueId"]}
        found["device"] = narrow(batch["gpuId"], "device")
        found["correlation"] = translated(batch["id"], calls)
        return found | {"of": batch["description_id"], "type": batch["opType_id"]}

    for batch in file.events(_OPS, wholes(*_OF_OPS), convert):
        types = batch.pop("type")
        for number in pc.unique(types).to_pylist():
            text = strings.get(number, "(type missing)")
            chosen = (
                pc.equal(types, number).fill_null(False)
                if number is not None
                else pc.is_null(types)
            )
            part = {key: value.filter(chosen) for key, value in batch.items()}
            described, size = part.pop("of"), len(part["start_ns"])
            kind = _TYPES.get(text)
            if kind is None:
                others[text] = others.get(text, 0) + size
                continue
            if kind == "kernel":
                part["name"] = of_names.of(described)
            else:
                way = _DIRECTIONS.get(text, "")
                name = f"Memcpy {way}" if way else "Memset"
                part["name"] = pa.repeat(pa.scalar(names.code(name), pa.int32()), size)
                part["bytes"] = translated(part["correlation"], sizes)
                if way:
                    part["copy_kind"] = pa.repeat(pa.scalar(kinds.code(way), pa.int32()), size)
            collected[kind].append(part)
    for kind, parts in collected.items():
        tables[kind] = to_table(parts, {"name": names, "copy_kind": kinds}, kind)
    return {f"left out: {text}": str(count) for text, count in sorted(others.items())}


def _host(file: SqliteFile, strings: dict[int, str], tables: dict[Kind, pa.Table]) -> set[int]:
    """Add calls, ranges and our collectives; returns the processes."""
    import pyarrow.compute as pc

    texts = file.texts("rocpd_ustring", "id", "string") or strings
    names, messages = Words(), Words()
    of_names = Numbered(strings, names)
    of_texts = Numbered(
        {key: text or "(range without a name)" for key, text in texts.items()}, messages
    )
    marker = names.code(_RANGE)
    calls: list[Columns] = []
    ranges: list[Columns] = []
    pids: set[int] = set()

    def convert(batch: Columns) -> Columns:
        found = {"start_ns": batch["start"], "end_ns": batch["end"]}
        found |= {"pid": batch["pid"], "tid": batch["tid"], "correlation": batch["id"]}
        return found | {"name": of_names.of(batch["apiName_id"]), "of": batch["args_id"]}

    for batch in file.events(_CALLS, wholes(*_OF_CALLS), convert):
        pids |= {each for each in pc.unique(batch["pid"]).to_pylist() if all_whole(each)}
        is_range = pc.equal(batch["name"], marker).fill_null(False)
        plain = {key: value.filter(pc.invert(is_range)) for key, value in batch.items()}
        marked = {key: value.filter(is_range) for key, value in batch.items()}
        plain.pop("of")
        marked["name"] = of_texts.of(marked.pop("of"))
        marked.pop("correlation")
        calls.append(plain)
        ranges.append(marked)
    tables["api"] = to_table(calls, {"name": names}, "api")
    tables["range"], ours = take_apart(to_table(ranges, {"name": messages}, "range"))
    if ours is not None:
        tables["collective"] = ours
    return pids
