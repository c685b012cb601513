"""The GPUs of a machine and what joins them, from every source that answers."""

from __future__ import annotations

from portagpu.inventory.gpu import Gpu, Inventory
from portagpu.inventory.model import (
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
    "Gpu",
    "Inventory",
    "Link",
    "Memory",
    "Node",
    "Part",
    "Pcie",
    "Reading",
    "State",
]
