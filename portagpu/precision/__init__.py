"""Number formats, their support on a device, and operations with equal results on all devices.

Importing this package does not import torch. The operations do when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.precision.casts import OnInfinity as OnInfinity
    from portagpu.precision.casts import OnNan as OnNan
    from portagpu.precision.casts import cast as cast
    from portagpu.precision.flavours import OnLoss as OnLoss
    from portagpu.precision.flavours import convert as convert
    from portagpu.precision.float32 import Float32Switch as Float32Switch
    from portagpu.precision.formats import FORMATS as FORMATS
    from portagpu.precision.formats import Format as Format
    from portagpu.precision.formats import Kind as Kind
    from portagpu.precision.formats import format_of as format_of
    from portagpu.precision.levels import EVERYWHERE as EVERYWHERE
    from portagpu.precision.levels import Arithmetic as Arithmetic
    from portagpu.precision.levels import Recipe as Recipe
    from portagpu.precision.levels import Support as Support
    from portagpu.precision.mixed import Deterministic as Deterministic
    from portagpu.precision.mixed import MixedPrecision as MixedPrecision
    from portagpu.precision.model import Fp8 as Fp8
    from portagpu.precision.model import Precision as Precision
    from portagpu.precision.scaling import Scaled as Scaled
    from portagpu.precision.scaling import quantize as quantize
    from portagpu.precision.support import DtypeSupport as DtypeSupport
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.precision.casts": "OnInfinity OnNan cast",
            "portagpu.precision.flavours": "OnLoss convert",
            "portagpu.precision.float32": "Float32Switch",
            "portagpu.precision.formats": "FORMATS Format Kind format_of",
            "portagpu.precision.levels": "EVERYWHERE Arithmetic Recipe Support",
            "portagpu.precision.mixed": "Deterministic MixedPrecision",
            "portagpu.precision.model": "Fp8 Precision",
            "portagpu.precision.scaling": "Scaled quantize",
            "portagpu.precision.support": "DtypeSupport",
        },
    )
