"""Shared by cases: a floating-point result against its exact value, told as what is wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FORMATS = {24: "float32", 16: "three products in bfloat16", 11: "TF32 or float16", 8: "bfloat16"}
"""Bits of the significand of arithmetics that stand in for one another."""


def check_near(found: Any, exact: Any, bound: Any, what: str) -> None:
    """Raise AssertionError unless each element is within its bound of the exact value.

    ``found``, ``exact`` and ``bound`` are tensors of one shape, or what makes one; they are
    compared in float64 on the CPU. ``what`` begins the sentence: "a product in bfloat16".
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
    """What keeps so many bits, for a sentence: " (TF32 or float16)"; empty if nothing does."""
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
