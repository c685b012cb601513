"""Readings of a machine's devices: the types, their JSON, and vendors' libraries as a source."""

from __future__ import annotations

from portagpu.facts.readings.model import (
    End,
    Event,
    Findings,
    FormatError,
    GpuPart,
    GpuState,
    Link,
    Memory,
    Node,
    Pcie,
    Process,
    Reading,
)

__all__ = [
    "End",
    "Event",
    "Findings",
    "FormatError",
    "GpuPart",
    "GpuState",
    "Link",
    "Memory",
    "Node",
    "Pcie",
    "Process",
    "Reading",
]
