"""The hardware bring-up checklist: ordered gates as data, run to one verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.bringup.gates import Gate as Gate
    from portagpu.bringup.gates import load_gates as load_gates
    from portagpu.bringup.run import BringupOptions as BringupOptions
    from portagpu.bringup.run import GateProgress as GateProgress
    from portagpu.bringup.run import bringup as bringup
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.bringup.gates": "Gate load_gates",
            "portagpu.bringup.run": "BringupOptions GateProgress bringup",
        },
    )
