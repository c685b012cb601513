"""Number formats, their support on a device, and operations with equal results on all devices.

Importing this package does not import torch. The operations do when they are called.
"""

from __future__ import annotations

from portagpu.precision.casts import OnInfinity, OnNan, cast
from portagpu.precision.flavours import OnLoss, convert
from portagpu.precision.float32 import Float32Switch
from portagpu.precision.formats import FORMATS, Format, Kind, format_of
from portagpu.precision.levels import EVERYWHERE, Arithmetic, Recipe, Support
from portagpu.precision.mixed import Deterministic, MixedPrecision
from portagpu.precision.model import Fp8, Precision
from portagpu.precision.scaling import Scaled, quantize
from portagpu.precision.support import DtypeSupport

__all__ = [
    "EVERYWHERE",
    "FORMATS",
    "Arithmetic",
    "Deterministic",
    "DtypeSupport",
    "Float32Switch",
    "Format",
    "Fp8",
    "Kind",
    "MixedPrecision",
    "OnInfinity",
    "OnLoss",
    "OnNan",
    "Precision",
    "Recipe",
    "Scaled",
    "Support",
    "cast",
    "convert",
    "format_of",
    "quantize",
]
