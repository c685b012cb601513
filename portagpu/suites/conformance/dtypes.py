"""Shared by cases: dtypes, their roundoff, tensors of them, and what a backend claims of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.conformance.cases import NotClaimed
from portagpu.suites.search.area import has_contract

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from portagpu.devices.contract import Backend

FLOATS: Final = ("float64", "float32", "bfloat16", "float16")
INTEGERS: Final = ("int64", "int32", "int16", "int8", "uint8")
FP8: Final[Mapping[str, tuple[int, int, int, bool]]] = {
    "float8_e4m3fn": (4, 3, 7, False),
    "float8_e5m2": (5, 2, 15, False),
    "float8_e4m3fnuz": (4, 3, 8, True),
    "float8_e5m2fnuz": (5, 2, 16, True),
}
"""Bits of exponent, bits of mantissa, bias, and whether it is of the FNUZ kind.

OCP 8-bit floating point specification 1.0; FNUZ: openxla/stablehlo RFC 20230321.
"""
ROUNDOFF: Final = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
"""The unit roundoff u: half the distance from 1 to the next number."""


def tensor_on(gpu: Backend, values: Sequence[float], dtype: str) -> torch.Tensor:
    """A tensor of ``values`` on the device, rounded to ``dtype`` on the host.

    Raises NotClaimed if the device has no tensors of that dtype.
    """
    import torch

    require_dtypes(gpu, dtype)

    return torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype)).to(gpu.device)


def float64_values(tensor: torch.Tensor) -> list[Any]:
    """The values of a tensor in float64."""
    return tensor.cpu().double().tolist()


def claimed_support(gpu: Backend, dtype: str) -> str:
    """The support that the backend claims for a dtype."""
    import torch

    return str(gpu.precision.support(getattr(torch, dtype)))


def require_contract(gpu: Backend, minor: int) -> None:
    """Raise NotClaimed for a backend that was written before contract 1.``minor``."""
    if not has_contract(gpu, minor):
        raise NotClaimed(f"the {gpu.name} backend is older than contract 1.{minor}")


def require_dtypes(gpu: Backend, *dtypes: str) -> None:
    """Raise NotClaimed if the backend claims no tensors of one of the dtypes."""
    for dtype in dtypes:
        if claimed_support(gpu, dtype) == "none":
            raise NotClaimed(f"{gpu.name} claims no tensors of {dtype}")
