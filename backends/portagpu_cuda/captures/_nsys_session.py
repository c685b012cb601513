"""What an export of nsys says of the session: devices, processes, times, options, messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.facts.captures.model import CapturedDevice, Kind, Process, ToolMessage
from portagpu.facts.captures.sqlite import all_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from portagpu.facts.captures.sqlite import SqliteFile

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
SET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
CALL: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNC: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RANGE: Final = "NVTX_EVENTS"
EVENTS: Final = (KERNEL, GRAPH, COPY, SET, CALL, SYNC, RANGE)
_LEVELS: Final = {"warning": "warning", "error": "error", "fatal": "error"}
_MAX_MESSAGES: Final = 1000


def is_export(file: SqliteFile) -> bool:
    """Whether the file has an event's table, or says that Nsight Systems made it."""
    if any(each in file.tables for each in EVENTS):
        return True
    named = file.rows("META_DATA_EXPORT", "name", "value")
    return any("Nsight Systems" in str(value) for _, value in named)


class Session:
    """One open file, without its events."""

    def __init__(self, file: SqliteFile, wanted: frozenset[str]) -> None:
        self._file, self._wanted = file, wanted
        self._strings = file.texts("StringIds", "id", "value")
        self._meta = self._pairs("META_DATA_EXPORT")
        self._options = self._pairs("META_DATA_CAPTURE")
        self._messages: list[ToolMessage] = []
        self._ranks: dict[int, int] = {}
        """Process -> rank, from the names of threads and from MPI."""
        self._devices = self._device_numbers()

    def _pairs(self, of: str) -> dict[str, str]:
        return {str(name): str(value) for name, value in self._file.rows(of, "name", "value")}

    def recorded(self, needed: str) -> bool:
        """Whether a table is there, or is absent only because it got no row."""
        if needed in self._file.tables:
            return True
        word = {RANGE: "NVTX", SYNC: "SYNC"}.get(needed, "CUDA")
        if stated := self._options.get(f"COLLECT_{word}_TRACE"):
            return stated.lower() == "true"
        # without the options: streams and other tables of the trace show that it ran
        others = {*EVENTS[:-1], "TARGET_INFO_CUDA_STREAM", "TARGET_INFO_CUDA_CONTEXT_INFO"}
        lazy = self._meta.get("EXPORT_PARAM_LAZY", "true") == "true"
        return word == "CUDA" and lazy and any(each in self._file.tables for each in others)

    def _device_numbers(self) -> dict[tuple[int, int], int]:
        """(process, its device number) -> the machine's, where processes number differently."""
        rows = self._file.rows("TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
        known = {(pid, own): gpu for pid, own, gpu in rows if all_whole(pid, own, gpu)}
        by_own: dict[int, set[int]] = {}
        for (_, own), gpu in known.items():
            by_own.setdefault(own, set()).add(gpu)
        return known if any(len(each) > 1 for each in by_own.values()) else {}

    def captured_devices(self, tables: Mapping[Kind, pa.Table]) -> tuple[CapturedDevice, ...]:
        rows = self._file.rows("TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
        own_number = {gpu: own for _, own, gpu in rows if all_whole(own, gpu)}
        found: dict[int, CapturedDevice] = {}
        columns = ("id", "cuDevice", "name", "uuid", "computeMajor", "computeMinor", "smCount")
        rows = self._file.rows("TARGET_INFO_GPU", *columns, "totalMemory", "threadsPerWarp")
        for number, own, name, uuid, *rest in rows:
            if not isinstance(number, int):
                continue
            major, minor, units, memory, warp = (x if isinstance(x, int) else None for x in rest)
            index = number if self._devices else own_number.get(number, own)
            index = index if isinstance(index, int) else number
            found[index] = CapturedDevice(
                index,
                vendor="nvidia",
                name=str(name or ""),
                uuid=str(uuid or ""),
                architecture="" if major is None else f"sm_{major}{minor or 0}",
                units=units,
                memory_bytes=memory,
                warp_size=warp,
            )
        for kind in ("kernel", "copy", "set"):
            if kind in tables and "device" in tables[kind].column_names:
                for index in tables[kind].column("device").unique().to_pylist():
                    if index is not None:
                        found.setdefault(index, CapturedDevice(index, vendor="nvidia"))
        return tuple(found[index] for index in sorted(found))

    def processes(self, tables: Mapping[Kind, pa.Table]) -> tuple[Process, ...]:
        seen = {
            pid
            for found in tables.values()
            if "pid" in found.column_names
            for pid in found.column("pid").unique().to_pylist()
            if pid is not None
        }
        names = {pid: str(name or "") for pid, name in self._file.rows("PROCESSES", "pid", "name")}
        for own, rank in self._file.rows("MPI_RANKS", "globalPid", "rank"):
            if all_whole(own, rank):
                self._ranks[(own >> 24) & 0xFFFFFF] = rank
        return tuple(Process(pid, self._ranks.get(pid), names.get(pid, "")) for pid in sorted(seen))

    def span(self, tables: Mapping[Kind, pa.Table]) -> tuple[int, int] | None:
        """From when to when nsys recorded; its start is 0 where it is on another clock."""
        import pyarrow.compute as pc

        rows = self._file.rows("ANALYSIS_DETAILS", "duration", "startTime", "stopTime")
        if not rows:
            return None
        first = [pc.min(each.column("start_ns")).as_py() for each in tables.values()]
        last = [pc.max(each.column("end_ns")).as_py() for each in tables.values()]
        moments = [each for each in (*first, *last) if each is not None]
        duration, start, stop = rows[0]
        bounds = [(start, stop)] if all_whole(start, stop) else []
        bounds += [(0, duration)] if all_whole(duration) else []
        for begin, end in bounds:
            if begin < end and all(begin <= each <= end for each in moments):
                return begin, end
        return None

    def diagnostics(self) -> list[ToolMessage]:
        levels = dict(self._file.rows("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", "id", "name"))
        levels = levels or {1: "Info", 2: "Warning", 3: "Error"}
        found: dict[ToolMessage, None] = {}
        for severity, text in self._file.rows("DIAGNOSTIC_EVENT", "severity", "text"):
            level = _LEVELS.get(str(levels.get(severity, severity)).lower(), "info")
            if isinstance(text, str) and text.strip():
                found[ToolMessage(level, text.strip())] = None  # type: ignore[arg-type]
        return list(found)[:_MAX_MESSAGES]

    def details(self) -> dict[str, str]:
        found = {
            name.lower().replace("_", " ").replace(":", " "): value
            for name, value in sorted(self._options.items())
            if name.startswith(("COLLECT_", "CUDA_GRAPH_TRACE")) or name == "RUN_DURATION_MS"
        }
        kept = ("EXPORT_PLATFORM", "EXPORT_ARCH", "DERIVED_FROM")
        shown = [name for name in kept if name in self._meta]
        return found | {name.lower().replace("_", " "): self._meta[name] for name in shown}


def process_of(numbers: pa.Array) -> pa.Array:
    """The process in nsys' numbers of processes and threads."""
    import pyarrow.compute as pc

    return pc.bit_wise_and(pc.shift_right(numbers, 24), 0xFFFFFF)
