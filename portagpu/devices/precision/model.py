"""The support of each number format on one device: data from facts and the build of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from portagpu.devices.precision.levels import Arithmetic, Recipe, Support
from portagpu.devices.precision.mixed import MixedPrecision, mixed_precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


@dataclass(frozen=True, slots=True)
class Fp8:
    """The pair of fp8 dtypes that runs natively: OCP or FNUZ, never a mixture of both."""

    e4m3: torch.dtype
    e5m2: torch.dtype


@dataclass(frozen=True, slots=True)
class Precision:
    """The support of each dtype on one device.

    ``fp8`` is the flavour with native instructions on this device, or None. The device does not
    compute in a dtype that ``table`` lacks: leave float64, complex numbers or fp8 out where the
    device has none.
    """

    table: Mapping[torch.dtype, Support]
    fp8: Fp8 | None = None
    recipes: frozenset[Recipe] = frozenset()
    """The recipes with native scaled products in torch, in the dtypes of ``fp8``."""
    tf32: Arithmetic = Arithmetic.IEEE
    """The arithmetic of float32 products where "tf32" is requested: IEEE where none is faster."""
    alignment: Mapping[torch.dtype, int] = field(default_factory=lambda: MappingProxyType({}))
    """By dtype: the multiple of elements in a matrix's dimensions that fills the matrix unit's
    tiles. Unknown dtypes, and those that ``table`` lacks, are absent."""
    flushes: frozenset[torch.dtype] = frozenset()
    """The dtypes whose matrix products treat subnormal numbers as zero."""
    deterministic_env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment variables that make the vendor's libraries sum in the same order in each run. The
    libraries read them once."""

    def support(self, dtype: torch.dtype) -> Support:
        """The support for ``dtype``; Support.NONE for a dtype that the backend does not list.

        Raises TypeError for a dtype's name.
        """
        if isinstance(dtype, str):
            raise TypeError(f"support is of a torch.dtype, not of {dtype!r}")
        return self.table.get(dtype, Support.NONE)

    def training(self, dtype: torch.dtype | None = None) -> MixedPrecision:
        """The settings of a training loop; see ``mixed.mixed_precision``."""
        return mixed_precision(self, dtype)
