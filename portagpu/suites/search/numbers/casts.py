"""Casts between all dtypes, of all bit patterns where those are 8 or 16 bits."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.compare import Right, wrong_result
from portagpu.suites.search.numbers.formats import (
    COMPLEX,
    FP8,
    INTEGERS,
    SMALL,
    converted,
    kind_of,
    pattern_values,
    rounded,
)
from portagpu.suites.search.numbers.tensors import (
    LAYOUTS,
    Placed,
    Shape,
    place,
    positions,
    strides_of,
)
from portagpu.suites.search.numbers.values import host_tensor, numbers

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend

FORMS: Final = ("to", "copy_", "type", "copy_ into every second", "twice", "host")
BLOCK: Final = 256
"""Of a format of 16 bits a call tries every 256th pattern, from one of 256 on, and for a wide
dtype every 1024th of its target's."""
SEEDS: Final = 16
"""Of the seeds so many make other numbers than patterns: what is drawn is used again."""
PATTERNS: Final = "patterns"
WIDE: Final = ("float32", "float64")
"""Of these the patterns are those of the dtype that they are cast to, and what is between."""


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

    Of a wide dtype those of the small ``target``, the middle up to the next one, and beside it.
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
        return f"{what} {wrong}{_of(found, wanted, placed, target)}"
    changed = placed.changed()
    return f"{what} wrote its input: {changed}" if changed else ""


def _of(found: torch.Tensor, wanted: list[Right], placed: Placed, target: str) -> str:
    """The number that was cast wrongly, or that strides were ignored."""
    from portagpu.suites.search.numbers.compare import is_right
    from portagpu.suites.search.numbers.tensors import dtype_of, listed

    got = listed(found)
    if len(got) != len(wanted):
        return ""
    bad = [i for i, pair in enumerate(zip(got, wanted, strict=True)) if not is_right(*pair)]
    if not bad:
        return ""
    value = placed.values[bad[0]]
    alike = [converted(each, dtype_of(placed.whole), target) for each in placed.storage[: len(got)]]
    ignored = not placed.tensor.is_contiguous() and all(map(is_right, got, alike))
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


KINDS: Final = (PATTERNS, "mixed", "special", "wide")
SOURCES: Final = ("float32", "bool", *INTEGERS, "bfloat16", "float16", "float64", *COMPLEX, *FP8)
SHAPES: Final = ((7,), (), (0,), (1,), (3, 5), (33,), (2, 3, 4), (65,), (1, 17), (300,))
LAYOUTS_OF_CASTS: Final = LAYOUTS
