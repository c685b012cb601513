"""What sources say of a machine's devices: the types, their JSON, and a vendor's library as one."""

from __future__ import annotations

from portagpu.readings.model import (
    End,
    Event,
    Findings,
    FormatError,
    Link,
    Memory,
    Node,
    Part,
    Pcie,
    Reading,
    State,
)

__all__ = [
    "End",
    "Event",
    "Findings",
    "FormatError",
    "Link",
    "Memory",
    "Node",
    "Part",
    "Pcie",
    "Reading",
    "State",
]
