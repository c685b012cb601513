"""Shared by cases: dtypes, and floating-point results against their exact values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.conformance.cases import NotClaimed
from portagpu.suites.search.area import has_contract

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from portagpu.devices.contract import Backend


FORMATS = {24: "float32", 16: "three products in bfloat16", 11: "TF32 or float16", 8: "bfloat16"}
"""Bits of the significand of arithmetics that stand in for one another."""
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


def check_near(found: Any, exact: Any, bound: Any, what: str) -> None:
    """Check that each element is within its bound of the exact value.

    All are tensors of one shape, or what makes one, and are compared in float64 on the CPU.

    :param found: The values of the device.
    :param exact: The exact values.
    :param bound: The largest absolute error of each element, in the unit of the values.
    :param what: The beginning of the sentence: "a product in bfloat16".
    :raises AssertionError: An element is further off; the sentence names the worst one.
    """
    if wrong := beyond(found, exact, bound):
        raise AssertionError(f"{what}: {wrong}")


def beyond(found: Any, exact: Any, bound: Any) -> str:
    """What is off by more than its bound, for a sentence; empty if nothing is."""
    found, exact, bound = map(_float64, (found, exact, bound))
    if found.shape != exact.shape:
        return f"the shape is {tuple(found.shape)}, not {tuple(exact.shape)}"
    right = ((found - exact).abs() <= bound) | (found == exact) | (found.isnan() & exact.isnan())
    return "" if bool(right.all()) else _worst(found, exact, bound, right)


def bits_kept(found: float, exact: float) -> int:
    """In how many leading bits two numbers agree: 24 and more for a good float32."""
    if found == exact:
        return 53
    if exact == 0 or not math.isfinite(found):
        return 0
    return max(0, math.floor(-math.log2(abs(found - exact) / abs(exact))))


def arithmetic_of(bits: int) -> str:
    """The format with this many bits: " (TF32 or float16)"; empty if nothing does."""
    near = [name for width, name in FORMATS.items() if width - 2 <= bits <= width + 2]
    return f" ({near[-1]})" if near else ""


def _float64(values: Any) -> torch.Tensor:
    import torch

    if isinstance(values, torch.Tensor):
        return values.detach().cpu().to(torch.float64)
    return torch.tensor(values, dtype=torch.float64)


def _worst(
    found: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor, right: torch.Tensor
) -> str:
    """The element that is furthest off, and what the whole result looks like."""
    import torch

    off = (found - exact).abs() / bound.clamp_min(1e-300)
    flat = int(torch.where(right, -1.0, off.nan_to_num(nan=math.inf)).argmax())
    place = tuple(int(each) for each in torch.unravel_index(torch.tensor(flat), found.shape))
    got, wanted, allowed = (float(each.flatten()[flat]) for each in (found, exact, bound))
    where = f"element {place[0] if len(place) == 1 else place}" if place else "it"
    if allowed:
        limit = f" within {allowed:.3g}"
        if math.isfinite(got):
            limit += f", {abs(got - wanted) / allowed:.3g} times the bound"
    else:
        limit = ", which it has to equal"
    return f"{where} is {got:.10g} instead of {wanted:.10g}{limit}{_nature(found, exact, right)}"


def _nature(found: torch.Tensor, exact: torch.Tensor, right: torch.Tensor) -> str:
    """What the result is instead; empty if nothing fits."""
    wrong, count = ~right, int((~right).sum())
    values, wanted = found[wrong], exact[wrong]
    if bool((values == 0).all()):
        what = "each wrong element is 0: nothing was written or it was flushed"
    elif bool(values.isnan().all()):
        what = "each wrong element is nan"
    elif count > 1 and bool((values == -wanted).all()):
        what = "the signs are wrong"
    elif count > 1 and bool((found == found.flatten()[0]).all()):
        what = "all elements are equal"
    else:
        scale = float(exact.abs().max())
        error = float((values - wanted).abs().max())
        if not (math.isfinite(error) and 0 < error < scale):
            return f"; {count} of {found.numel()} are wrong"
        bits = math.floor(-math.log2(error / scale))
        what = f"it keeps about {bits} bits of the largest value{arithmetic_of(bits)}"
    return f"; {count} of {found.numel()} are wrong, and {what}"


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
