"""A summary of captures, in columns. Times are nanoseconds; null means that the source lacks it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

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
