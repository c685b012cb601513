"""A summary of captures: its columns, and its tables in words for a terminal and for a page.

Times are nanoseconds; null means that the source lacks it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from portagpu.base.units import number, quantity, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from portagpu.facts.captures.model import CapturedDevice, Source, ToolMessage

SCHEMA: Final = "portagpu.trace-summary/1"

Category = Literal[
    "communication",
    "copy",
    "attention",
    "gemm",
    "convolution",
    "normalisation",
    "reduction",
    "elementwise",
    "generated",
    "unknown",
]
"""What a kernel does. "generated" was written by a compiler, and its name does not say what it
does; "unknown" matched no rule, and is never counted as one of the others."""

SUMMARY_COLUMNS: Final[dict[str, str]] = {
    "rank": "int32",
    "device": "int32",
    "kind": "word",  # kernel, copy or set
    "name": "word",  # as long as the source has it: templates distinguish kernels
    "category": "word",
    "library": "word",
    "rule": "word",  # which rule of classification decided
    "calls": "int64",
    "total_ns": "int64",
    "mean_ns": "float64",
    "median_ns": "float64",
    "p95_ns": "float64",
    "min_ns": "int64",
    "max_ns": "int64",
    "stddev_ns": "float64",  # of the population
    "percent_of_kernels": "float64",  # of the sum of all kernels of that device
    "percent_of_wall": "float64",  # the union of its intervals, of the device's wall time
    "exposed_ns": "int64",  # while nothing of another category ran on that device
    "bytes": "int64",
}
"""One row for each rank, device, kind and name; the longest total first."""

CATEGORY_COLUMNS: Final[dict[str, str]] = {
    "rank": "int32",
    "device": "int32",
    "kind": "word",
    "category": "word",
    "names": "int64",  # how many different names of SUMMARY_COLUMNS
    "calls": "int64",
    "total_ns": "int64",
    "mean_ns": "float64",
    "median_ns": "float64",
    "p95_ns": "float64",
    "min_ns": "int64",
    "max_ns": "int64",
    "stddev_ns": "float64",
    "percent_of_kernels": "float64",
    "percent_of_wall": "float64",
    "exposed_ns": "int64",
    "bytes": "int64",
}
"""One row for each rank, device, kind and category; the columns mean what they do above."""

RANGE_COLUMNS: Final[dict[str, str]] = {
    "rank": "int32",
    "path": "word",  # names from the outermost range, with "/" between
    "depth": "int32",
    "calls": "int64",
    "host_ns": "int64",  # from start to end on the host, all calls
    "mean_host_ns": "float64",
    "device_ns": "int64",  # the union of what it started on devices
    "kernels": "int64",
}

OPERATOR_COLUMNS: Final[dict[str, str]] = {
    "rank": "int32",
    "name": "word",
    "calls": "int64",
    "total_ns": "int64",
    "self_ns": "int64",  # without what ran in it on the same thread
    "mean_ns": "float64",
    "median_ns": "float64",
    "p95_ns": "float64",
    "max_ns": "int64",
}
"""One row for each rank and operator of the framework on the host; the longest total first."""

COLLECTIVE_COLUMNS: Final[dict[str, str]] = {
    "operation": "word",
    "group": "word",
    "sequence": "int64",
    "dtype": "word",
    "bytes": "int64",
    "ranks": "int32",  # how many captures have it
    "duration_ns": "int64",  # the shortest among the ranks: the transfer without waiting
    "skew_ns": "int64",  # the longest minus the shortest: how long the first rank waited
    "last_rank": "int32",  # the rank that came last, by the shortest duration
}
"""One row for each collective that more than one rank has."""


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """How one device spent its time between its first and its last event."""

    rank: int | None
    device: int
    wall_ns: int
    busy_ns: int
    """The union of kernels, copies and sets."""
    idle_ns: int
    kernel_sum_ns: int
    compute_ns: int
    """The union of kernels that are not communication."""
    communication_ns: int
    exposed_communication_ns: int
    """Communication while no compute kernel ran."""
    copy_ns: int
    exposed_copy_ns: int
    """Copies while no kernel ran."""
    gaps: int
    """Idle stretches between the first and the last event."""
    median_gap_ns: float | None
    longest_gap_ns: int | None
    median_launch_ns: float | None
    """From the start of the call on the host to the start of its kernel."""
    by_category_ns: Mapping[str, int] = field(default_factory=dict)
    """Category -> the union of its intervals."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A range that repeats at the outermost level, one entry a call: the steps of training."""

    rank: int | None
    name: str
    host_ns: tuple[int, ...]
    device_ns: tuple[int, ...]
    by_category_ns: tuple[Mapping[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """What captures show together."""

    sources: tuple[Source, ...]
    rows: pa.Table
    """SUMMARY_COLUMNS."""
    devices: tuple[DeviceTime, ...]
    ranges: pa.Table
    """RANGE_COLUMNS."""
    collectives: pa.Table
    """COLLECTIVE_COLUMNS."""
    steps: tuple[Steps, ...] = ()
    hardware: tuple[CapturedDevice, ...] = ()
    api_ns: Mapping[str, int] = field(default_factory=dict)
    """Name of a call of the runtime on the host -> its time, all calls together."""
    events: Mapping[str, int] = field(default_factory=dict)
    """Kind -> how many events; a kind that no source could have is absent."""
    messages: tuple[ToolMessage, ...] = ()
    problems: tuple[str, ...] = ()
    dropped: int = 0
    details: Mapping[str, str] = field(default_factory=dict)
    categories: pa.Table | None = None
    """CATEGORY_COLUMNS; None where nobody computed it."""
    operators: pa.Table | None = None
    """OPERATOR_COLUMNS; None where nobody computed it."""


UNKNOWN: Final = "-"
TEXTS: Final = frozenset(
    {"where", "name", "path", "category", "operation", "group", "library", "dtype"}
)
"""Columns of text: all others are numbers."""
Table = tuple[tuple[str, ...], list[list[str]]]


def table_of(summary: Summary, name: str) -> Table:
    """The head and the rows of a table, which has the name of a value of ``--by``.

    The column of ranks is left out where no capture has one, and that of devices where all is of
    one device.
    """
    made = {
        "device": _devices,
        "category": _categories,
        "kernel": _kernels,
        "range": _ranges,
        "collective": _collectives,
        "operator": _operators,
        "api": _api,
    }[name]
    head, rows = made(summary)
    if not rows:
        return head, rows
    columns = list(zip(*rows, strict=True))
    kept = [
        at
        for at, (title, column) in enumerate(zip(head, columns, strict=True))
        if title not in _OPTIONAL
        or len(set(column)) > 1
        or (title in _ALONE and UNKNOWN not in column)
    ]
    return tuple(head[at] for at in kept), [[row[at] for at in kept] for row in rows]


_OPTIONAL: Final = ("rank", "device", "bytes", "library", "group", "dtype", "last rank", "exposed")
_ALONE: Final = ("bytes", "library", "group", "dtype", "last rank", "exposed")
"""Of those: a single value says something."""


def time_in_words(ns: float | None) -> str:
    """Nanoseconds in a fitting unit; UNKNOWN for None."""
    return UNKNOWN if ns is None else quantity(ns, "ns")


def _share(part: float | None, whole: float | None = None) -> str:
    if part is None or whole == 0:
        return UNKNOWN
    return f"{part if whole is None else 100 * part / whole:.1f} %"


def _plain(value: object) -> str:
    return UNKNOWN if value is None or value == "" else str(value)


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else number(value, 20)


def device_in_words(time: DeviceTime) -> str:
    """ "device 0", "rank 3, device 0"."""
    device = f"device {time.device}"
    return device if time.rank is None else f"rank {time.rank}, {device}"


def _devices(summary: Summary) -> Table:
    shares_of = ("busy", "idle", "compute", "communication", "exposed comm", "copy")
    gaps_of = ("exposed copy", "gaps", "median gap", "longest gap", "median launch")
    head = ("wall", *shares_of, *gaps_of, "where")
    rows = []
    for each in summary.devices:
        wall = each.wall_ns
        shares = [each.busy_ns, each.idle_ns, each.compute_ns, each.communication_ns]
        shares += [each.exposed_communication_ns, each.copy_ns, each.exposed_copy_ns]
        gaps = (each.median_gap_ns, each.longest_gap_ns, each.median_launch_ns)
        rows.append(
            [
                time_in_words(wall),
                *(_share(part, wall) for part in shares),
                _count(each.gaps),
                *map(time_in_words, gaps),
                device_in_words(each),
            ]
        )
    return head, rows


def _figures(row: Mapping[str, Any]) -> list[str]:
    """Those that categories and kernels share."""
    times = [row[f"{name}_ns"] for name in ("mean", "median", "p95", "min", "max")]
    shares = [row["percent_of_kernels"], row["percent_of_wall"]]
    return [
        time_in_words(row["total_ns"]),
        *map(_share, shares),
        _count(row["calls"]),
        *map(time_in_words, times),
        time_in_words(row["exposed_ns"]),
        UNKNOWN if row["bytes"] is None else size(row["bytes"]),
    ]


_FIGURES: Final = ("total", "of kernels", "of wall", "calls", "mean", "median", "p95", "min")
_MORE: Final = ("max", "exposed", "bytes")


def _list(table: pa.Table | None) -> list[dict[str, Any]]:
    return [] if table is None else table.to_pylist()


def _categories(summary: Summary) -> Table:
    head = ("rank", "device", *_FIGURES, *_MORE, "category")
    return head, [
        [
            _plain(row["rank"]),
            _plain(row["device"]),
            *_figures(row),
            _RUNTIME.get(row["kind"], row["category"]),
        ]
        for row in _list(summary.categories)
    ]


_RUNTIME: Final = {"copy": "copies of the runtime", "set": "sets of the runtime"}
"""Kind -> the category of what is not a kernel."""


def _kernels(summary: Summary) -> Table:
    head = ("rank", "device", *_FIGURES, *_MORE, "category", "library", "name")
    return head, [
        [_plain(row["rank"]), _plain(row["device"]), *_figures(row)]
        + [_plain(row[name]) for name in ("category", "library", "name")]
        for row in _list(summary.rows)
    ]


def _ranges(summary: Summary) -> Table:
    head = ("rank", "on host", "mean", "on device", "calls", "kernels", "path")
    return head, [
        [
            _plain(row["rank"]),
            *(time_in_words(row[name]) for name in ("host_ns", "mean_host_ns", "device_ns")),
            _count(row["calls"]),
            _count(row["kernels"]),
            row["path"],
        ]
        for row in sorted(_list(summary.ranges), key=_largest_range)
    ]


def _largest_range(row: Mapping[str, Any]) -> tuple[int, int]:
    return -(row["device_ns"] or 0), -(row["host_ns"] or 0)


def _collectives(summary: Summary) -> Table:
    head = ("skew", "shortest", "ranks", "last rank", "bytes", "dtype", "sequence", "group")
    rows = sorted(_list(summary.collectives), key=lambda row: -row["skew_ns"])
    return (*head, "operation"), [
        [
            time_in_words(row["skew_ns"]),
            time_in_words(row["duration_ns"]),
            *(_plain(row[name]) for name in ("ranks", "last_rank")),
            UNKNOWN if row["bytes"] is None else size(row["bytes"]),
            *(_plain(row[name]) for name in ("dtype", "sequence", "group", "operation")),
        ]
        for row in rows
    ]


def _operators(summary: Summary) -> Table:
    times = ("self", "total", "mean", "median", "p95", "max")
    rows = _list(summary.operators)
    own: dict[int | None, int] = {}
    for row in rows:
        own[row["rank"]] = own.get(row["rank"], 0) + (row["self_ns"] or 0)
    return ("rank", "of self", *times, "calls", "name"), [
        [
            _plain(row["rank"]),
            UNKNOWN if row["self_ns"] is None else _share(row["self_ns"], own[row["rank"]]),
            *(time_in_words(row[f"{name}_ns"]) for name in times),
            _count(row["calls"]),
            _plain(row["name"]),
        ]
        for row in sorted(rows, key=lambda row: -(row["self_ns"] or 0))
    ]


def _api(summary: Summary) -> Table:
    whole = sum(summary.api_ns.values())
    rows = sorted(summary.api_ns.items(), key=lambda each: -each[1])
    return ("total", "of calls", "name"), [
        [time_in_words(ns), _share(ns, whole), name] for name, ns in rows
    ]
