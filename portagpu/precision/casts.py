"""Casts that saturate on every device.

What torch's own cast makes of a value above the largest depends on dtype and version: in
float8_e4m3fn it was NaN and is 448 from torch 2.12 on, for infinity too (pytorch PR 178817); in
both FNUZ formats it is NaN; in float8_e5m2, float16 and bfloat16 infinity; in int8 it wraps.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.precision.formats import FP8_NAMES, Format, Kind, format_of

if TYPE_CHECKING:
    import torch


class OnInfinity(StrEnum):
    """What becomes of an infinity."""

    SATURATE = "saturate"
    """The largest finite number, with its sign."""
    KEEP = "keep"
    """Infinity, in a format that has it."""
    NAN = "nan"
    """NaN, in a format that has it."""
    RAISE = "raise"
    """OverflowError; it waits for the device."""


class OnNan(StrEnum):
    """What becomes of a NaN."""

    KEEP = "keep"
    """NaN, in a format that has it."""
    ZERO = "zero"
    """Zero."""
    RAISE = "raise"
    """ValueError; it waits for the device."""


_WIDE: Final = ("float64", "float32", "bfloat16", "float16")


def cast(
    x: torch.Tensor,
    dtype: torch.dtype,
    *,
    infinity: OnInfinity | str = OnInfinity.SATURATE,
    nan: OnNan | str = OnNan.KEEP,
) -> torch.Tensor:
    """``x`` in ``dtype``, rounded to nearest even; finite values beyond its range saturate.

    ``x`` is floating point and of any shape; ``dtype`` is floating point of 8 to 64 bits, or int8.
    Minus zero becomes zero in the FNUZ formats, which have none. Raises TypeError for another
    dtype, and ValueError for a policy that the format cannot follow: int8 has no NaN to keep.

        codes = cast(x, gpu.precision.fp8.e4m3)
        pixels = cast(x, torch.int8, nan="zero")
    """
    target = _target(dtype)
    on_infinity, on_nan = OnInfinity(infinity), OnNan(nan)
    _check_policy(target, on_infinity, on_nan)
    x = _without_specials(_wide(x), on_infinity, on_nan)
    if target.name in FP8_NAMES:
        return _to_fp8(x, dtype, target, keep=on_infinity is OnInfinity.KEEP)
    if target.kind is Kind.INTEGER:
        return x.round().clamp(target.min, target.max).to(dtype)
    # clamped after the cast: 65504, the largest float16, is no bfloat16
    finite = x.to(dtype).clamp(target.min, target.max)
    return finite.where(~x.isinf(), x.to(dtype)) if on_infinity is OnInfinity.KEEP else finite


def _to_fp8(x: torch.Tensor, dtype: torch.dtype, target: Format, *, keep: bool) -> torch.Tensor:
    """Clamped before the cast: every wider format has the largest number of each fp8 format."""
    if keep:
        return x.clamp(target.min, target.max).where(~x.isinf(), x).to(dtype)
    if _torch_saturates(x, dtype):
        return x.to(dtype)
    return x.clamp(target.min, target.max).to(dtype)


def _torch_saturates(x: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether torch's own cast does; a traced or fake tensor has no values to ask with."""
    import torch

    if type(x) not in (torch.Tensor, torch.nn.Parameter) or torch.compiler.is_compiling():
        return False
    return _asked(x.dtype, dtype, x.device.type)


@cache
def _asked(source: torch.dtype, dtype: torch.dtype, device: str) -> bool:
    import torch

    largest = torch.finfo(dtype).max
    with torch.no_grad():
        probe = torch.tensor([largest * 1.125, -math.inf], dtype=source, device=device)
        return probe.to(dtype).float().tolist() == [largest, -largest]


def _wide(x: torch.Tensor) -> torch.Tensor:
    name = str(x.dtype).removeprefix("torch.")
    if name in FP8_NAMES:
        return x.float()
    if name not in _WIDE:
        raise TypeError(f"cast takes floating point of 8 to 64 bits, not {x.dtype}")
    return x


def _target(dtype: torch.dtype) -> Format:
    name = str(dtype).removeprefix("torch.")
    if name not in (*_WIDE, *FP8_NAMES, "int8"):
        raise TypeError(f"cast makes floating point of 8 to 64 bits and int8, not {dtype}")
    return format_of(name)


def _check_policy(target: Format, infinity: OnInfinity, nan: OnNan) -> None:
    if infinity is OnInfinity.KEEP and not target.infinity_codes:
        raise ValueError(f"{target.name} has no infinity to keep: saturate, or make it NaN")
    if infinity is OnInfinity.NAN and not target.nan_codes:
        raise ValueError(f"{target.name} has no NaN for an infinity: saturate")
    if nan is OnNan.KEEP and not target.nan_codes:
        raise ValueError(f"{target.name} has no NaN to keep: say nan='zero' or nan='raise'")


def _without_specials(x: torch.Tensor, infinity: OnInfinity, nan: OnNan) -> torch.Tensor:
    if infinity is OnInfinity.RAISE and bool(x.isinf().any()):
        raise OverflowError(f"{int(x.isinf().sum())} of {x.numel()} values to cast are infinite")
    if nan is OnNan.RAISE and bool(x.isnan().any()):
        raise ValueError(f"{int(x.isnan().sum())} of {x.numel()} values to cast are NaN")
    if nan is OnNan.ZERO:
        x = x.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    if infinity is OnInfinity.NAN:
        x = x.masked_fill(x.isinf(), math.nan)
    return x
