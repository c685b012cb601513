"""Reads the traces of torch's profiler: the JSON that Kineto writes, plain or gzip.

The keys are those of Kineto's libkineto/src/output_json.cpp and of the recordings in
tests/recordings.

Not read: calls of Python functions, memory events and flows. Their numbers are in ``details``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.facts.captures.columns import FARTHEST_NS, Rows, take_apart, text_of, whole
from portagpu.facts.captures.json_stream import CHUNK_BYTES, Document, Events
from portagpu.facts.captures.model import (
    EVENT_COLUMNS,
    Capture,
    CapturedDevice,
    Kind,
    Process,
    Source,
    arrow,
    import_library,
    table,
)
from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis.kineto_values import (
    NO_TIME,
    all_nanoseconds,
    any_stated,
    are_exact,
    axes,
    collective,
    copy_name,
    direction,
    nanoseconds,
    or_else,
    texts,
    vendor,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

KIND: Final = "Kineto JSON"
_SINCE_1970_US: Final = 10**15
"""Times after this (in 2001) count from 1970, as torch before 2.3 wrote them."""

_KEYS: Final = re.compile(rb'"(?:traceEvents|deviceProperties|schemaVersion)"\s*:|"ph"\s*:')
_CATEGORIES: Final[dict[str, Kind]] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "set",
    "cpu_op": "operator",
    "user_annotation": "range",
    "gpu_user_annotation": "range",
}
_ENDINGS: Final[dict[str, Kind]] = {"_runtime": "api", "_driver": "api", "_sync": "sync"}
_PARAMETERS: Final = "record_param_comms"
_NO_OPERATIONS: Final = ("wait", "init", "")
_DETAILS: Final = {
    "registers": "registers",
    "shared": "shared_bytes",
    "graph": "graph",
    "grid": "grid_x",
    "block": "block_x",
}
"""Fields of a kernel's ``args`` -> the column for which they are read; else they are left out."""


@cache
def _types(details: frozenset[str], *, exact: bool) -> Any:
    """The types of an event and of its ``args``; ``exact`` reads times as decimals."""
    msgspec: Any = import_library("msgspec")
    # what else there may be costs time in each event; one with another type is read apart
    scalar = int | str | None
    time = int | Decimal | None if exact else int | float | None
    keys = {
        "device": "device",
        "stream": "stream",
        "correlation": "correlation",
        "registers": "registers per thread",
        "shared": "shared memory",
        "size": "bytes",
        "direction": "kind",
        "graph": "graph id",
        "operation": "Collective name",
        "sent": "In msg nelems",
        "received": "Out msg nelems",
        "dtype": "dtype",
        "group_size": "Group size",
        "group": "Process Group Name",
        "sequence": "Seq",
        "name": "name",
        "labels": "labels",
    }
    lists = {"grid": "grid", "block": "block"}
    fields: list[tuple[str, Any, None]] = [(name, scalar, None) for name in keys]
    fields += [(name, tuple[int, int, int] | scalar, None) for name in lists]
    fields = [each for each in fields if each[0] not in _DETAILS or each[0] in details]
    args = msgspec.defstruct("Args", fields, rename=keys | lists, gc=False)
    event = msgspec.defstruct(
        "Event",
        [
            ("ph", scalar, None),
            ("cat", scalar, None),
            ("name", scalar, None),
            ("pid", scalar, None),
            ("tid", scalar, None),
            ("ts", time, None),
            ("dur", time, None),
            ("args", args | None, None),
        ],
        gc=False,
    )
    return event, args


def matches(head: bytes, path: Path) -> bool:
    """Whether it is JSON with the keys of Kineto, and not those of another tool's trace."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return start[:1] in (b"{", b"[") and bool(_KEYS.search(head)) and b'"BeginNs"' not in head


def read(path: Path, *, chunk: int = CHUNK_BYTES) -> Capture:
    """What torch's profiler wrote. Raises FormatError where it has no events of it."""
    return read_columns(path, EVENT_COLUMNS, chunk=chunk)


def read_columns(path: Path, columns: Collection[str], *, chunk: int = CHUNK_BYTES) -> Capture:
    """What torch's profiler wrote, without the details of kernels that no wanted column needs."""
    details = frozenset(each for each, column in _DETAILS.items() if column in columns)
    event, args = _types(details, exact=False)
    trace = _Trace(details, args())
    events = Events(event, trace.take, exact=_types(details, exact=True)[0])
    document = Document(path, {("traceEvents",): events, (): events}, trace.value, chunk)
    document.read()
    if not document.seen and not trace.head:
        raise FormatError(f"{path}: has no traceEvents, which torch's profiler writes")
    if not document.seen:
        document.problems.append(f"{path} has no traceEvents")
    return trace.capture(document)


@dataclass(slots=True)
class _Trace:
    """What was read so far."""

    details: frozenset[str]
    no_args: Any
    rows: dict[Kind, Rows] = field(default_factory=dict)
    head: dict[str, Any] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    impossible: int = 0
    span: tuple[int, int] | None = None
    names: dict[int, str] = field(default_factory=dict)
    host_pids: set[int] = field(default_factory=set)
    devices: set[int] = field(default_factory=set)
    absolute: bool = False

    def value(self, where: tuple[str, ...], value: Any) -> None:
        if len(where) == 1:
            self.head[where[0]] = value

    def take(self, batch: list[Any]) -> bool:
        """Take events; False where their times must be read as decimals first."""
        if not are_exact(batch):
            return False
        categories = [event.cat for event in batch]
        by_category: dict[Any, list[Any]] = dict.fromkeys(categories, batch)
        if len(by_category) > 1:
            by_category = {category: [] for category in by_category}
            adding = {category: events.append for category, events in by_category.items()}
            for category, event in zip(categories, batch, strict=True):
                adding[category](event)
        for category, events in by_category.items():
            kind = _kind(category)
            if kind is None:
                self._others(category, events)
            else:
                self._add(kind, category, events)
        return True

    def _others(self, category: object, events: list[Any]) -> None:
        for event in events:
            args = event.args
            if event.ph == "M":
                pid = whole(event.pid)
                if event.name == "process_name" and args and pid is not None:
                    self.names[pid] = text_of(args.name) or ""
                elif args and args.labels == "CPU" and pid is not None:
                    self.host_pids.add(pid)
            elif category == "Trace" and event.ph == "X":
                times = [nanoseconds(event.ts), nanoseconds(event.dur)]
                if times[0] is not None and times[1] is not None and times[1] >= 0:
                    self.span = (times[0], times[0] + times[1])
            elif category is not None:
                self.left_out[str(category)] += 1

    def _add(self, kind: Kind, category: str, events: list[Any]) -> None:
        kept = events
        if {each.ph for each in events} != {"X"}:
            wanted = ("X", "i") if kind == "range" else ("X",)
            kept = [each for each in events if each.ph in wanted]
            if len(kept) < len(events):
                self.left_out[category] += len(events) - len(kept)
            if not kept:
                return
        np: Any = import_library("numpy")
        starts = all_nanoseconds([each.ts for each in kept])
        lasting = all_nanoseconds(
            [0 if each.dur is None and each.ph == "i" else each.dur for each in kept]
        )
        good = (starts != NO_TIME) & (lasting >= 0) & (starts > -FARTHEST_NS)
        if not good.all():
            self.impossible += int((~good).sum())
            kept = [each for each, fine in zip(kept, good.tolist(), strict=True) if fine]
            starts, lasting = starts[good], lasting[good]
            if not kept:
                return
        if int(starts.max()) > _SINCE_1970_US * 1000:
            self.absolute = True
        times = {"start_ns": starts, "end_ns": starts + lasting}
        if kind == "operator":
            ours = [_is_collective(each) for each in kept]
            if any(ours):
                at = np.array(ours)
                calls = [each for each, chosen in zip(kept, ours, strict=True) if chosen]
                kept = [each for each, chosen in zip(kept, ours, strict=True) if not chosen]
                self._store("collective", calls, {key: each[at] for key, each in times.items()})
                times = {key: each[~at] for key, each in times.items()}
        self._store(kind, kept, times, on_device=category == "gpu_user_annotation")

    def _store(
        self, kind: Kind, events: list[Any], times: dict[str, Any], *, on_device: bool = False
    ) -> None:
        rows = self.rows.setdefault(kind, Rows())
        if not events:
            return
        args = [each.args for each in events]
        if not all(args):
            args = [each or self.no_args for each in args]
        columns: dict[str, Any] = dict(times)
        columns["name"] = texts([each.name for each in events])
        if on_device or kind in ("kernel", "copy", "set", "sync"):
            columns["device"] = or_else([each.device for each in args], events, "pid", 31)
            columns["stream"] = or_else([each.stream for each in args], events, "tid", 63)
            self.devices.update(
                each for each in set(columns["device"]) if type(each) is int and 0 <= each < 4096
            )
        else:
            columns["pid"] = [each.pid for each in events]
            columns["tid"] = [each.tid for each in events]
            self.host_pids.update(
                each for each in set(columns["pid"]) if type(each) is int and abs(each) < 1 << 62
            )
        if kind in ("kernel", "copy", "set", "sync", "api"):
            columns["correlation"] = [each.correlation for each in args]
        if kind in ("copy", "set"):
            columns["bytes"] = [each.size for each in args]
        if kind == "copy":
            columns["copy_kind"] = [
                direction(each.direction, name)
                for each, name in zip(args, columns["name"], strict=True)
            ]
            columns["name"] = [copy_name(name) for name in columns["name"]]
        if kind == "kernel":
            for detail in self.details:
                values = [getattr(each, detail) for each in args]
                columns |= (
                    axes(detail, values)
                    if detail in ("grid", "block")
                    else {_DETAILS[detail]: values}
                )
        stated = [each.operation for each in args] if kind == "kernel" else []
        if kind == "collective" or any_stated(stated):
            columns |= collective(args)
        rows.add(
            {
                name: values
                for name, values in columns.items()
                if name in times or name == "name" or any_stated(values)
            }
        )

    def capture(self, document: Document) -> Capture:
        """All of it."""
        problems = document.problems
        if document.dropped:
            problems.append(
                f"events that are not JSON of an event: {document.dropped:,} are left out"
            )
        if self.impossible:
            problems.append(
                "events without a time, with a negative duration or outside of any clock: "
                f"{self.impossible:,} are left out"
            )
        head = self.head
        info = head.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank, world = whole(info.get("rank"), 31), whole(info.get("world_size"), 31)
        base = whole(head.get("baseTimeNanoseconds"))
        epoch = 0 if self.absolute else base
        for kind in self._recorded():
            self.rows.setdefault(kind, Rows())
        return Capture(
            source=Source(
                path=str(document.path),
                format=KIND,
                tool="torch.profiler",
                version=word(head.get("pytorch_version") or head.get("torch_version")),
                schema=word(head.get("schemaVersion")),
            ),
            tables=_tables(self.rows),
            devices=self._devices(),
            processes=tuple(
                Process(pid, rank, excerpt(self.names.get(pid, "")), world_size=world)
                for pid in sorted(self.host_pids)
            ),
            span_ns=self.span,
            epoch_ns=epoch,
            problems=tuple(problems),
            dropped=document.dropped + self.impossible,
            details=self._details(info),
        )

    def _recorded(self) -> set[Kind]:
        """The kinds for which this trace has a place, also where there was none."""
        found: set[Kind] = set()
        device: set[Kind] = {"kernel", "copy", "set", "api"}
        if device & self.rows.keys() or any(each.endswith("_version") for each in self.head):
            found |= device
        if {"operator", "range"} & self.rows.keys():
            found |= {"operator", "range"}
        return found

    def _devices(self) -> tuple[CapturedDevice, ...]:
        stated = self.head.get("deviceProperties")
        found: dict[int, CapturedDevice] = {}
        for each in stated if isinstance(stated, list) else ():
            index = whole(each.get("id"), 31) if isinstance(each, dict) else None
            if index is None:
                continue
            name = excerpt(text_of(each.get("name")) or "")
            found[index] = CapturedDevice(
                index,
                vendor=vendor(name, self.head),
                name=name,
                units=whole(each.get("numSms"), 31),
                memory_bytes=whole(each.get("totalGlobalMem")),
                warp_size=whole(each.get("warpSize"), 31),
            )
        for index in self.devices - found.keys():
            found[index] = CapturedDevice(index, vendor=vendor("", self.head))
        return tuple(found[index] for index in sorted(found))

    def _details(self, info: dict[str, Any]) -> dict[str, str]:
        found = {
            key: word(value) for key, value in self.head.items() if key.endswith(("version", "id"))
        }
        found |= {
            key: word(value)
            for key, value in info.items()
            if key == "backend" or key.endswith("_version")
        }
        found |= {f"left out: {key}": f"{n:,}" for key, n in sorted(self.left_out.items())}
        return {excerpt(key): value for key, value in found.items() if value}


def _tables(rows: dict[Kind, Rows]) -> dict[Kind, Any]:
    """The tables of all kinds, with our labels of ranges in their columns."""
    pa: Any = arrow()
    empty: dict[str, list[int]] = {"start_ns": [], "end_ns": []}
    found = {kind: each.table() if len(each) else table(empty) for kind, each in rows.items()}
    if len(rows.get("range", ())):
        found["range"], ours = take_apart(found["range"])
        if ours is not None:
            stated = [found["collective"]] if "collective" in found else []
            joined = pa.concat_tables([*stated, ours], promote_options="default")
            order = [each for each in EVENT_COLUMNS if each in joined.column_names]
            found["collective"] = joined.unify_dictionaries().select(order)
    return found


def _kind(category: object) -> Kind | None:
    if not isinstance(category, str):
        return None
    found = _CATEGORIES.get(category)
    if found is None:
        for ending, kind in _ENDINGS.items():
            if category.endswith(ending):
                return kind
    return found


def _is_collective(event: Any) -> bool:
    args = event.args
    if args is None or args.operation is None:
        return False
    return event.name == _PARAMETERS and args.operation not in _NO_OPERATIONS
