"""Launch planning and occupancy: what fits a device, from its facts alone."""

from __future__ import annotations

from portagpu.sizing.calculator import Occupancy, occupancy, occupancy_of_code
from portagpu.sizing.kernel import Kernel
from portagpu.sizing.launch import Launch, Sizing
from portagpu.sizing.matmul import Matmul
from portagpu.sizing.reduce import Reduction
from portagpu.sizing.residency import Limit, Resource, WavesPerSimd
from portagpu.sizing.steps import Step

__all__ = [
    "Kernel",
    "Launch",
    "Limit",
    "Matmul",
    "Occupancy",
    "Reduction",
    "Resource",
    "Sizing",
    "Step",
    "WavesPerSimd",
    "occupancy",
    "occupancy_of_code",
]
