"""The numbers of torch's dtypes, and rounding to them by exact arithmetic.

A number is a Python int, bool, float or complex. The formats are those of
:mod:`portagpu.devices.precision.formats`. Rounding is to the nearest, ties to even (IEEE 754-2019,
4.3.1)."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.precision.formats import FORMATS, Kind

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend

_SINGLE: Final = struct.Struct("<f")
_PACKED: Final = {"float32": (_SINGLE, 2.0**127), "float16": (struct.Struct("<e"), 65504.0)}
"""How Python packs numbers of a dtype, and below which size it does."""
BOOL: Final = ("bool",)
INTEGERS: Final = {"uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64}
"""Bits of an integer dtype."""
FLOATS: Final = ("float32", "bfloat16", "float16", "float64")
COMPLEX: Final = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the parts of a complex dtype."""
FP8: Final = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
ALL: Final = ("float32", *BOOL, *INTEGERS, *FLOATS[1:], *COMPLEX, *FP8)
SMALL: Final = ("float16", "bfloat16", *FP8)
"""The floating-point dtypes of which every bit pattern is tried."""


def kind_of(dtype: str) -> str:
    """ "bool", "int", "float", "complex" or "fp8"."""
    if dtype in INTEGERS:
        return "int"
    if dtype in COMPLEX:
        return "complex"
    return dtype if dtype == "bool" else "fp8" if dtype in FP8 else "float"


def claimed(gpu: Backend, dtypes: tuple[str, ...] = ALL) -> list[str]:
    """Those of the dtypes in which the device computes, and for fp8 those that it stores."""
    import torch

    found = []
    for each in dtypes:
        support = str(gpu.precision.support(getattr(torch, each)))
        if support != "none" and (each in FP8 or support != "storage"):
            found.append(each)
    return found


def roundoff(dtype: str) -> float:
    """The unit roundoff u of a floating-point or complex dtype."""
    return float(2.0 ** -(FORMATS[COMPLEX.get(dtype, dtype)].mantissa_bits + 1))


@cache
def smallest(dtype: str) -> float:
    """The smallest positive number, a denormal one."""
    return FORMATS[COMPLEX.get(dtype, dtype)].min_subnormal or 0.0


@cache
def smallest_normal(dtype: str) -> float:
    """The smallest positive number with a full mantissa."""
    return FORMATS[COMPLEX.get(dtype, dtype)].min_normal


@cache
def largest(dtype: str) -> float:
    """The largest finite number."""
    return FORMATS[COMPLEX.get(dtype, dtype)].max


@cache
def _limits(dtype: str) -> tuple[int, int, float]:
    """(bits of precision, exponent of the smallest number, largest number)."""
    found = FORMATS[dtype]
    return found.mantissa_bits + 1, 1 - found.bias - found.mantissa_bits, found.max


def whole_to_dtype(value: int, dtype: str) -> int:
    """An integer wrapped into an integer dtype, as two's complement."""
    bits = INTEGERS[dtype]
    value &= (1 << bits) - 1
    return value if dtype == "uint8" or value < 1 << (bits - 1) else value - (1 << bits)


def rounded(value: float | Fraction, dtype: str) -> float:
    """The number of a floating-point dtype nearest to ``value``; ties go to the even one.

    Beyond the largest number it is :func:`overflow`. A zero keeps its sign, but in FNUZ formats.
    """
    if isinstance(value, float):
        if value != value:
            return math.nan
        if dtype == "float64":
            return value
        packed, most = _PACKED.get(dtype, (_SINGLE, 0.0))
        if abs(value) < most:
            # Python's own conversion, which rounds to the nearest, ties to even: much faster
            near: float = packed.unpack(packed.pack(value))[0]
            return near
        if math.isinf(value):
            return overflow(value, dtype)
    precision, lowest, most = _limits(dtype)
    if not value:
        zero = value if isinstance(value, float) else 0.0
        return zero if FORMATS[dtype].has_minus_zero else 0.0
    size: Any = abs(value)
    if dtype != "float64" and size >= 2 * most:
        return overflow(math.inf if value > 0 else -math.inf, dtype)
    quantum = max(_exponent(value) - precision, lowest)
    if isinstance(value, float):
        # both steps are exact: a power of two scales, and round() of a float is an int
        whole = round(math.ldexp(value, -quantum))
    else:
        whole = round(value / Fraction(2) ** quantum)
    if abs(whole).bit_length() + quantum > 1024:
        return overflow(math.inf if value > 0 else -math.inf, dtype)
    nearest = math.ldexp(whole, quantum)
    if abs(nearest) > most:
        return overflow(nearest, dtype)
    if nearest == 0:
        return math.copysign(0.0, value) if FORMATS[dtype].has_minus_zero else 0.0
    return nearest


def _exponent(value: float | Fraction) -> int:
    """e with 2^(e-1) <= abs(value) < 2^e."""
    if isinstance(value, float):
        return math.frexp(value)[1]
    found = abs(value.numerator).bit_length() - value.denominator.bit_length()
    return found + (abs(value) >= Fraction(2) ** found)


def overflow(value: float, dtype: str) -> float:
    """What is beyond the largest number: infinity where there is one, else NaN."""
    if FORMATS[dtype].kind is Kind.IEEE:
        return math.copysign(math.inf, value)
    return math.nan


def converted(value: Any, source: str, target: str) -> Any:
    """``value`` of dtype ``source`` as one of ``target``; None where torch claims nothing.

    A float beyond the range of an integer dtype is undefined (``torch.Tensor.to`` leaves it to
    C++, [conv.fpint]), and what an imaginary part becomes in a real dtype is only warned about.
    float64 and integers reach float16, bfloat16 and fp8 by way of float32 (the constructors of
    c10::Half, c10::BFloat16 and c10::Float8_e4m3fn take a float): where that is another number than
    the nearest one, nothing is claimed. Beyond 448 float8_e4m3fn is NaN before torch 2.12 and 448
    since (pytorch PR 178817): a tuple of both.
    """
    kind = kind_of(target)
    if kind == "complex":
        part = COMPLEX[target]
        if isinstance(value, complex):
            return complex(rounded(value.real, part), rounded(value.imag, part))
        real = converted(value, source, part)
        return None if real is None else complex(real, 0.0)
    if isinstance(value, complex):
        return bool(value) if kind == "bool" else None
    if kind == "bool":
        return bool(value)
    if kind == "int":
        return _to_integer(value, target)
    if source == target:
        return value
    exact: float | Fraction = value
    if isinstance(value, int):
        exact = float(value) if abs(value) <= 2**53 else Fraction(value)
    right = rounded(exact, target)
    if target in SMALL and source not in (*SMALL, "float32"):
        through = rounded(rounded(exact, "float32"), target)
        if through != right and not (through != through and right != right):
            return None
    if target == "float8_e4m3fn" and right != right and value == value:
        return (math.nan, math.copysign(448.0, value))
    return right


def _to_integer(value: float, target: str) -> int | None:
    if isinstance(value, int):
        return whole_to_dtype(value, target)
    if not math.isfinite(value):
        return None
    whole = math.trunc(value)
    return whole if whole_to_dtype(whole, target) == whole else None


@cache
def fp8_values(dtype: str) -> tuple[float, ...]:
    """The numbers of the 256 codes."""
    return tuple(FORMATS[dtype].decode(code) for code in range(256))


@cache
def pattern_values(dtype: str) -> tuple[float, ...]:
    """The numbers of all bit patterns of an 8- or 16-bit format, by code."""
    codes = range(1 << 16)
    if dtype == "float16":
        return struct.unpack("<65536e", struct.pack("<65536H", *codes))
    if dtype == "bfloat16":
        # the upper half of a float32
        return struct.unpack("<65536f", struct.pack("<65536I", *(each << 16 for each in codes)))
    return tuple(FORMATS[dtype].decode(code) for code in range(1 << FORMATS[dtype].bits))


@cache
def fp8_codes(dtype: str) -> dict[str, int]:
    """The code of each number by its text, which is another one for -0.0 than for 0.0."""
    return {str(value): code for code, value in enumerate(fp8_values(dtype))}


def promoted(first: str, second: str) -> str:
    """The dtype of a result of two dtypes, none of which is fp8.

    torch documents it under "Type promotion" in tensor attributes.
    """
    order = ("bool", "int", "float", "complex")
    one, two = sorted((first, second), key=lambda each: order.index(kind_of(each)))
    low, high = kind_of(one), kind_of(two)
    if one == two or low == "bool" or (low == "int" and high != "int"):
        return two
    if low == "int":
        return _wider_integer(one, two)
    parts = {COMPLEX.get(one, one), COMPLEX.get(two, two)}
    part = "float64" if "float64" in parts else "float32"
    if high == "complex":
        return "complex128" if part == "float64" else "complex64"
    return "float32" if parts == {"float16", "bfloat16"} else _wider_float(one, two)


def _wider_float(one: str, two: str) -> str:
    return one if FORMATS[one].storage_bits >= FORMATS[two].storage_bits else two


def _wider_integer(one: str, two: str) -> str:
    bits = max(INTEGERS[one], INTEGERS[two])
    if "uint8" in (one, two) and bits == 8:
        return "int16"
    return one if INTEGERS[one] == bits else two
