"""The tables of a summary of traces in words, for a terminal and for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.base.units import number, quantity, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from portagpu.traces.analysis.model import DeviceTime, Summary

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
