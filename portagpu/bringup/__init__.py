"""The hardware bring-up checklist: ordered gates as data, run to one verdict."""

from __future__ import annotations

from portagpu.bringup.gates import Gate, load_gates
from portagpu.bringup.run import Options, Progress, bringup

__all__ = ["Gate", "Options", "Progress", "bringup", "load_gates"]
