"""The hardware bring-up checklist: ordered gates as data, run to one verdict."""

from __future__ import annotations

from portagpu.bringup.gates import Gate, load_gates
from portagpu.bringup.run import BringupOptions, GateProgress, bringup

__all__ = ["BringupOptions", "Gate", "GateProgress", "bringup", "load_gates"]
