"""Summaries made by hand: what each test of comparisons and findings needs, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.facts.captures.model import Source, table
from portagpu.traces.analysis.model import (
    COLLECTIVE_COLUMNS,
    RANGE_COLUMNS,
    SUMMARY_COLUMNS,
    DeviceTime,
    Steps,
    Summary,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MS = 1_000_000


def rows(kernels: Iterable[Mapping[str, Any]]) -> Any:
    """A table of SUMMARY_COLUMNS from rows with some of them."""
    filled = [
        {"rank": 0, "device": 0, "kind": "kernel", "category": "unknown", "calls": 1, **each}
        for each in kernels
    ]
    values = {key: [each.get(key) for each in filled] for key in SUMMARY_COLUMNS}
    return table(values, SUMMARY_COLUMNS)


def ranges(given: Iterable[Mapping[str, Any]]) -> Any:
    """A table of RANGE_COLUMNS from rows with some of them."""
    filled = [{"rank": 0, "depth": 0, "calls": 1, **each} for each in given]
    return table({key: [each.get(key) for each in filled] for key in RANGE_COLUMNS}, RANGE_COLUMNS)


def collectives(given: Iterable[Mapping[str, Any]] = ()) -> Any:
    """A table of COLLECTIVE_COLUMNS from rows with some of them."""
    filled = list(given)
    values = {key: [each.get(key) for each in filled] for key in COLLECTIVE_COLUMNS}
    return table(values, COLLECTIVE_COLUMNS)


def device(wall: float = 100, busy: float = 98, rank: int | None = 0, **times: Any) -> DeviceTime:
    """One device; times in milliseconds by the names of DeviceTime without "_ns"."""
    numbers: dict[str, float] = {
        "kernel_sum": busy,
        "compute": busy,
        "communication": 0,
        "exposed_communication": 0,
        "copy": 0,
        "exposed_copy": 0,
        "median_gap": 0.005,
        "longest_gap": 1,
        "median_launch": 0.01,
    }
    others = {key: times.pop(key) for key in ("gaps", "device") if key in times}
    by_category = {key: int(each * MS) for key, each in times.pop("by_category", {}).items()}
    numbers |= times
    return DeviceTime(
        rank=rank,
        device=others.get("device", 0),
        wall_ns=int(wall * MS),
        busy_ns=int(busy * MS),
        idle_ns=int((wall - busy) * MS),
        gaps=others.get("gaps", 10),
        by_category_ns=by_category,
        **{f"{key}_ns": int(value * MS) for key, value in numbers.items()},
    )


def steps(
    host: Sequence[float], name: str = "step", rank: int | None = 0, **categories: Sequence[float]
) -> Steps:
    """Steps with their host times and those of categories, in milliseconds."""
    return Steps(
        rank=rank,
        name=name,
        host_ns=tuple(int(each * MS) for each in host),
        device_ns=tuple(int(each * 0.9 * MS) for each in host),
        by_category_ns=tuple(
            {key: int(values[at] * MS) for key, values in categories.items()}
            for at in range(len(host))
        ),
    )


def summary(**given: Any) -> Summary:
    """A summary with one device and one kernel, where nothing else is given."""
    values: dict[str, Any] = {
        "sources": (Source(path="a.sqlite", format="nsys-sqlite"),),
        "rows": rows([{"name": "gemm", "category": "gemm", "total_ns": 90 * MS, "calls": 10}]),
        "devices": (device(by_category={"gemm": 90}),),
        "ranges": ranges([]),
        "collectives": collectives(),
        "events": {"kernel": 10, "copy": 0, "set": 0, "api": 10, "range": 10},
    }
    return Summary(**{**values, **given})
