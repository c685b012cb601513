"""Casts that saturate on every device.

torch's own cast of a value above the largest depends on dtype and version. In float8_e4m3fn it was
NaN and is 448 from torch 2.12 on, for infinity too (pytorch PR 178817). In both FNUZ formats it is
NaN; in float8_e5m2, float16 and bfloat16 infinity; in int8 it wraps.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.devices.precision.formats import FP8_NAMES, Format, Kind, format_of

if TYPE_CHECKING:
    import torch


class OnInfinity(StrEnum):
    """The treatment of an infinity."""

    SATURATE = "saturate"
    """The largest finite number, with its sign."""
    KEEP = "keep"
    """Infinity, in a format that has it."""
    NAN = "nan"
    """NaN, in a format that has it."""
    RAISE = "raise"
    """OverflowError; it waits for the device."""


class OnNan(StrEnum):
    """The treatment of a NaN."""

    KEEP = "keep"
    """NaN, in a format that has it."""
    ZERO = "zero"
    """Zero."""
    RAISE = "raise"
    """ValueError; it waits for the device."""


_PART: Final = 1 << 17
"""Elements for each thread of a CPU: at most 1 MiB, about the second-level cache of a core."""
_CLAMPED_FIRST: Final = (*FP8_NAMES, "int8")
"""Every wider format contains the limits of these, so that clamping does not round them."""
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
    target = _target_format(dtype)
    on_infinity, on_nan = OnInfinity(infinity), OnNan(nan)
    _check_policy(target, on_infinity, on_nan)
    x = _as_wide(x)
    _check_values(x, on_infinity, on_nan)
    if on_infinity is OnInfinity.NAN:
        x = x.masked_fill(x.isinf(), math.nan)
    zero_nan = on_nan is OnNan.ZERO
    keep = on_infinity is OnInfinity.KEEP
    if target.name in _CLAMPED_FIRST and not keep:
        return _clamp_and_cast(x, dtype, target, zero_nan=zero_nan)
    if zero_nan:
        x = x.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    if target.name in FP8_NAMES:
        return x.clamp(target.min, target.max).where(~x.isinf(), x).to(dtype)
    # clamped after the cast: 65504, the largest float16, is no bfloat16
    narrow = x.to(dtype)
    if keep:
        return narrow.clamp(target.min, target.max).where(~x.isinf(), narrow)
    ends = (target.min, target.max)
    # in place where nothing else can hold it, which saves a whole tensor
    return narrow.clamp_(*ends) if narrow is not x and _is_plain(x) else narrow.clamp(*ends)


def _clamp_and_cast(
    x: torch.Tensor, dtype: torch.dtype, target: Format, *, zero_nan: bool
) -> torch.Tensor:
    """``x`` clamped, then cast; for an integer also rounded."""
    import torch

    integer = target.kind is Kind.INTEGER
    plain = _is_plain(x)
    if plain and not (integer or zero_nan) and _torch_saturates(x.dtype, dtype, x.device.type):
        return x.to(dtype)
    graph = x.requires_grad and torch.is_grad_enabled()
    if plain and not graph and x.device.type == "cpu" and x.is_contiguous():
        return _clamp_in_parts(x.detach(), dtype, target, zero_nan)
    x = x.clamp(target.min, target.max)
    x = x.nan_to_num(nan=0.0) if zero_nan else x
    return (x.round() if integer else x).to(dtype)


def _is_plain(x: torch.Tensor) -> bool:
    """Whether ``x`` is numbers in memory, and not an object that traces or batches them."""
    import torch

    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and not x.is_meta
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def _clamp_in_parts(
    x: torch.Tensor, dtype: torch.dtype, target: Format, zero_nan: bool
) -> torch.Tensor:
    """Clamp and cast in parts that fit into a CPU's cache.

    Allocating a whole clamped tensor each time would cost several times the cast.
    """
    import torch

    size = min(_PART * torch.get_num_threads(), max(1, x.numel()))
    kept = torch.empty(size, dtype=x.dtype)
    result = torch.empty(x.shape, dtype=dtype)
    parts = (each.view(-1).split(size) for each in (x, result))
    for part, into in zip(*parts, strict=True):
        clamped = torch.clamp(part, target.min, target.max, out=kept[: part.numel()])
        if zero_nan:
            clamped.nan_to_num_(nan=0.0)
        into.copy_(clamped.round_() if target.kind is Kind.INTEGER else clamped)
    return result


@cache
def _torch_saturates(source: torch.dtype, dtype: torch.dtype, device: str) -> bool:
    """Whether torch's own cast saturates, also infinity; tried once."""
    import torch

    largest = torch.finfo(dtype).max
    with torch.no_grad():
        probe = torch.tensor([largest * 1.125, -math.inf], dtype=source, device=device)
        return probe.to(dtype).float().tolist() == [largest, -largest]


def _as_wide(x: torch.Tensor) -> torch.Tensor:
    name = str(x.dtype).removeprefix("torch.")
    if name in FP8_NAMES:
        return x.float()
    if name not in _WIDE:
        raise TypeError(f"cast takes floating point of 8 to 64 bits, not {x.dtype}")
    return x


def _target_format(dtype: torch.dtype) -> Format:
    import torch

    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"cast takes a torch.dtype, not {dtype!r}")
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


def _check_values(x: torch.Tensor, infinity: OnInfinity, nan: OnNan) -> None:
    if infinity is OnInfinity.RAISE and bool(x.isinf().any()):
        raise OverflowError(f"{int(x.isinf().sum())} of {x.numel()} values to cast are infinite")
    if nan is OnNan.RAISE and bool(x.isnan().any()):
        raise ValueError(f"{int(x.isnan().sum())} of {x.numel()} values to cast are NaN")
