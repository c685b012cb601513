"""Casts of every bit pattern of an 8- or 16-bit format at once.

The model is :func:`~portagpu.suites.search.numbers.formats.converted`. It takes a second for each
65,536 numbers, so exact arithmetic in float64, which has each of them, finds first which may be
wrong."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.precision.formats import FORMATS, Kind
from portagpu.suites.search.numbers.compare import is_right, nature, shown, wrong_result
from portagpu.suites.search.numbers.formats import (
    COMPLEX,
    INTEGERS,
    SMALL,
    claimed,
    converted,
    pattern_values,
)
from portagpu.suites.search.numbers.tensors import dtype_of, listed

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend

SOURCES: Final = ("uint8", "int8", "int16", *SMALL)
"""The formats of 8 and 16 bits of which every pattern is a number or NaN."""


def differences(gpu: Backend, source: str) -> list[str]:
    """The first difference of the casts of all patterns to each other claimed dtype, as clauses."""
    import torch

    given = every_pattern(source).to(gpu.device)
    found = []
    for target in claimed(gpu):
        if target == source:
            continue
        wrong = _difference(given.to(getattr(torch, target)), source, target)
        if wrong:
            found.append(f"{source} to {target} {wrong}")
    return found


def _difference(cast: torch.Tensor, source: str, target: str) -> str:
    values = every_number(source)
    if dtype_of(cast) != target or tuple(cast.shape) != (len(values),):
        return wrong_result(cast, [], (len(values),), target)
    got = listed(cast)
    for index in _suspects(got, source, target):
        value, right = got[index], converted(values[index], source, target)
        if not is_right(value, right):
            told = nature(value, right, target)
            return f"gave {value} for {values[index]}, not {shown(right)}{told}"
    return ""


def every_pattern(dtype: str) -> torch.Tensor:
    """All bit patterns as a tensor on the CPU, from the one with only the highest bit on."""
    import torch

    kind = getattr(torch, dtype)
    bits, half = (torch.int8, 1 << 7) if kind.itemsize == 1 else (torch.int16, 1 << 15)
    return torch.arange(-half, half, dtype=bits).view(kind)


@lru_cache
def every_number(dtype: str) -> list[Any]:
    """The numbers of :func:`every_pattern`."""
    if dtype in INTEGERS:
        half = 1 << (INTEGERS[dtype] - 1)
        return [*range(half, 2 * half), *range(half)] if dtype == "uint8" else [*range(-half, half)]
    values = pattern_values(dtype)
    half = len(values) // 2
    return [*values[half:], *values[:half]]


def _suspects(got: list[Any], source: str, target: str) -> list[int]:
    """Where a result is not what the arithmetic in float64 gives, but where that is undefined."""
    import torch

    part = COMPLEX.get(target, target)
    rights, is_told = expected(source, part)
    found = torch.tensor(got, dtype=torch.complex128 if target in COMPLEX else rights[0].dtype)
    good = torch.zeros(len(got), dtype=torch.bool)
    if target in COMPLEX:
        for right in rights:
            good |= _same(found.real, right) & _same(found.imag, torch.zeros_like(right))
    else:
        for right in rights:
            good |= _same(found, right)
    where: list[int] = (is_told & ~good).nonzero().flatten().tolist()
    return where


def _same(found: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Where both are the same number with the same sign, also of zero, or both are NaN."""
    same = (found == right) & (found.signbit() == right.signbit())
    return same | (found.isnan() & right.isnan())


@lru_cache(maxsize=256)
def expected(source: str, target: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What :func:`every_number` becomes in a real dtype: each tensor is right, where it is told.

    int64 for integers, float64 for others. A float beyond the range of an integer is not told.
    """
    import torch

    exact = torch.tensor(every_number(source), dtype=torch.float64)
    told = torch.ones(len(exact), dtype=torch.bool)
    if target in INTEGERS:
        size = 1 << INTEGERS[target]
        low = 0 if target == "uint8" else -size // 2
        if source in INTEGERS:
            wrapped = [(each - low) % size + low for each in every_number(source)]
            return [torch.tensor(wrapped)], told
        whole = exact.trunc()
        told = (whole >= low) & (whole < low + size)
        defined = torch.where(told, whole, 0.0)
        return [torch.tensor(list(map(int, defined.tolist())))], told
    if target == "bool":
        return [torch.where(exact == 0, 0.0, torch.ones_like(exact))], told
    found = _rounded(exact, target)
    if target == "float8_e4m3fn":
        # beyond 448 it is NaN before torch 2.12 and 448 since (pytorch PR 178817)
        saturated = exact.clamp(-448.0, 448.0)
        return [found, torch.where(found.isnan(), saturated, found)], told
    return [found], told


def _rounded(exact: torch.Tensor, target: str) -> torch.Tensor:
    """The nearest number of a format, ties to even, as ``formats.rounded`` finds one."""
    import torch

    form = FORMATS[target]
    if target == "float64":
        return exact
    _, exponent = torch.frexp(exact)
    lowest = 1 - form.bias - form.mantissa_bits
    quantum = (exponent - (form.mantissa_bits + 1)).clamp(min=lowest)
    # a power of two scales exactly, and round() takes the even one of two that are as near
    nearest = torch.ldexp(torch.ldexp(exact, -quantum).round(), quantum)
    beyond = torch.tensor(math.inf if form.kind is Kind.IEEE else math.nan, dtype=torch.float64)
    nearest = torch.where(nearest.abs() > form.max, beyond.copysign(exact), nearest)
    nearest = torch.where(exact.isnan(), exact, nearest)
    return nearest if form.has_minus_zero else torch.where(nearest == 0, 0.0, nearest)
