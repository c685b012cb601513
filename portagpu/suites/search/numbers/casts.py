"""Casts between all dtypes, of all bit patterns where those are 8 or 16 bits.

The model is :func:`~portagpu.suites.search.numbers.formats.converted`. It takes a second for each
65,536 numbers. So where every bit pattern of a format is cast at once, exact arithmetic in float64,
which has each of them, finds first which may be wrong.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.precision.formats import FORMATS, Kind
from portagpu.suites.search.area import one_thread
from portagpu.suites.search.numbers.formats import (
    COMPLEX,
    FP8,
    INTEGERS,
    SMALL,
    claimed,
    converted,
    kind_of,
    pattern_values,
    rounded,
)
from portagpu.suites.search.numbers.tensors import (
    LAYOUTS,
    Placed,
    Right,
    Shape,
    dtype_of,
    host_tensor,
    is_right,
    listed,
    nature,
    numbers,
    place,
    positions,
    shown,
    strides_of,
    wrong_result,
)

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend


FORMS: Final = ("to", "copy_", "type", "copy_ into every second", "twice", "host")
BLOCK: Final = 256
"""Of a format of 16 bits a call tries every 256th pattern, from one of 256 on, and for a wide
dtype every 1024th of its target's."""
SEEDS: Final = 16
"""This many of the seeds make other numbers than patterns: what is drawn is used again."""
PATTERNS: Final = "patterns"
WIDE: Final = ("float32", "float64")
"""Of these the patterns are those of the dtype that they are cast to, and what is between."""
KINDS: Final = (PATTERNS, "mixed", "special", "wide")
SOURCES: Final = ("float32", "bool", *INTEGERS, "bfloat16", "float16", "float64", *COMPLEX, *FP8)
SHAPES: Final = ((7,), (), (0,), (1,), (3, 5), (33,), (2, 3, 4), (65,), (1, 17), (300,))
LAYOUTS_OF_CASTS: Final = LAYOUTS
PATTERN_DTYPES: Final = ("uint8", "int8", "int16", *SMALL)
"""The formats of 8 and 16 bits of which every pattern is a number or NaN."""


@lru_cache(maxsize=512)
def rights(source: str, target: str, kind: str, n: int, seed: int) -> tuple[Right, ...]:
    """What each number of the storage becomes."""
    values = (
        pattern_block(source, seed, target) if kind == PATTERNS else numbers(source, kind, n, seed)
    )
    return tuple(converted(each, source, target) for each in values)


@lru_cache(maxsize=512)
def pattern_block(dtype: str, seed: int, target: str = "") -> tuple[float, ...]:
    """The numbers of one block of bit patterns, or of all 256.

    Of a wide dtype those of the small ``target``, the middles between them, and their neighbours.
    """
    if dtype in SMALL:
        every = pattern_values(dtype)
        return every if len(every) == 256 else every[seed * 7 % BLOCK :: BLOCK]
    every = pattern_values(target)
    step = 4 if len(every) == 256 else 4 * BLOCK
    found = []
    for code in range(seed * 7 % step, len(every), step):
        low, high = every[code], every[min(code + 1, len(every) - 1)]
        found.append(low)
        if math.isfinite(low) and math.isfinite(high) and low * high >= 0:
            middle = (low + high) / 2
            found += [middle, middle * (1 - 2.0**-20), middle * (1 + 2.0**-20)]
    return tuple(rounded(each, dtype) for each in found)


@lru_cache(maxsize=512)
def _block_on_host(dtype: str, seed: int, target: str) -> torch.Tensor:
    return host_tensor(pattern_block(dtype, seed, target), dtype)


def cast_difference(
    gpu: Backend,
    source: str,
    target: str,
    kind: str,
    shape: list[int],
    layout: str,
    form: str,
    seed: int,
) -> str:
    """The first difference of one cast, as a clause."""
    import torch

    if not _is_claimed(source, target):
        return ""
    every = kind == PATTERNS and (source in SMALL or (source in WIDE and target in SMALL))
    if every:
        placed = _patterns(gpu, source, seed, target)
        size: Shape = tuple(placed.tensor.shape)
    else:
        kind = "wide" if kind == PATTERNS else kind
        size, seed = tuple(shape), seed % SEEDS
        placed = place(gpu, source, size, layout, kind, seed)
    wanted_all = rights(source, target, kind, len(placed.storage), seed)
    wanted = [wanted_all[each] for each in placed.where]
    into = getattr(torch, target)
    x = placed.tensor
    what = f"the cast of {source} to {target} ({form}, {tuple(size)}, {layout})"
    if form.startswith("copy_"):
        found = _copied(gpu, x, into, size, every_second="second" in form)
        if isinstance(found, str):
            return f"{what} {found}"
    elif form == "type":
        found = x.type(into)
    elif form == "host":
        found = x.cpu().to(into).to(gpu.device)
    else:
        found = x.to(into)
    if form == "twice":
        found = x.to(into, copy=True)
    wrong = wrong_result(found, wanted, size, target)
    if wrong:
        return f"{what} {wrong}{_explanation(found, wanted, placed, target)}"
    changed = placed.changed()
    return f"{what} wrote its input: {changed}" if changed else ""


def _explanation(found: torch.Tensor, wanted: list[Right], placed: Placed, target: str) -> str:
    """The number that was cast wrongly, or that strides were ignored."""
    from portagpu.suites.search.numbers.tensors import dtype_of, is_right, listed

    got = listed(found)
    if len(got) != len(wanted):
        return ""
    bad = [i for i, pair in enumerate(zip(got, wanted, strict=True)) if not is_right(*pair)]
    if not bad:
        return ""
    value = placed.values[bad[0]]
    stored = [
        converted(each, dtype_of(placed.whole), target) for each in placed.storage[: len(got)]
    ]
    ignored = not placed.tensor.is_contiguous() and all(map(is_right, got, stored))
    return "; the strides were ignored" if ignored else f" (the number {value})"


def _is_claimed(source: str, target: str) -> bool:
    """Whether torch says what such a cast gives: complex numbers become no real ones."""
    return not (source in COMPLEX and kind_of(target) in ("int", "float", "fp8"))


def _patterns(gpu: Backend, dtype: str, seed: int, target: str) -> Placed:
    target = "" if dtype in SMALL else target
    values = pattern_block(dtype, seed, target)
    host = _block_on_host(dtype, seed, target)
    whole = host.clone().to(gpu.device)
    where = tuple(range(len(values)))
    return Placed(whole, list(values), whole, host, where, values)


def _copied(
    gpu: Backend, x: torch.Tensor, into: Any, shape: Shape, *, every_second: bool
) -> torch.Tensor | str:
    """``copy_`` into zeros, whose numbers between the elements have to stay zero."""
    import torch

    strides, offset, length = strides_of(shape, "every second" if every_second else "plain")
    whole = torch.zeros(length, dtype=torch.uint8 if into.itemsize == 1 else into).to(gpu.device)
    whole = whole.view(into)
    found = whole.as_strided(shape, strides, offset)
    found.copy_(x)
    mine = set(positions(shape, strides, offset))
    bits = torch.view_as_real(whole) if whole.is_complex() else whole
    others = bits.view(torch.uint8).cpu().reshape(length, -1).any(dim=1).tolist()
    for index, changed in enumerate(others):
        if changed and index not in mine:
            return f"wrote number {index} of the storage, between its elements"
    return found


def differences(gpu: Backend, source: str) -> list[str]:
    """The first difference of the casts of all patterns to each other claimed dtype, as clauses."""
    import torch

    found = []
    with one_thread():
        given = every_pattern(source).to(gpu.device)
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
            kind = nature(value, right, target)
            return f"gave {value} for {values[index]}, not {shown(right)}{kind}"
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
    """What :func:`every_number` becomes in a real dtype: right tensors, and where they are defined.

    int64 for integers, float64 for others. A float beyond the range of an integer is not defined.
    """
    import torch

    exact = torch.tensor(every_number(source), dtype=torch.float64)
    is_defined = torch.ones(len(exact), dtype=torch.bool)
    if target in INTEGERS:
        size = 1 << INTEGERS[target]
        low = 0 if target == "uint8" else -size // 2
        if source in INTEGERS:
            wrapped = [(each - low) % size + low for each in every_number(source)]
            return [torch.tensor(wrapped)], is_defined
        whole = exact.trunc()
        is_defined = (whole >= low) & (whole < low + size)
        defined = torch.where(is_defined, whole, 0.0)
        return [torch.tensor(list(map(int, defined.tolist())))], is_defined
    if target == "bool":
        return [torch.where(exact == 0, 0.0, torch.ones_like(exact))], is_defined
    found = _rounded(exact, target)
    if target == "float8_e4m3fn":
        # beyond 448 it is NaN before torch 2.12 and 448 since (pytorch PR 178817)
        saturated = exact.clamp(-448.0, 448.0)
        return [found, torch.where(found.isnan(), saturated, found)], is_defined
    return [found], is_defined


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
