"""What a result should be, and the first element that differs, told with its nature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from portagpu.suites.search.numbers.formats import rounded, smallest_normal
from portagpu.suites.search.numbers.tensors import dtype_of, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from portagpu.suites.search.numbers.tensors import Shape


@dataclass(frozen=True, slots=True)
class Within:
    """A number that is right within a bound; for a complex one the bound is of each part."""

    value: Any
    bound: float


Right = Any
"""A number that is right exactly, :class:`Within`, a tuple of which each is right, or None where
nothing is claimed."""


def is_right(got: Any, right: Right, signs: bool = True) -> bool:
    """Whether ``got`` is right; without ``signs`` -0.0 is 0.0."""
    if right is None:
        return True
    if isinstance(right, Within):
        return _is_near(got, right.value, right.bound)
    if isinstance(right, tuple):
        return any(is_right(got, each, signs) for each in right)
    if isinstance(right, complex):
        return is_right(got.real, right.real, signs) and is_right(got.imag, right.imag, signs)
    if got == right:
        return (
            bool(right)
            or not signs
            or not isinstance(right, float)
            or math.copysign(1, got) == math.copysign(1, right)
        )
    return bool(got != got and right != right)


def _is_near(got: Any, value: Any, bound: float) -> bool:
    if isinstance(value, complex):
        return _is_near(got.real, value.real, bound) and _is_near(got.imag, value.imag, bound)
    if value != value:
        return bool(got != got)
    return bool(got == value or abs(got - value) <= bound)


def wrong_result(
    got: torch.Tensor, wanted: Sequence[Right], shape: Shape, dtype: str, *, signs: bool = True
) -> str:
    """A clause on the first difference of a result: dtype, shape or an element."""
    if dtype_of(got) != dtype:
        return f"gave {dtype_of(got)}, not {dtype}"
    if tuple(got.shape) != tuple(shape):
        return f"gave the shape {tuple(got.shape)}, not {tuple(shape)}"
    return wrong_elements(listed(got), wanted, dtype, signs=signs)


def wrong_elements(
    found: Sequence[Any], wanted: Sequence[Right], dtype: str, *, signs: bool = True
) -> str:
    """A clause on the first element that is not right; empty if all are."""
    if len(found) != len(wanted):
        return f"gave {len(found)} elements, not {len(wanted)}"
    for index, (value, right) in enumerate(zip(found, wanted, strict=True)):
        if value == right and value and not isinstance(right, complex):
            continue
        if not is_right(value, right, signs):
            last = ", the last" if index == len(wanted) - 1 and index else ""
            told = nature(value, right, dtype)
            return f"gave {value} at element {index}{last}, not {shown(right)}{told}"
    return ""


def shown(right: Right) -> str:
    """What is right, for people."""
    if isinstance(right, Within):
        return f"{right.value} within {right.bound:.2g}"
    if isinstance(right, tuple):
        return " or ".join(map(str, right))
    return str(right)


def nature(got: Any, right: Right, dtype: str) -> str:
    """What the difference is, where one value tells it; begins with ": "."""
    value = right.value if isinstance(right, Within) else right
    if isinstance(value, tuple) or isinstance(got, bool) or isinstance(value, bool):
        return ""
    if isinstance(value, complex):
        return _complex_nature(got, value)
    if not isinstance(value, float) or not isinstance(got, float):
        return ": it is the negative" if got == -value and value else ""
    return _float_nature(got, value, dtype)


def _complex_nature(got: complex, value: complex) -> str:
    if got == value.conjugate():
        return ": the imaginary part has the other sign"
    if got.real == value.real and got.imag == 0:
        return ": the imaginary part was lost"
    return ": it is the negative" if got == -value else ""


def _float_nature(got: float, value: float, dtype: str) -> str:
    if value != value:
        return ": the NaN was lost"
    if got != got:
        return ": a NaN came from numbers"
    if value == 0 == got:
        return ": the sign of zero was lost"
    if got == 0:
        tiny = abs(value) < smallest_normal(dtype)
        return ": the denormal became 0" if tiny else ""
    if got == -value:
        return ": it is the negative"
    if math.isinf(value) and not math.isinf(got):
        return ": it was saturated"
    if math.isinf(got) and not math.isinf(value):
        return ": a number became infinite"
    if value == rounded(value, dtype) and rounded((got + value) / 2, dtype) in (got, value):
        return ": it is the next number, rounded to the wrong side"
    return ""
