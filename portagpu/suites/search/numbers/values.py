"""Numbers by class and seed: the same ones at each call, and each a number of its dtype."""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.formats import (
    COMPLEX,
    INTEGERS,
    SMALL,
    fp8_codes,
    kind_of,
    largest,
    pattern_values,
    rounded,
    smallest,
    smallest_normal,
    whole_to_dtype,
)

if TYPE_CHECKING:
    import torch

CLASSES: Final = (
    "integers",
    "ordinary",
    "special",
    "wide",
    "ones",
    "mixed",
    "distinct",
    "denormal",
)
MOST: Final = 8
"""The largest of the class "integers"."""
SHORT: Final = 32
LONG: Final = 512
"""Up to so many numbers are drawn in powers of two."""


def numbers(dtype: str, kind: str, n: int, seed: int) -> tuple[Any, ...]:
    """``n`` numbers.

    integers: whole, at most ``MOST``; negative ones too. ones: all 1. distinct: whole and all
    different as far as the dtype goes, in no order. ordinary: 2^-4 to 2^4 with all bits of the
    mantissa. denormal: below the smallest normal number or little above, integers for others. wide:
    any bits of the dtype. whole: integers with a few NaN and infinities, for which their sums need
    no order. special: NaN, infinities, -0.0, denormals, the largest
    number, and for integers the ends. mixed: ordinary with a few special ones.
    """
    return _stored(dtype, kind, _length(kind, n), seed)[:n]


def _length(kind: str, n: int) -> int:
    """How many are drawn for ``n``: few lengths, since drawing takes longer than what uses them."""
    return n if kind == "distinct" or n > LONG else max(SHORT, 1 << (n - 1).bit_length())


@lru_cache(maxsize=8192)
def _stored(dtype: str, kind: str, n: int, seed: int) -> tuple[Any, ...]:
    chance = random.Random(f"{dtype} {kind} {n} {seed}")  # noqa: S311 - test data, no secret
    if dtype in COMPLEX:
        parts = [_draw(COMPLEX[dtype], kind, n, chance) for _ in range(2)]
        return tuple(map(complex, *parts))
    return tuple(_draw(dtype, kind, n, chance))


def _draw(dtype: str, kind: str, n: int, chance: random.Random) -> list[Any]:
    if kind == "ones":
        return [True if dtype == "bool" else 1 if dtype in INTEGERS else 1.0] * n
    if dtype == "bool":
        return chance.choices((False, True), k=n)
    if kind == "distinct":
        return _distinct(dtype, n, chance)
    if kind == "mixed":
        ends = (
            _wholes(dtype, "special", n, chance) if dtype in INTEGERS else _ends(dtype, n, chance)
        )
        others = _draw(dtype, "ordinary", n, chance)
        return [
            end if chance.random() < 0.15 else each for end, each in zip(ends, others, strict=True)
        ]
    return (_wholes if dtype in INTEGERS else _floats)(dtype, kind, n, chance)


def _distinct(dtype: str, n: int, chance: random.Random) -> list[Any]:
    low = 0 if dtype == "uint8" else -n // 2
    found = [low + each for each in range(n)]
    chance.shuffle(found)
    if dtype in INTEGERS:
        return [whole_to_dtype(each, dtype) for each in found]
    most = 2 ** (3 if kind_of(dtype) == "fp8" else 8)
    return [float(each if abs(each) <= most else each % most) for each in found]


def _wholes(dtype: str, kind: str, n: int, chance: random.Random) -> list[int]:
    bits = INTEGERS[dtype]
    if kind == "wide":
        return [whole_to_dtype(chance.getrandbits(bits), dtype) for _ in range(n)]
    low, high = (0, 2**bits - 1) if dtype == "uint8" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if kind == "special":
        ends = [low, high, low + 1, high - 1, 0, 1, 3, whole_to_dtype(-1, dtype)]
        ends += [e for e in (2**24 + 1, -(2**24) - 1, 2**31, 2**53 + 1) if low <= e <= high]
        return chance.choices(ends, k=n)
    return chance.choices(range(max(low, -MOST), MOST + 1), k=n)


def _floats(dtype: str, kind: str, n: int, chance: random.Random) -> list[float]:
    if kind == "special":
        rare = specials(dtype)
        # what is no number, and the infinities, are few among them
        found = _ends(dtype, n, chance)
        return [each if chance.random() < 0.3 else chance.choice(rare) for each in found]
    if kind == "integers":
        most = MOST if largest(dtype) >= MOST else 4
        return [float(each) for each in chance.choices(range(-most, most + 1), k=n)]
    if kind == "whole":
        rare = (math.nan, math.inf, -math.inf)
        others = _floats(dtype, "integers", n, chance)
        return [chance.choice(rare) if chance.random() < 0.05 else each for each in others]
    if kind == "wide" and dtype in SMALL:
        return chance.choices(pattern_values(dtype), k=n)
    exponents: Any = range(-4, 5)
    if kind == "denormal":
        lowest = math.frexp(smallest_normal(dtype))[1]
        exponents = range(lowest - 4, lowest + 2)
    elif kind == "wide":
        # all exponents, down to those of denormals
        exponents = range(math.frexp(smallest(dtype))[1], math.frexp(largest(dtype))[1] + 1)
    sizes = [chance.uniform(0.5, 1) if kind == "wide" else chance.random() for _ in range(n)]
    signs = chance.choices((-1, 1), k=n)
    powers = chance.choices(exponents, k=n)
    return [
        rounded(math.ldexp(sign * size, power), dtype)
        for sign, size, power in zip(signs, sizes, powers, strict=True)
    ]


def _ends(dtype: str, n: int, chance: random.Random) -> list[float]:
    """Infinities, minus zero, a denormal and the largest numbers, and NaN twice as often."""
    ends = (math.nan, math.nan, math.inf, -math.inf, -0.0, -3 * smallest(dtype), largest(dtype))
    return chance.choices([rounded(each, dtype) for each in (*ends, -largest(dtype))], k=n)


@lru_cache
def specials(dtype: str) -> tuple[float, ...]:
    """NaN, infinities, zeros, denormals, the ends, and what is near the limits of casts."""
    found = {
        str(rounded(each, dtype)): rounded(each, dtype)
        for each in (
            *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0),
            *(smallest(dtype), -smallest(dtype), 3 * smallest(dtype), smallest_normal(dtype)),
            *(largest(dtype), -largest(dtype), largest(dtype) / 2, smallest_normal(dtype) / 2),
            *(
                88.0,
                89.0,
                -88.0,
                2.0**24 + 1,
                2.0**24 + 2,
                2.0**24 + 3,
                2.0**31,
                2.0**-126,
                2.0**-140,
                2.0**-25,
            ),
            *(448.0, 464.0, 466.0, 240.0, 57344.0, 61440.0, 65504.0, 65520.0, 65519.0, 2.0**-24),
            # the largest float32, and the first number that is infinite there
            *(2.0**128 - 2.0**104, 2.0**128 - 2.0**103, -(2.0**128)),
            *(
                1 + 2.0**-8,
                1 + 2.0**-11,
                1 + 3 * 2.0**-11,
                1 + 3 * 2.0**-8,
                1 + 2.0**-4,
                1 + 2.0**-3,
                255.0,
                127.0,
            ),
        )
    }
    return tuple(found.values())


def on_host(dtype: str, kind: str, n: int, seed: int) -> torch.Tensor:
    """:func:`numbers` as a tensor of shape (n,) on the CPU; nobody writes into it."""
    return _stored_on_host(dtype, kind, _length(kind, n), seed)[:n]


@lru_cache(maxsize=8192)
def _stored_on_host(dtype: str, kind: str, n: int, seed: int) -> torch.Tensor:
    return host_tensor(_stored(dtype, kind, n, seed), dtype)


def host_tensor(values: tuple[Any, ...] | list[Any], dtype: str) -> torch.Tensor:
    """A tensor of one dimension on the CPU of numbers of that dtype, without rounding."""
    import torch

    kind = getattr(torch, dtype)
    if kind_of(dtype) == "fp8":
        codes = fp8_codes(dtype)
        return torch.tensor([codes[str(each)] for each in values], dtype=torch.uint8).view(kind)
    return torch.tensor(values, dtype=kind)
