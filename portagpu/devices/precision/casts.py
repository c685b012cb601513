"""Casts that saturate on every device, quantisation with scales, and fp8 of another flavour.

torch's own cast of a value above the largest depends on dtype and version. In float8_e4m3fn it was
NaN and is 448 from torch 2.12 on, for infinity too (pytorch PR 178817). In both FNUZ formats it is
NaN; in float8_e5m2, float16 and bfloat16 infinity; in int8 it wraps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import frexp
from typing import TYPE_CHECKING, Final

from portagpu.devices.precision.formats import FLAVOURS, FORMATS, FP8_NAMES, Format, Kind, format_of
from portagpu.devices.precision.model import Recipe

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

    Minus zero becomes zero in the FNUZ formats, which have none.

        codes = cast(x, gpu.precision.fp8.e4m3)
        pixels = cast(x, torch.int8, nan="zero")

    :param x: a floating-point tensor of any shape.
    :param dtype: a floating-point dtype of 8 to 64 bits, or int8.
    :param infinity: what becomes of an infinity.
    :param nan: what becomes of a NaN.
    :returns: a tensor of the shape of ``x``, on its device.
    :raises TypeError: for another dtype.
    :raises ValueError: for a policy that the format cannot follow: int8 has no NaN to keep.
    :raises OverflowError: for an infinity under ``OnInfinity.RAISE``.
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
    # clamped after the cast: 65504, the largest float16, is not a bfloat16
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


MX_BLOCK: Final = 32
"""Elements that share a scale (OCP microscaling formats specification 1.0, section 5.1)."""


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A matrix of shape (rows, columns) whose values are ``data * scale``.

    ``dim`` is the dimension that a product sums over: 1 in a left operand, 0 in a right one. The
    scale is float32: of shape () for a tensor; for rows that of the data, with 1 at ``dim``; for
    MX with a 32nd at ``dim``, and of dtype float8_e8m0fnu unless it left that range. Raises
    ValueError where they do not fit one another.
    """

    data: torch.Tensor
    scale: torch.Tensor
    recipe: Recipe = Recipe.TENSOR
    dim: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", Recipe(self.recipe))
        if self.data.dim() != 2 or self.dim not in (0, 1):
            raise ValueError(f"a scaled matrix has two dimensions, not {tuple(self.data.shape)}")
        expected = scale_shape(tuple(self.data.shape), self.recipe, self.dim)
        if tuple(self.scale.shape) != expected:
            raise ValueError(
                f"the scale of a matrix of shape {tuple(self.data.shape)} by {self.recipe} has "
                f"the shape {expected}, not {tuple(self.scale.shape)}"
            )
        allowed = ("float32", "float8_e8m0fnu") if self.recipe is Recipe.MX else ("float32",)
        if str(self.scale.dtype).removeprefix("torch.") not in allowed:
            raise ValueError(f"a scale is {' or '.join(allowed)}, not {self.scale.dtype}")
        self.flavour  # noqa: B018 - refuses other dtypes

    @property
    def flavour(self) -> str:
        """ "ocp" or "fnuz"."""
        name = str(self.data.dtype).removeprefix("torch.")
        for flavour, names in FLAVOURS.items():
            if name in names:
                return flavour
        raise ValueError(f"a scaled matrix is of an fp8 dtype, not {self.data.dtype}")

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """``data * scale`` in float32, then in ``dtype``."""
        import torch

        scale = self.scale.float()
        if self.recipe is Recipe.MX:
            scale = scale.repeat_interleave(MX_BLOCK, self.dim)
        return (self.data.float() * scale).to(dtype or torch.float32)


def scale_shape(shape: tuple[int, ...], recipe: Recipe, dim: int) -> tuple[int, ...]:
    """The shape of the scale of a matrix. Raises ValueError where no MX blocks fit it."""
    if recipe is Recipe.TENSOR:
        return ()
    if recipe is Recipe.MX and shape[dim] % MX_BLOCK:
        raise ValueError(f"MX scales blocks of {MX_BLOCK}: {shape[dim]} is not a multiple of it")
    shared = 1 if recipe is Recipe.ROW else shape[dim] // MX_BLOCK
    return (shared, shape[1]) if dim == 0 else (shape[0], shared)


def quantize(
    x: torch.Tensor, dtype: torch.dtype, recipe: Recipe | str = Recipe.TENSOR, dim: int = 1
) -> Scaled:
    """The matrix ``x`` in the fp8 ``dtype``, scaled so that the largest value uses its range.

    Scales of tensors and rows are ``amax / finfo(dtype).max``, those of MX blocks the power of two
    ``2^(floor(log2(amax)) - e)``, e the exponent of the largest number (OCP microscaling formats
    1.0, section 6.3). ``amax`` is over finite values; infinities saturate and NaN stays NaN. Where
    all values are zero the scale is 1.

    :param x: a floating-point matrix.
    :param dtype: an fp8 dtype.
    :param recipe: how elements share their scales.
    :param dim: the dimension that a product sums over, 0 or 1.
    :returns: the quantised elements, in the shape of ``x``, and their scales.
    :raises ValueError: for a tensor that is not a matrix, or an MX dimension that is not a multiple
        of 32.
    """
    import torch

    recipe = Recipe(recipe)
    form = format_of(dtype)
    if x.dim() != 2 or dim not in (0, 1):
        raise ValueError(f"quantize takes a matrix, not the shape {tuple(x.shape)}")
    scale_shape(tuple(x.shape), recipe, dim)
    # beyond the range of float32 a number is finite all the same
    wide = cast(x, torch.float32, infinity="keep") if x.dtype is torch.float64 else x.float()
    finite = wide.abs().nan_to_num(nan=0.0, posinf=0.0)
    if recipe is Recipe.MX:
        blocks = finite.unflatten(dim, (-1, MX_BLOCK)).amax(dim + 1)
        exponent = blocks.frexp().exponent - 1 - _exponent(form.max)
        exponent = exponent.clamp(-127, 127).where(blocks > 0, 0)
        factor = torch.ldexp(torch.ones_like(blocks), -exponent).repeat_interleave(MX_BLOCK, dim)
        scale = (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
        return Scaled(cast(wide * factor, dtype), scale, recipe, dim)
    if recipe is Recipe.ROW:
        empty = finite.new_zeros(scale_shape(tuple(x.shape), recipe, dim))
        amax = finite.amax(dim, keepdim=True) if x.shape[dim] else empty
    else:
        amax = finite.amax() if finite.numel() else finite.new_zeros(())
    scale = (amax / form.max).clamp_min(torch.finfo(torch.float32).tiny).where(amax > 0, 1.0)
    return Scaled(cast(wide / scale, dtype), scale, recipe, dim)


def _exponent(value: float) -> int:
    """floor(log2(value)) of a positive number."""
    return frexp(value)[1] - 1


_LOOKUP_PART: Final = 1 << 20
"""Elements of one part of the conversion."""


class OnLoss(StrEnum):
    """The treatment of a value that the other flavour does not have."""

    RAISE = "raise"
    """OverflowError; it waits for the device."""
    SATURATE = "saturate"
    """The largest number, with its sign."""


def convert(scaled: Scaled, flavour: str, *, lossy: OnLoss | str = OnLoss.RAISE) -> Scaled:
    """A scaled matrix with data of another flavour of fp8, of the same values.

    Exact: from OCP to FNUZ the scale doubles, back it halves; a scale of dtype float8_e8m0fnu
    becomes float32, which such scales have to be multiplied in. NaN stays NaN; minus zero becomes
    zero in FNUZ.

    :param scaled: the matrix, of the other flavour.
    :param flavour: "ocp" or "fnuz".
    :param lossy: what happens to values without a counterpart, "raise" or "saturate": infinities in
        FNUZ, and in OCP the largest numbers of FNUZ (240 in e4m3, above 28672 in e5m2).
    :returns: the matrix in the dtype of the same name in ``flavour``.
    :raises ValueError: for a matrix that is of ``flavour`` already: it was converted before, or its
        dtype is wrong.
    :raises OverflowError: where a value has no counterpart and ``lossy`` is "raise", or float32
        does not have the new scale. The check waits for the device.
    """
    import torch

    policy = OnLoss(lossy)
    if flavour not in FLAVOURS:
        raise ValueError(f"a flavour is {' or '.join(FLAVOURS)}, not {flavour!r}")
    if scaled.flavour == flavour:
        raise ValueError(f"the matrix is of flavour {flavour} already: convert it exactly once")
    name = str(scaled.data.dtype).removeprefix("torch.")
    target = FLAVOURS[flavour][FLAVOURS[scaled.flavour].index(name)]
    codes, lost = _tables(name, target)
    data = scaled.data.view(torch.uint8)
    found, count = _look_up(data, codes, lost if policy is OnLoss.RAISE else bytes(256))
    if count:
        raise OverflowError(
            f"{count} of {data.numel()} values of {name} do not exist in {target}: "
            "say lossy='saturate', or quantize again from the original"
        )
    factor = 2.0 if flavour == "fnuz" else 0.5
    before = scaled.scale.float()
    scale = before * factor
    if not bool((scale / factor == before).where(~before.isnan(), True).all()):
        raise OverflowError(
            f"{factor:g} times the scale is not a float32: quantize again from the original"
        )
    return Scaled(found.view(getattr(torch, target)), scale, scaled.recipe, scaled.dim)


def _look_up(data: torch.Tensor, table: bytes, counted: bytes) -> tuple[torch.Tensor, int]:
    """``table[data]`` of the shape of ``data``, both uint8, and the sum of ``counted[data]``.

    In parts, because torch looks up with four bytes for an index.
    """
    import torch

    values, ones = (
        torch.tensor(list(each), dtype=torch.uint8, device=data.device) for each in (table, counted)
    )
    flat = data.reshape(-1)
    found = torch.empty_like(flat)
    indices = torch.empty(min(_LOOKUP_PART, flat.numel()), dtype=torch.int32, device=data.device)
    sums = []
    for part, into in zip(flat.split(_LOOKUP_PART), found.split(_LOOKUP_PART), strict=True):
        index = indices[: part.numel()].copy_(part)
        if any(counted):
            sums.append(torch.index_select(ones, 0, index, out=into).sum(dtype=torch.int64))
        torch.index_select(values, 0, index, out=into)
    return found.view(data.shape), int(sum(sums))


@cache
def _tables(source: str, target: str) -> tuple[bytes, bytes]:
    """For each code of ``source``: the code of its value in ``target``, and whether it is lost.

    The value is halved in FNUZ and doubled in OCP. The scale compensates for that.
    """
    old, new = FORMATS[source], FORMATS[target]
    factor = 2.0 ** (old.bias - new.bias)
    by_value = {new.decode(code): code for code in reversed(range(256))}
    codes, lost = bytearray(), bytearray()
    for code in range(256):
        value = old.decode(code) * factor
        if math.isnan(value):
            found = new.nan_codes[0].start
        elif value == 0:
            found = code if new.has_minus_zero else 0
        else:
            found = by_value.get(value, by_value[math.copysign(new.max, value)])
        codes.append(found)
        lost.append(not _decodes_to(new, found, value))
    return bytes(codes), bytes(lost)


def _decodes_to(form: Format, code: int, value: float) -> bool:
    decoded = form.decode(code)
    return decoded == value or (math.isnan(decoded) and math.isnan(value))
