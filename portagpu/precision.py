"""Number formats: what a device does with each, and which flavour of fp8 it runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class Support(StrEnum):
    """What a device does with a dtype."""

    NATIVE = "native"
    """Arithmetic in the dtype has instructions of its own."""
    EMULATED = "emulated"
    """Arithmetic works through another dtype."""
    STORAGE = "storage"
    """Tensors can be kept and converted; there is no arithmetic."""
    NONE = "none"
    """Not even tensors of it exist on the device."""


EVERYWHERE: Final = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
"""Names of the torch dtypes that CPUs and GPUs alike compute in with instructions of their own."""


@dataclass(frozen=True, slots=True)
class Fp8:
    """The pair of fp8 dtypes that runs natively: OCP or FNUZ, never a mixture of both."""

    e4m3: torch.dtype
    e5m2: torch.dtype


@dataclass(frozen=True, slots=True)
class Precision:
    """What one device does with each dtype.

    ``fp8`` is the flavour with instructions of its own on this device, or None.
    """

    table: Mapping[torch.dtype, Support]
    fp8: Fp8 | None = None

    def support(self, dtype: torch.dtype) -> Support:
        """The support for ``dtype``; Support.NONE for a dtype that the backend does not list."""
        return self.table.get(dtype, Support.NONE)
