"""What a profiler captured: events in columns, devices, and what the tool said of itself.

Times are integers of nanoseconds on one clock per capture. A null value, or a column that a table
lacks, means that the source does not have it; it never means 0. :func:`arrow` is pyarrow, which
holds the columns. A small untrusted gzip can hold terabytes: :func:`most_unpacked` bounds it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from portagpu.base.errors import MissingDependency
from portagpu.base.plugins import install
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from types import ModuleType

    import pyarrow as pa


Kind = Literal["kernel", "copy", "set", "api", "operator", "range", "collective", "sync"]
KINDS: Final[tuple[Kind, ...]] = (
    "kernel",  # a kernel on a device
    "copy",  # bytes moved by a copy engine or a copy kernel of the runtime
    "set",  # memory filled by the runtime
    "api",  # a call of the vendor's runtime or driver on the host
    "operator",  # an operation of the framework on the host
    "range",  # annotated by the program; a mark has end = start
    "collective",  # a collective call on the host, with its operation, bytes and group
    "sync",  # the host or a stream waits for a device
)
ON_DEVICE: Final[tuple[Kind, ...]] = ("kernel", "copy", "set")

COPY_KINDS: Final = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH")

_WORD: Final = "word"  # a dictionary of strings: few different values in many rows
EVENT_COLUMNS: Final[dict[str, str]] = {
    "kind": _WORD,
    "start_ns": "int64",
    "end_ns": "int64",  # null for a range that never closed
    "name": _WORD,  # as long as the source has it: demangled, with arguments
    "short_name": _WORD,  # without template and call arguments, where the source has one
    "pid": "int64",
    "tid": "int64",
    "device": "int32",  # the number of the device in the capture, as in Capture.devices
    "stream": "int64",
    "queue": "int64",
    "correlation": "int64",  # the same for a call and for what it started on the device
    "grid_x": "int32",  # blocks, also where the source counts work-items
    "grid_y": "int32",
    "grid_z": "int32",
    "block_x": "int32",  # threads
    "block_y": "int32",
    "block_z": "int32",
    "registers": "int32",  # of a thread; on AMD vector registers of both kinds
    "scalar_registers": "int32",
    "shared_bytes": "int64",  # of a block, static and dynamic
    "scratch_bytes": "int64",  # local memory of a thread
    "graph": "int64",  # of a captured graph that launched it
    "bytes": "int64",  # of a copy, a set, a collective's input or output as ``operation`` says
    "copy_kind": _WORD,  # one of COPY_KINDS
    "domain": _WORD,  # of a range
    "payload": _WORD,  # of a range: its labels as JSON
    "operation": _WORD,  # of a collective: all_reduce, ...
    "dtype": _WORD,
    "group": _WORD,
    "group_size": "int32",
    "sequence": "int64",  # of a collective in its group
    "flops": "float64",  # where the source counted or stated them
}
"""Column -> Arrow type; "word" is a dictionary of strings. The order is that of the schema."""

TOTAL_COLUMNS: Final[dict[str, str]] = {
    "kind": _WORD,
    "name": _WORD,
    "device": "int32",
    "calls": "int64",
    "total_ns": "int64",
    "mean_ns": "float64",
    "median_ns": "float64",
    "min_ns": "int64",
    "max_ns": "int64",
    "stddev_ns": "float64",
    "bytes": "int64",
    "self_ns": "int64",  # of an operator: without the operators in it
}
"""Totals that the tool itself computed, where it gives no events."""

METRIC_COLUMNS: Final[dict[str, str]] = {
    "launch": "int64",  # the number of the kernel's launch in the capture
    "name": _WORD,
    "device": "int32",
    "metric": _WORD,  # as the tool names it
    "unit": _WORD,
    "value": "float64",
}
"""Counters of kernels, as the tool names them: one row for each launch and metric."""


@dataclass(frozen=True, slots=True)
class Source:
    """Which file, and what wrote it."""

    path: str
    format: str
    """The reader's KIND."""
    tool: str = ""
    version: str = ""
    schema: str = ""
    """The version of the format, where the file states one."""


@dataclass(frozen=True, slots=True)
class CapturedDevice:
    """A device that the capture knows, by its number there."""

    index: int
    vendor: str = ""
    name: str = ""
    uuid: str = ""
    architecture: str = ""
    units: int | None = None
    memory_bytes: int | None = None
    warp_size: int | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that the capture knows."""

    pid: int
    rank: int | None = None
    name: str = ""
    host: str = ""
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """What the profiler said of its own capture: lost records, missing rights, wrong versions."""

    level: Literal["info", "warning", "error"]
    text: str


@dataclass(frozen=True, slots=True)
class Capture:
    """One file of a profiler: mostly that of one rank."""

    source: Source
    tables: Mapping[Kind, pa.Table] = field(default_factory=dict)
    """Kind -> events of it, with those columns of EVENT_COLUMNS but ``kind`` that the source has.
    A kind that the source has a place for and captured none of has a table of 0 rows; a kind that
    it cannot or did not record is absent."""
    devices: tuple[CapturedDevice, ...] = ()
    processes: tuple[Process, ...] = ()
    span_ns: tuple[int, int] | None = None
    """From when to when the tool recorded, where the file states it."""
    epoch_ns: int | None = None
    """Nanoseconds since 1970 at time 0 of the capture, where known: it orders several ranks."""
    totals: pa.Table | None = None
    """Columns TOTAL_COLUMNS, of tools that print sums and no events."""
    metrics: pa.Table | None = None
    """Columns METRIC_COLUMNS."""
    messages: tuple[ToolMessage, ...] = ()
    problems: tuple[str, ...] = ()
    """Sentences on what could not be read; the rest is here."""
    dropped: int = 0
    """Events that the file has, and that could not be read or are impossible."""
    details: Mapping[str, str] = field(default_factory=dict)
    """What else says under which conditions it was taken: driver, torch, Kineto's version."""

    @property
    def rank(self) -> int | None:
        """The rank of the capture, where all its processes are of one."""
        ranks = {each.rank for each in self.processes if each.rank is not None}
        return ranks.pop() if len(ranks) == 1 else None

    def count(self, kind: Kind) -> int | None:
        """How many events of that kind; None where the capture cannot have any."""
        return self.tables[kind].num_rows if kind in self.tables else None


def field_type(column: str, columns: Mapping[str, str] = EVENT_COLUMNS) -> pa.DataType:
    """The Arrow type of a column."""
    pa: Any = arrow()
    kind = columns[column]
    return pa.dictionary(pa.int32(), pa.string()) if kind == _WORD else pa.type_for_alias(kind)


def table(values: Mapping[str, Any], columns: Mapping[str, str] = EVENT_COLUMNS) -> pa.Table:
    """A table of ``values`` (column -> sequence or Arrow array), cast to the columns' types.

    The columns are in the schema's order. Raises KeyError for a name that the schema lacks.
    """
    pa: Any = arrow()
    if unknown := values.keys() - columns.keys():
        raise KeyError(f"no column of the schema: {', '.join(sorted(unknown))}")
    names = [name for name in columns if name in values]
    arrays = [_cast(values[name], field_type(name, columns)) for name in names]
    return pa.table(dict(zip(names, arrays, strict=True)))


def _cast(values: Any, kind: pa.DataType) -> Any:
    pa: Any = arrow()
    if isinstance(values, pa.Array | pa.ChunkedArray):
        if values.type == kind:
            return values
        if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(values.type):
            return values.cast(pa.string()).dictionary_encode()
        return values.cast(kind)
    if pa.types.is_dictionary(kind):
        # what dictionary_encode() gives; it costs 0.08 CPU s to load
        words = dict.fromkeys(each for each in values if each is not None)
        codes = {each: code for code, each in enumerate(words)}
        numbers = pa.array([codes.get(each) for each in values], pa.int32())
        return pa.DictionaryArray.from_arrays(numbers, pa.array(list(codes), pa.string()))
    return pa.array(values, kind)


def events(capture: Capture, kinds: Iterable[Kind] = KINDS) -> pa.Table:
    """All events of ``kinds`` in the whole schema, one row each."""
    pa: Any = arrow()
    chosen = [kind for kind in kinds if kind in capture.tables]
    schema = pa.schema([(name, field_type(name)) for name in EVENT_COLUMNS])
    parts = [
        pa.table(
            {name: _whole_column(kind, capture.tables[kind], name) for name in EVENT_COLUMNS},
            schema=schema,
        )
        for kind in chosen
    ]
    return pa.concat_tables(parts).unify_dictionaries() if parts else schema.empty_table()


def _whole_column(kind: Kind, part: pa.Table, name: str) -> Any:
    pa: Any = arrow()
    if name == "kind":
        zeros = pa.repeat(pa.scalar(0, pa.int32()), part.num_rows)
        return pa.DictionaryArray.from_arrays(zeros, pa.array([kind]))
    if name in part.column_names:
        return part.column(name)
    return pa.nulls(part.num_rows, field_type(name))


def import_library(name: str) -> Any:
    """The module ``name``, which the extra ``trace`` installs. Raises MissingDependency."""
    try:
        return _imported(name) if sys.modules.get(name) else import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise MissingDependency(
            f"traces need {package}, which is not installed: {install('trace')}"
        ) from error


@cache
def _imported(name: str) -> Any:
    return import_module(name)


def arrow() -> ModuleType:
    """The module ``pyarrow``. Raises MissingDependency."""
    module: ModuleType = import_library("pyarrow")
    return module


_TIMES: Final = 100
"""Traces shrink to a tenth or a thirtieth."""
_BYTES: Final = 256 << 20
"""What any gzip may hold."""


def most_unpacked(path: Path) -> int:
    """The bytes that the gzip ``path`` may hold."""
    return max(_BYTES, _TIMES * path.stat().st_size)


def check_unpacked(path: Path, size: int, most: int) -> None:
    """Raise FormatError where ``size`` bytes were unpacked, and that is more than ``most``."""
    if size > most:
        raise FormatError(f"{path}: holds more than {most >> 20:,} MiB: unpack it with gunzip")
