"""What one device does with each number format: plain data, from facts and the build of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from portagpu.precision.levels import Arithmetic, Recipe, Support
from portagpu.precision.mixed import MixedPrecision, mixed_precision

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
    """What one device does with each dtype.

    ``fp8`` is the flavour with instructions of its own on this device, or None. A dtype that
    ``table`` lacks is one that the device does not compute in: leave float64, complex numbers or
    fp8 out where there are none.
    """

    table: Mapping[torch.dtype, Support]
    fp8: Fp8 | None = None
    recipes: frozenset[Recipe] = frozenset()
    """The recipes whose scaled products torch has instructions for, in the dtypes of ``fp8``; empty
    without them."""
    tf32: Arithmetic = Arithmetic.IEEE
    """What float32 products run in where "tf32" is asked for: IEEE where nothing is faster."""
    alignment: Mapping[torch.dtype, int] = field(default_factory=lambda: MappingProxyType({}))
    """Elements that the dimensions of a matrix are a multiple of where the matrix unit's tiles are
    full, by dtype; a dtype of which it is not known, or that ``table`` lacks, is absent."""
    flushes: frozenset[torch.dtype] = frozenset()
    """The dtypes whose matrix products take subnormal numbers for zero."""
    deterministic_env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment variables without which the vendor's libraries may sum in another order at each
    run; the libraries read them once."""

    def support(self, dtype: torch.dtype) -> Support:
        """The support for ``dtype``; Support.NONE for a dtype that the backend does not list.

        Raises TypeError for a dtype's name.
        """
        if isinstance(dtype, str):
            raise TypeError(f"support is of a torch.dtype, not of {dtype!r}")
        return self.table.get(dtype, Support.NONE)

    def training(self, dtype: torch.dtype | None = None) -> MixedPrecision:
        """What a training loop needs: :func:`portagpu.precision.mixed.mixed_precision`."""
        return mixed_precision(self, dtype)
