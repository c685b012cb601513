"""Launch planning and occupancy: what fits a device, from its facts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.sizing.calculator import Occupancy as Occupancy
    from portagpu.sizing.calculator import occupancy as occupancy
    from portagpu.sizing.calculator import occupancy_of_code as occupancy_of_code
    from portagpu.sizing.kernel import Kernel as Kernel
    from portagpu.sizing.launch import Launch as Launch
    from portagpu.sizing.launch import Sizing as Sizing
    from portagpu.sizing.matmul import Matmul as Matmul
    from portagpu.sizing.reduce import Reduction as Reduction
    from portagpu.sizing.residency import Limit as Limit
    from portagpu.sizing.residency import Resource as Resource
    from portagpu.sizing.residency import WavesPerSimd as WavesPerSimd
    from portagpu.sizing.steps import Step as Step
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.sizing.calculator": "Occupancy occupancy occupancy_of_code",
            "portagpu.sizing.kernel": "Kernel",
            "portagpu.sizing.launch": "Launch Sizing",
            "portagpu.sizing.matmul": "Matmul",
            "portagpu.sizing.reduce": "Reduction",
            "portagpu.sizing.residency": "Limit Resource WavesPerSimd",
            "portagpu.sizing.steps": "Step",
        },
    )
