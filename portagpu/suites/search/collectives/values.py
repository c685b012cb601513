"""Numbers of ranks: whole matrices of them by a seed, of classes whose results are known.

A pattern is a short list of Python numbers. A buffer of n elements repeats it, so that large
buffers cost no more than small ones. Its length is prime, unlike those of the parts of a library.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

Number = int | float | complex
Pattern = list[Number]

PERIOD: Final = 31
SIGNIFICAND: Final = {
    "float64": 53,
    "float32": 24,
    "float16": 11,
    "bfloat16": 8,
    "float8_e4m3fn": 4,
    "float8_e4m3fnuz": 4,
}
"""Bits of the significand, with the one that is not stored."""
MAX_NUMBER: Final = {
    "float64": (2 - 2**-52) * 2.0**1023,
    "float32": (2 - 2**-23) * 2.0**127,
    "float16": 65504.0,
    "bfloat16": (2 - 2**-7) * 2.0**127,
}
MIN_NUMBER: Final = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
}
"""The smallest subnormal number."""
INFINITY_BITS: Final = {
    "float64": 0x7FF0 << 48,
    "float32": 0x7F80 << 16,
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
}
INTEGER_BITS: Final = {
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "uint8": 8,
    "uint16": 16,
    "uint32": 32,
}
SIZE: Final = {
    **{name: bits // 8 for name, bits in INTEGER_BITS.items()},
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "bool": 1,
    "complex64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
}
"""Bytes of an element."""


def integer_range(dtype: str) -> tuple[int, int]:
    """The least and the greatest number of an integer format."""
    bits = INTEGER_BITS[dtype]
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def wrapped(number: int, dtype: str) -> int:
    """The number in two's complement arithmetic of that format."""
    low, high = integer_range(dtype)
    return (number - low) % (high - low + 1) + low


def bits(dtype: str, seed: int, ranks: int, parts: int, count: int) -> list[list[Pattern]]:
    """Patterns of bits for each rank and part, as integers of the element's size.

    They are what calls move that do not calculate. A boolean is 0 or 1. One of each pattern is
    special: 0, -0.0, an infinity, a NaN, or an end of the integers.
    """
    random = Random(seed)  # noqa: S311 - numbers, no secret
    low, high = (0, 1) if dtype == "bool" else integer_range(f"int{8 * SIZE[dtype]}")
    special = (0, -1, low, high, INFINITY_BITS.get(dtype, low))
    length, width = min(count, PERIOD), (high - low).bit_length()

    def pattern() -> Pattern:
        found: Pattern = [low + random.getrandbits(width) for _ in range(length)]
        if length > 2 and dtype != "bool":
            found[random.randrange(length)] = random.choice(special)
        return found

    return [[pattern() for _ in range(parts)] for _ in range(ranks)]


def addends(
    values: str, op: str, dtype: str, seed: int, ranks: int, parts: int, count: int
) -> list[list[Pattern]]:
    """Patterns of numbers for each rank and part, which are reduced over the ranks.

    ``values`` is "small", "exact", "random", "extreme", "special" or "zeros". All numbers are
    representable.
    """
    random = Random(seed)  # noqa: S311 - numbers, no secret
    length = min(count, PERIOD)
    columns = [
        [_column(random, values, op, dtype, ranks) for _ in range(length)] for _ in range(parts)
    ]
    return [[[column[rank] for column in part] for part in columns] for rank in range(ranks)]


def _column(random: Random, values: str, op: str, dtype: str, n: int) -> list[Number]:
    """The numbers of n ranks at one place."""
    if dtype == "bool":
        return [random.randint(0, 1) for _ in range(n)]
    if dtype == "complex64":
        return [complex(_sign(random, 1, 9), _sign(random, 1, 9)) for _ in range(n)]
    if dtype in INTEGER_BITS:
        return _integers(random, values, op, dtype, n)
    if SIZE[dtype] == 1:
        # no order of a sum has more than four bits
        times = n if op == "AVG" else 1
        return [float(times * _sign(random, 1, max(1, 16 // (n * times)))) for _ in range(n)]
    if values == "zeros":
        return [random.choice((0.0, -0.0)) for _ in range(n)]
    if values == "special":
        return _specials(random, op, n)
    if values == "extreme":
        return _extremes(random, op, dtype, n)
    if op == "PRODUCT":
        return _factors(random, n)
    # a whole average where each is that many times as large
    times = n if op == "AVG" else 1
    if values == "small":
        return [float(times * _sign(random, 1, 5)) for _ in range(n)]
    if values == "exact":
        most = max(1, 2 ** SIGNIFICAND[dtype] // (n * times))
        scale = 2.0 ** random.randint(-8, 5)
        return [times * _sign(random, 1, most) * scale for _ in range(n)]
    whole = 2 ** (SIGNIFICAND[dtype] - 1)
    return [
        _sign(random, whole, 2 * whole - 1) / whole * 2.0 ** random.randint(-4, 3) for _ in range(n)
    ]


def _sign(random: Random, low: int, high: int) -> int:
    return random.choice((-1, 1)) * random.randint(low, high)


def _integers(random: Random, values: str, op: str, dtype: str, n: int) -> list[Number]:
    low, high = integer_range(dtype)
    if op == "AVG":
        return [n * random.randint(max(low, -5), 5) for _ in range(n)]
    if values == "small":
        return [random.choice([each for each in range(max(low, -5), 6) if each]) for _ in range(n)]
    if values in ("extreme", "special"):
        return [random.choice((low, high, low + 1, high - 1)) for _ in range(n)]
    return [random.randint(low, high) for _ in range(n)]


def _factors(random: Random, n: int) -> list[Number]:
    """One number of seven bits, and powers of two: no order of a product rounds."""
    odd = random.randrange(n)
    return [
        1.0 + random.randint(1, 63) / 64
        if rank == odd
        else random.choice((-1.0, 1.0)) * 2.0 ** random.randint(-2, 2)
        for rank in range(n)
    ]


def _extremes(random: Random, op: str, dtype: str, n: int) -> list[Number]:
    """Infinities, the largest and the smallest numbers, and minus zero: exact in any order."""
    largest, tiny = MAX_NUMBER[dtype], MIN_NUMBER[dtype]
    if op in ("MIN", "MAX"):
        every = (math.inf, -math.inf, largest, -largest, tiny, -tiny, 1.0, -1.0)
        return [random.choice(every) for _ in range(n)]
    kind = random.choice(("inf", "minus zero", "tiny" if op == "SUM" else "inf"))
    if kind == "minus zero":
        # a product of 1 and one -0.0 has its sign by the number of negative ones
        return [-0.0] * n
    if kind == "tiny":
        return [_sign(random, 1, 7) * tiny for _ in range(n)]
    one = random.randrange(n)
    sign = random.choice((-1, 1))
    return [sign * math.inf if rank == one else float(_sign(random, 1, 9)) for rank in range(n)]


def _specials(random: Random, op: str, n: int) -> list[Number]:
    """A NaN of one rank and numbers of the others, or infinities of both signs in a sum."""
    one = random.randrange(n)
    found: list[Number] = [float(_sign(random, 1, 5)) for _ in range(n)]
    found[one] = math.nan
    if op in ("SUM", "AVG") and n > 1 and random.random() < 0.5:
        found[one], found[one - 1] = math.inf, -math.inf
    return found
