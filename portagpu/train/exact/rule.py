"""When a result has the same bits in any order of its sums.

Each operand is an integer times a power of two, one power for each row of A and each column of B.
An output is then an integer sum times a power of two. Its **subset** is the larger of the sum of
its positive products and minus the sum of its negative ones, in units of that power. Every partial
sum, in any order, tree or split, lies between minus and plus subset. So the result is exact if
subset <= 2**W, every operand fits its format, and nothing leaves the normal range. W is the number
of bits that the narrowest accumulator keeps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

SIGNIFICANT_BITS: Final = {
    "float64": 53,
    "float32": 24,
    "tf32": 11,
    "bfloat16": 8,
    "float16": 11,
    "float8_e4m3fn": 4,
    "float8_e4m3fnuz": 4,
    "float8_e5m2": 3,
    "float8_e5m2fnuz": 3,
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
}
"""The bits of the largest n of which a format holds every integer of n bits and a sign (IEEE 754;
OCP 8-bit floating point specification 1.0)."""
EXPONENTS: Final = {
    "float64": (-1022, 1023),
    "float32": (-126, 127),
    "tf32": (-126, 127),
    "bfloat16": (-126, 127),
    "float16": (-14, 15),
    "float8_e4m3fn": (-6, 8),
    "float8_e4m3fnuz": (-7, 7),
    "float8_e5m2": (-14, 15),
    "float8_e5m2fnuz": (-15, 15),
}
"""The exponents of the smallest and largest normal numbers of a format. Subnormal ones may be
flushed to zero (16 bits on CDNA 2)."""
ACCUMULATOR_BITS: Final = {
    "float64": 53,
    "float32": 24,
    "tf32": 24,
    "bfloat16": 24,
    "float16": 24,
    "int8": 31,
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 14),
}
"""W of products by the format of their operands, where partial sums are not rounded to 16 bits: 14
in fp8 on Ada and Hopper (DeepSeek-V3 technical report, arXiv 2412.19437, section 3.3.2), else that
of binary32, binary64 and int32 (matrix units from Volta to Blackwell and of CDNA 1 to 3: MMA-Sim,
arXiv 2511.10909)."""


class NotExactError(ValueError):
    """The operands do not keep the rule, so that a result may depend on the order of its sums."""


def subset_bound(a: torch.Tensor, b: torch.Tensor) -> float:
    """An upper bound of the subset of every output of A B.

    A subset is not above the sum of ``|a b|``, which is not above the product of the norms of a row
    and a column (Cauchy and Schwarz), nor the largest of one times the sum of the other.

    :param a: Integers of shape (m, k).
    :param b: Integers of shape (k, n).
    """
    if not a.numel() or not b.numel():
        return 0.0
    left, right = a.abs(), b.abs()
    by_row = int(left.sum(1).max()) * int(right.max())
    by_column = int(right.sum(0).max()) * int(left.max())
    # squares of 53 bits do not fit int64, and not every device has float64
    squares = left.float().square().sum(1).max(), right.float().square().sum(0).max()
    rounded = 1 + (a.shape[1] + 2) * 2.0**-23
    return min(math.sqrt(math.prod(map(float, squares))) * rounded, by_row, by_column)


def fullest(terms: int, bits: int, most: tuple[int, int]) -> tuple[int, int]:
    """The largest v and w of which random integers of -v to v and of -w to w have exact sums.

    They are as equal as ``most`` allows. The squares of such integers are v (v + 1) / 3 on average,
    and the norm of a row or a column is above that of the average by 6 deviations at most, of
    0.9 / sqrt(terms) each. What is drawn has to be checked all the same (``subset_bound``).

    :param terms: How many products a sum has.
    :param bits: W, the bits that the narrowest accumulator keeps.
    :param most: The largest integers that the formats of the operands hold.
    :returns: v and w; zeros where not even integers of -1 to 1 are exact.
    """
    above = 1 + 6 * 0.9 / math.sqrt(terms)

    def fits(v: int, w: int) -> bool:
        average = math.sqrt(v * (v + 1) * w * (w + 1)) / 3
        return terms * min(average * above, v * w) <= 2.0**bits

    v = min(_largest(lambda each: fits(each, each), max(most)), most[0])
    w = _largest(lambda each: fits(v, each), most[1]) if v else 0
    return (_largest(lambda each: fits(each, w), most[0]), w) if w else (0, 0)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest integer of up to ``most`` that fits, where all smaller ones do; else 0."""
    low = 0
    while low < most:
        middle = (low + most + 1) // 2
        low, most = (middle, most) if fits(middle) else (low, middle - 1)
    return low


def check_subset(bound: float, bits: int, what: str) -> None:
    """Raise NotExactError where a subset may be above 2**bits."""
    if bound > 2.0**bits:
        raise NotExactError(
            f"{what} would not be exact: partial sums reach {bound:.4g}, and {bits} bits hold "
            f"{2**bits}"
        )


def check_operands(integers: torch.Tensor, bits: int, what: str) -> None:
    """Raise NotExactError where an integer may not fit ``bits`` significant bits."""
    largest = int(integers.abs().max()) if integers.numel() else 0
    if largest > 1 << bits:
        raise NotExactError(f"{what} would not be exact: {largest} has more than {bits} bits")


def check_range(largest: float, exponents: tuple[int, int], dtype: str, what: str) -> None:
    """Raise NotExactError where numbers may leave the normal range of a format.

    :param largest: The largest magnitude of the integers; the smallest that is not zero is 1.
    :param exponents: The smallest and the largest power of two that multiplies them.
    :param dtype: torch's name of the format.
    """
    low, high = EXPONENTS[dtype]
    smallest, greatest = exponents
    if smallest < low or largest > 2.0 ** (high - greatest):
        raise NotExactError(
            f"{what} would not be exact: from 2^{smallest} to {largest:.4g} * 2^{greatest} is not "
            f"in the normal range of {dtype}, 2^{low} to 2^{high}"
        )


def powers_of_two(exponents: torch.Tensor, dtype: str) -> torch.Tensor:
    """2**e of each exponent, exactly, made of bits: a device's ``exp2`` may round.

    :param exponents: int64, within the normal range of ``dtype``.
    :param dtype: "float64", or any other format, whose powers are given in float32.
    """
    import torch

    if dtype == "float64":
        return ((exponents + 1023) << 52).view(torch.float64)
    return ((exponents + 127) << 23).to(torch.int32).view(torch.float32)
